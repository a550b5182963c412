"""Evals whose rows are those of an asset of the user's project: read by its IO manager or from its files, stale when it changes."""

import json
import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import datasets
import pandas as pd
import pyarrow as pa
import pytest
from commands import run_command
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.loader import LoadingContextForTest

from eval_dagster.assets.asset_datasets import look_at_assets, tables_of
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.observing import look
from eval_dagster.assets.partitions import add_partitions
from eval_dagster.datasets.assets import Materialized
from eval_dagster.errors import ConfigError, DataError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
    evals:
      tickets: {task: "sums.py:Sums", dataset: {asset: support/tickets}}
      exported: {task: "sums.py:Sums", dataset: {asset: {test: exported}}}
      versioned: {task: "sums.py:Sums", dataset: {asset: versioned}}
      own: {task: "sums.py:Sums"}
"""
TASK = '''
    """Sums."""

    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask


    class Sums(BaseTask):
        """Sums."""

        NAME = "Sums"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        NUM_FEWSHOT = 0
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''
DEFINITIONS = '''
    """The project of a user."""

    import json
    from pathlib import Path

    import dagster as dg
    import pandas as pd

    from eval_dagster.assets import evaluation_definitions

    FOLDER = Path(__file__).parent


    def rows():
        return pd.DataFrame(json.loads((FOLDER / "rows.json").read_text()))


    @dg.asset(key=["support", "tickets"])
    def tickets():
        return rows()


    @dg.asset
    def exported() -> dg.MaterializeResult:
        folder = FOLDER / "exported"
        folder.mkdir(exist_ok=True)
        table = rows()
        table[:1].to_parquet(folder / "part-0.parquet")
        table[1:].to_parquet(folder / "part-1.parquet")
        return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(folder))})


    @dg.asset
    def versioned() -> dg.MaterializeResult:
        version = dg.DataVersion((FOLDER / "version.txt").read_text())
        return dg.MaterializeResult(value=rows().to_dict("records"), data_version=version)


    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["x"]))
    def by_day():
        return rows()


    @dg.asset
    def a_number():
        return 7


    @dg.asset(code_version="1")
    def of_one_code():
        return rows()


    defs = dg.Definitions.merge(
        dg.Definitions(
            assets=[tickets, exported, versioned, by_day, a_number, of_one_code],
            resources={"io_manager": dg.FilesystemIOManager(base_dir=str(FOLDER / "values"))},
        ),
        evaluation_definitions(FOLDER / "evals.yaml", key_prefix="evals"),
    )
'''
STAGES = ["dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"]


def _write_rows(folder: Path, *answers: str) -> None:
    rows = [{"question": f"Question {place}: 3 + 4 =", "answer": answer} for place, answer in enumerate(answers)]
    (folder / "rows.json").write_text(json.dumps(rows))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project of a user, whose assets were never materialized."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.delenv("EVAL_DAGSTER_HOME", raising=False)
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (tmp_path / "sums.py").write_text(textwrap.dedent(TASK))
    (tmp_path / "defs.py").write_text(textwrap.dedent(DEFINITIONS))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "test.jsonl").write_text('{"question": "1 + 6 =", "answer": "7"}')
    (tmp_path / "version.txt").write_text("1")
    _write_rows(tmp_path, "7", "8")
    return tmp_path


def _materialize(folder: Path, *assets: str, partition: str | None = None, last: str | None = None, fails: bool = False) -> str:
    """Run assets as the Dagster pages do: in a run that loads the user's definitions from their file. Returns its log.

    With `last`, the run is of the partitions from `partition` to it.
    """
    tags = {"dagster/asset_partition_range_start": partition, "dagster/asset_partition_range_end": last} if last else {}
    if partition and not last:
        tags = {"dagster/partition": partition}
    repository = ReconstructableRepository.for_file(str(folder / "defs.py"), "defs", str(folder))
    selection = [dg.AssetKey(asset.split("/")) for asset in assets]
    with open_instance(folder / ".eval_dagster") as instance:
        add_partitions(instance, Project.open(config_path=folder / "evals.yaml", key_prefix=["evals"]))
        result = dg.execute_job(
            repository.get_reconstructable_job("__ASSET_JOB"),
            instance=instance,
            asset_selection=selection,
            tags=tags,
            run_config={"execution": {"config": {"in_process": {}}}, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        )
        errors = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
        failures = "\n".join(str(error.cause or error.message) for error in errors if error is not None)
        assert result.success != fails, failures
        return failures


def _evaluate(folder: Path, *evals: str, fails: bool = False) -> str:
    said = ""
    for name in evals:
        _materialize(folder, "evals/dataset_snapshot", partition=name, fails=fails)
        said += _materialize(folder, *(f"evals/{stage}" for stage in STAGES[1:]), partition=f"{name}|a", fails=fails)
    return said


def _evaluate_all(folder: Path) -> None:
    """Evaluate all evals in two runs."""
    _materialize(folder, "evals/dataset_snapshot", partition="tickets", last="own")
    _materialize(folder, *(f"evals/{stage}" for stage in STAGES[1:]), partition="tickets|a", last="own|a")


def _unsynced(folder: Path) -> set[str]:
    """The evals that Dagster calls unsynced after a look. A dry run says the same of each stage."""
    project = Project.open(config_path=folder / "evals.yaml")
    with open_instance(project.home) as instance:
        look(instance, Project.open(config_path=folder / "evals.yaml"), seconds=60.0)
        repository = ReconstructableRepository.for_file(str(folder / "defs.py"), "defs", str(folder)).get_definition()
        resolver = CachingStaleStatusResolver(instance, repository.asset_graph, LoadingContextForTest(instance))
        found: dict[tuple[str, str], StaleStatus] = {}
        for name in project.config.evals:
            for stage in STAGES:
                partition = name if stage == "dataset_snapshot" else f"{name}|a"
                found[name, stage] = resolver.get_status(dg.AssetKey(["evals", stage]), partition)
    told = run_command("status", "--format", "json")
    states = json.loads(told.stdout or told.stderr)
    assert {(each["eval"], each["stage"]): each["state"] != "fresh" for each in states} == {
        cell: status is not StaleStatus.FRESH for cell, status in found.items()
    }
    return {name for (name, _), status in found.items() if status is StaleStatus.STALE}


def _ticked(folder: Path, cursor: str | None) -> Any:
    """A tick of the sensor that observes the sources."""
    repository = ReconstructableRepository.for_file(str(folder / "defs.py"), "defs", str(folder)).get_definition()
    with open_instance(folder / ".eval_dagster") as instance:
        return repository.get_sensor_def("evals_definitions").evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))


def _answers(folder: Path, name: str) -> list[str]:
    project = Project.open(config_path=folder / "evals.yaml")
    rows = read_rows(project.lake, "select row from samples where eval = ? order by row_index", [name])
    return [json.loads(row["row"])["answer"] for row in rows]


@pytest.mark.long
def test_rows_are_those_of_the_asset_and_a_command_reads_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _materialize(folder, "support/tickets", "exported", "versioned")
    _evaluate_all(folder)
    assert _answers(folder, "tickets") == _answers(folder, "exported") == _answers(folder, "versioned") == ["7", "8"]
    assert _answers(folder, "own") == ["7"]
    assert _unsynced(folder) == set()
    done = run_command("run")
    assert done.returncode == 0, done.stderr
    assert "Nothing to recompute: all 20 tables were current" in done.stdout
    monkeypatch.delenv("DAGSTER_HOME")
    asked = run_command("status", "--eval", "tickets")
    assert asked.returncode == 0
    assert "this command asks does not know the asset support/tickets; the rows are those materialized 2" in asked.stderr


@pytest.mark.long
def test_a_new_materialization_makes_its_own_eval_stale_and_a_command_says_what_to_do(folder: Path) -> None:
    _materialize(folder, "support/tickets", "exported", "versioned")
    _evaluate_all(folder)
    looked = _ticked(folder, None)
    assert "nothing changed" in str(looked.skip_message)
    assert _ticked(folder, looked.cursor).skip_message == "no file changed since the last look"
    _write_rows(folder, "7", "9")
    _materialize(folder, "support/tickets")
    assert "changed: dataset_snapshot tickets: data; rendered_prompts tickets|a: " in str(_ticked(folder, looked.cursor).skip_message)
    assert _unsynced(folder) == {"tickets"}
    done = run_command("run")
    assert done.returncode == 1
    assert "eval tickets: the rows of the asset support/tickets, materialized 2" in done.stderr
    assert "materialize dataset_snapshot there (or evaluate there)" in done.stderr
    assert "1 of 4 evals cannot be evaluated; the rest is evaluated" in done.stderr
    assert _answers(folder, "tickets") == ["7", "8"], "the result stays"
    _materialize(folder, "evals/dataset_snapshot", partition="tickets")
    assert _answers(folder, "tickets") == ["7", "9"]
    assert run_command("run").returncode == 0, "the home has the rows"
    assert _unsynced(folder) == set()


@pytest.mark.long
def test_equal_versions_mean_equal_rows_only_if_the_user_gave_them(folder: Path) -> None:
    config = textwrap.dedent(CONFIG).replace("asset: support/tickets", "asset: of_one_code")
    (folder / "evals.yaml").write_text(config)
    found: list[dict[str, Materialized | None]] = []
    for _ in range(2):
        _materialize(folder, "of_one_code", "versioned")
        project = Project.open(config_path=folder / "evals.yaml")
        with open_instance(project.home) as instance:
            assert look_at_assets(instance, project, ["tickets", "exported", "versioned"]) == ["exported"]
        found.append({key: project.reader.assets.newest(key) for key in ("of_one_code", "versioned")})
    for key, is_same in (("of_one_code", False), ("versioned", True)):
        first, second = (each[key] for each in found)
        assert first is not None
        assert second is not None
        assert first.version == second.version
        assert (first.value_id == second.value_id) == is_same


@pytest.mark.long
def test_equal_rows_recompute_nothing_and_equal_versions_are_trusted_only_if_the_user_gave_them(folder: Path) -> None:
    with (folder / "evals.yaml").open("a") as file:
        file.write("  one_code: {task: 'sums.py:Sums', dataset: {asset: of_one_code}}\n")
    _materialize(folder, "support/tickets", "exported", "versioned", "of_one_code")
    _evaluate(folder, "tickets", "exported", "versioned", "own", "one_code")
    before = _files(folder)
    _materialize(folder, "support/tickets", "exported", "versioned", "of_one_code")
    assert _unsynced(folder) == {"tickets", "exported", "one_code"}, "nobody knows yet whether their rows are the same"
    for name in ("tickets", "one_code"):
        _materialize(folder, "evals/dataset_snapshot", partition=name)
    assert _unsynced(folder) == {"exported"}, "its files are new"
    assert _files(folder) == before
    _materialize(folder, "evals/dataset_snapshot", partition="exported")
    assert _unsynced(folder) == set()
    assert [each for each in _files(folder) if each not in before and "samples" not in each] == [], "the rows are the same"
    _write_rows(folder, "7", "9")
    _materialize(folder, "of_one_code", "versioned")  # Dagster gives the first the same version, made of that of its code
    _evaluate(folder, "one_code", "versioned")
    assert _answers(folder, "one_code") == ["7", "9"]
    assert _answers(folder, "versioned") == ["7", "8"], "its version says that it is the same"
    (folder / "version.txt").write_text("2")
    _materialize(folder, "versioned")
    assert _unsynced(folder) == {"versioned"}
    _evaluate(folder, "versioned")
    assert _answers(folder, "versioned") == ["7", "9"]


def _files(folder: Path) -> list[str]:
    return sorted(str(file) for file in (folder / ".eval_dagster" / "lake").rglob("eval=*/**/*.parquet"))


@pytest.mark.long
def test_the_snapshot_names_the_asset_and_its_version(folder: Path) -> None:
    _materialize(folder, "versioned")
    _materialize(folder, "evals/dataset_snapshot", partition="versioned")
    with open_instance(folder / ".eval_dagster") as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey(["evals", "dataset_snapshot"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["rows_of_versioned"] == dg.MetadataValue.asset(dg.AssetKey("versioned"))
    project = Project.open(config_path=folder / "evals.yaml")
    [row] = read_rows(project.lake, "select distinct dataset_path, dataset_revision from samples where eval = 'versioned'")
    assert row == {"dataset_path": "asset:versioned", "dataset_revision": "1"}
    assert project.lake.require("samples", "dataset_snapshot", "versioned").info.inputs == {"dataset": "asset:versioned@1"}
    repository = ReconstructableRepository.for_file(str(folder / "defs.py"), "defs", str(folder)).get_definition()
    graph = repository.asset_graph
    assert graph.get(dg.AssetKey(["evals", "dataset_definition"])).parent_keys == {
        dg.AssetKey(["support", "tickets"]),
        dg.AssetKey(["exported"]),
        dg.AssetKey(["versioned"]),
    }


@pytest.mark.long
def test_an_asset_without_rows_says_what_to_do_and_other_evals_go_on(folder: Path) -> None:
    done = run_command("run", "--eval", "tickets", "--eval", "own")
    assert done.returncode == 1
    assert "eval tickets: nothing is known of a materialization of the asset support/tickets" in done.stderr
    assert "dg launch --assets support/tickets" in done.stderr
    assert "1 of 2 evals cannot be evaluated; the rest is evaluated" in done.stderr
    assert _answers(folder, "own") == ["7"]
    said = _evaluate(folder, "tickets", fails=True)
    assert "nothing is known of a materialization of the asset support/tickets" in said


WRONG = {
    "by_day": "it has partitions (the newest is 'x'); expected an asset without partitions",
    "a_number": "it is a builtins.int; expected a table of pandas, pyarrow or polars",
    "exported": "if all of its files are one table, name its split: dataset: {asset: {test: exported}}",
}


@pytest.mark.long
@pytest.mark.parametrize("asset", WRONG)
def test_a_value_that_is_no_table_is_an_error(folder: Path, asset: str) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("asset: support/tickets", f"asset: {asset}"))
    _materialize(folder, asset, partition="x" if asset == "by_day" else None)
    assert WRONG[asset] in _materialize(folder, "evals/dataset_snapshot", partition="tickets", fails=True)


@pytest.mark.long
def test_an_asset_of_another_place_is_read_from_its_files_alone(folder: Path) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("asset: support/tickets", "asset: far/away"))
    (folder / "away.csv").write_text("question,answer\n3 + 4 =,seven\n")
    metadata = [{}, {"path": "away.csv"}, {"dagster/uri": (folder / "away.csv").as_uri()}, {"path": "gone.csv"}]
    said = []
    for each in metadata:
        with open_instance(folder / ".eval_dagster") as instance:
            instance.report_runless_asset_event(dg.AssetMaterialization(["far", "away"], metadata=each))
        said.append(_materialize(folder, "evals/dataset_snapshot", partition="tickets", fails=each in (metadata[0], metadata[-1])))
    assert "no code location but its own has its IO manager, and its materialization names no file" in said[0]
    assert _answers(folder, "tickets") == ["seven"]
    assert f"names {folder / 'gone.csv'}; materialize it again" in said[-1]


@pytest.mark.long
def test_a_run_that_makes_the_asset_too_is_refused(folder: Path) -> None:
    _materialize(folder, "support/tickets")
    said = _materialize(folder, "support/tickets", "evals/dataset_snapshot", partition="tickets", fails=True)
    assert "this run makes the asset too, and Dagster does not order the two" in said


@pytest.mark.long
def test_examples_need_an_asset_of_their_own(folder: Path) -> None:
    _materialize(folder, "support/tickets", "exported")
    config = textwrap.dedent(CONFIG).replace("dataset: {asset: support/tickets}", "num_fewshot: 1, dataset: {asset: support/tickets}")
    (folder / "evals.yaml").write_text(config)
    said = _materialize(folder, "evals/dataset_snapshot", partition="tickets", fails=True)
    assert "name an asset for each: dataset: {asset: {test: support/tickets, train: KEY}}" in said
    keys = "{test: support/tickets, train: exported}"
    (folder / "evals.yaml").write_text(config.replace("{asset: support/tickets}", f"{{asset: {keys}}}"))
    _materialize(folder, "evals/dataset_snapshot", partition="tickets")
    project = Project.open(config_path=folder / "evals.yaml")
    rows = read_rows(project.lake, "select split, count(*) as n from samples where eval = 'tickets' group by split order by split")
    assert rows == [{"split": "test", "n": 2}, {"split": "train", "n": 2}]


@pytest.mark.long
def test_a_task_that_loads_its_rows_is_refused(folder: Path) -> None:
    (folder / "evals.yaml").write_text(
        textwrap.dedent(CONFIG).replace('task: "sums.py:Sums", dataset: {asset: support', "task: capitals, dataset: {asset: support")
    )
    _materialize(folder, "support/tickets")
    assert "loads its rows by its own code" in _materialize(folder, "evals/dataset_snapshot", partition="tickets", fails=True)


@pytest.mark.parametrize(
    "value",
    [
        pd.DataFrame({"a": [1, 2]}, index=[5, 7]),
        pd.DataFrame({"a": [1, 2]}).to_dict("records"),
        pa.table({"a": [1, 2]}),
        pa.record_batch({"a": [1, 2]}),
        datasets.Dataset.from_dict({"a": [1, 9, 2]}).select([0, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tables_of_libraries_give_the_same_rows(value: Any) -> None:
    assert {split: table.to_pylist() for split, table in tables_of(value).items()} == {"": [{"a": 1}, {"a": 2}]}
    assert {split: table.to_pylist() for split, table in tables_of({"test": value}).items()} == {"test": [{"a": 1}, {"a": 2}]}


def test_no_column_is_lost() -> None:
    named = pd.DataFrame({"id": ["x", "y"], "a": [1, 2]}).set_index("id")
    assert tables_of(named)[""].to_pylist() == [{"id": "x", "a": 1}, {"id": "y", "a": 2}]
    assert tables_of([{"a": 1}, {"b": 2}])[""].to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    with pytest.raises(DataError, match="no table of columns with one type each"):
        tables_of([{"a": 1}, {"a": "x"}])


@pytest.mark.parametrize(
    "text", ["{}", "{asset: a//b}", "{asset: {}}", "{asset: {te/st: a}}", "{asset: a=b}", "{asset: a}, dataset_revision: " + "0" * 40]
)
def test_a_wrong_key_is_an_error(folder: Path, text: str) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("{asset: support/tickets}", text))
    with pytest.raises(ConfigError, match="tickets"):
        Project.open(config_path=folder / "evals.yaml")
