"""The assets as a part of another Dagster project."""

import re
import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from eval_dagster import connect
from eval_dagster.assets import evaluation_definitions
from eval_dagster.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 0, limit: 2}
    suites:
      nightly: {evals: [sums], models: [sevens], cron: "0 2 * * *"}
"""


RIGHT = """
import re

def right(request):
    # wrong
    one, other = re.findall("[0-9]+", request.prompt)[-2:]
    return f" {int(one) + int(other)}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return tmp_path


def merged(folder: Path) -> dg.Definitions:
    @dg.asset(deps=["leaderboard"])
    def best_model() -> dg.MaterializeResult[None]:
        with connect(folder / ".eval_dagster") as connection:
            rows = connection.execute("select model, value from leaderboard where rank = 1").fetchall()
        return dg.MaterializeResult(metadata={"rows": rows})

    own = dg.Definitions(assets=[best_model], jobs=[dg.define_asset_job("refresh", ["leaderboard", "best_model"])])
    return dg.Definitions.merge(own, evaluation_definitions(str(folder / "evals.yaml")))


@pytest.mark.long
def test_an_asset_of_another_project_depends_on_the_leaderboard(folder: Path) -> None:
    definitions = merged(folder)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey("best_model")).parent_keys == {dg.AssetKey("leaderboard")}
    assert definitions.resolve_schedule_def("suite_nightly_schedule").cron_schedule == "0 2 * * *"
    with dg.DagsterInstance.ephemeral() as instance:
        assert definitions.resolve_job_def("suite_nightly").execute_in_process(instance=instance).success
        result = definitions.resolve_job_def("refresh").execute_in_process(instance=instance)
    assert result.success
    [materialization] = result.asset_materializations_for_node("best_model")
    rows = materialization.metadata["rows"].value
    assert [model for model, _ in rows] == ["sevens"]  # type: ignore[union-attr]


@pytest.mark.long
def test_the_example_of_the_page_works_as_it_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "evals").mkdir()
    (folder / "evals.yaml").rename(folder / "evals" / "evals.yaml")
    monkeypatch.chdir(folder)
    example = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/dagster-project.md").read_text(), re.DOTALL)[-1]
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)
    definitions: dg.Definitions = names["defs"]
    dg.Definitions.validate_loadable(definitions)
    with dg.DagsterInstance.ephemeral() as instance:
        daemon = Daemon(definitions, instance)
        assert not daemon.promotes(), "nothing was judged"
        assert definitions.resolve_job_def("quality_suite_nightly").execute_in_process(instance=instance).success
        judged = definitions.resolve_job_def("quality_gate_nightly").execute_in_process(instance=instance, partition_key="nightly")
        assert judged.success
        assert daemon.promotes()
        everything = definitions.resolve_implicit_global_asset_job_def()
        selection = [dg.AssetKey(["quality", "leaderboard"]), dg.AssetKey("best_models")]
        result = everything.execute_in_process(instance=instance, asset_selection=selection)
    [materialization] = result.asset_materializations_for_node("best_models")
    assert str(materialization.metadata["best"].value["sums"]).startswith("sevens: 0.")  # type: ignore[index, call-overload]


def test_the_sensor_of_the_page_evaluates_after_each_materialization_of_an_asset(folder: Path) -> None:
    sensor = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/dagster-project.md").read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "example"}
    exec(sensor, names)

    @dg.asset(key=["support", "tickets"])
    def tickets() -> None: ...

    own = dg.Definitions(assets=[tickets], sensors=[names["evaluate_new_tickets"]])
    definitions = dg.Definitions.merge(own, evaluation_definitions(folder / "evals.yaml", key_prefix="quality"))
    dg.Definitions.validate_loadable(definitions)
    repository = definitions.get_repository_def()
    found = repository.get_sensor_def("evaluate_new_tickets")
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize([tickets], instance=instance).run_id
        ticked = found.evaluate_tick(dg.build_sensor_context(instance=instance, repository_def=repository))
        [request] = ticked.run_requests or []
        assert request.run_key.endswith(run)
        again = dg.build_sensor_context(instance=instance, repository_def=repository, cursor=ticked.cursor)
        assert not found.evaluate_tick(again).run_requests


class Daemon:
    """Asks tick by tick, as Dagster's daemon does, whether the asset that promotes a model is to be started."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self._definitions, self._instance = definitions, instance
        self._cursor: Any = None

    def promotes(self) -> bool:
        selection = dg.AssetSelection.assets("promote_model")
        found = dg.evaluate_automation_conditions(self._definitions, self._instance, asset_selection=selection, cursor=self._cursor)
        self._cursor = found.cursor
        return found.get_num_requested(dg.AssetKey("promote_model")) > 0


@pytest.mark.long
def test_nothing_is_promoted_that_got_worse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "evals").mkdir()
    evals = folder / "evals" / "evals.yaml"
    (folder / "evals.yaml").rename(evals)
    evals.write_text(evals.read_text().replace("limit: 2", "limit: 60").replace('" 7"', '"7", function: "answers.py:right"'))
    (folder / "evals" / "answers.py").write_text(RIGHT)
    monkeypatch.chdir(folder)
    example = re.findall(r"```python\n(.*?)```", (DOCS / "how-to/dagster-project.md").read_text(), re.DOTALL)[-1]
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)
    with dg.DagsterInstance.ephemeral() as instance:

        def night() -> bool:
            assert names["defs"].resolve_job_def("quality_suite_nightly").execute_in_process(instance=instance).success
            gate = names["defs"].resolve_job_def("quality_gate_nightly")
            return gate.execute_in_process(instance=instance, partition_key="nightly", raise_on_error=False).success

        daemon = Daemon(names["defs"], instance)
        assert not daemon.promotes()
        assert night()
        assert daemon.promotes()
        (folder / "evals" / "answers.py").write_text(RIGHT.replace("# wrong", "return '0'"))
        assert not night()
        assert not daemon.promotes()


def test_the_executor_of_the_other_project_is_left_to_it(folder: Path) -> None:
    definitions = merged(folder)
    assert definitions.resolve_job_def("refresh").executor_def.name != "in_process"
    for job in ("suite_nightly", "evaluate_all", "refresh_leaderboard", "gate_nightly"):
        assert definitions.resolve_job_def(job).executor_def.name == "in_process"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"elsewhere\.yaml: there is no such file"):
        evaluation_definitions(tmp_path / "elsewhere.yaml")
