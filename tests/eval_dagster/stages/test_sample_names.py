"""Rows keep the names that their owners gave them, from the snapshot to every relation of samples."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.project import Project
from eval_dagster.results.labels import export_labels, import_labels
from eval_dagster.results.materializations import MaterializationName

TASK = """
    from eval_dagster import AccuracyLoglikelihood, BaseTask, ExactMatch, ResponseType

    class Tickets(BaseTask[str]):
        NAME = "Tickets"
        DATASET_PATH = "rows"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        {id_field}

        def _load_dataset(self, subject):
            return {{"test": [
                {{"ticket_id": "T-1", "question": "a?", "gold": " yes"}},
                {{"ticket_id": 2, "question": "b?", "gold": " no"}},
                {{"ticket_id": None, "question": "c?", "gold": " no"}},
                {{"ticket_id": "{last}", "question": "d?", "gold": " no"}},
            ]}}

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["gold"]

        def _get_possible_completions(self, item):
            return [" yes", " no"]
"""
DOCS = """
    from eval_dagster import AccuracyLoglikelihood, Doc, doc_task

    CHOICES = [" yes", " no"]

    def rows(subject):
        return {"test": [{"n": 1}, {"n": 2}]}

    @doc_task(dataset_path="rows", sample_split="test", metrics=[AccuracyLoglikelihood], load_rows=rows)
    def tickets(row):
        first = Doc(id=f"D-{row['n']}", query="a?", choices=CHOICES, gold_index=0)
        return [first, Doc(query="b?", choices=CHOICES, gold_index=1)]
"""
CONFIG = """
    models:
      one: {backend: scripted, function: "answer.py:answer"}
      other: {backend: scripted, function: "other.py:answer"}
    evals:
      tickets: {task: "tickets.py:TASK"}
"""
OTHER = """
    def answer(request):
        return [float(len(choice)) for choice in request.choices]
"""
PARTITIONS = [("tickets", "one"), ("tickets", "other")]
RELATIONS = ("samples", "prompts", "responses", "scores", "scores_history", "sample_results", "disagreements", "confident_errors")


def _project(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], *, id_field: bool = True, last: str = "T-4"
) -> Project:
    write("other.py", OTHER)
    write("tickets.py", TASK.format(id_field='ID_FIELD = "ticket_id"' if id_field else "", last=last))
    return open_project(CONFIG.replace("TASK", "Tickets"))


def _names(project: Project, relation: str) -> dict[str, str | None]:
    """Sample id -> name in a relation: the newest, where a relation has every result."""
    newest = "order by materialized_at" if relation.endswith("_history") else ""
    return {row["sample_id"]: row["sample_name"] for row in read_rows(project.lake, f"select * from {relation} {newest}")}


@pytest.mark.long
def test_the_id_field_names_the_samples_in_every_relation(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], asked: Callable[[], list[str]]
) -> None:
    project = _project(open_project, write, id_field=False)
    run_all(project, PARTITIONS)
    unnamed = {relation: _names(project, relation) for relation in RELATIONS}
    assert {name for names in unnamed.values() for name in names.values()} == {None}
    requests = asked()
    project = _project(open_project, write)
    results, failures = run_all(project, PARTITIONS)
    assert not failures
    assert not asked(), "a name is no part of a request"
    assert requests
    for relation in RELATIONS:
        names = _names(project, relation)
        assert names.keys() == unnamed[relation].keys(), "ids are hashes of the content, as before"
        assert len(set(names.values())) == len(names), relation
        assert set(names.values()) <= {"T-1", "2", None, "T-4"}, relation
    assert not results["rendered_prompts", "tickets"].warnings
    again, _ = run_all(project, PARTITIONS)
    assert all(result.cached for result in again.values())


def test_every_table_of_samples_has_the_column() -> None:
    without = [name for name, schema in TABLES.items() if "sample_id" in schema.names and "sample_name" not in schema.names]
    assert not without


@pytest.mark.long
def test_errors_name_their_samples(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    project = _project(open_project, write)
    write("answer.py", "def answer(request):\n    raise ValueError('down')\n")
    run_all(project, PARTITIONS[:1])
    assert set(_names(project, "errors").values()) == {"T-1", "2", None, "T-4"}


@pytest.mark.long
def test_a_name_of_two_rows_is_said_and_not_fatal(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    project = _project(open_project, write, last="T-1")
    for _ in range(2):  # also where the prompts are current
        results, failures = run_all(project, PARTITIONS[:1])
        assert not failures
        (warning,) = results["rendered_prompts", "tickets"].warnings
        assert "1 name belongs to several samples" in warning
        assert "'T-1'" in warning
    assert sorted(filter(None, _names(project, "scores").values())) == ["2", "T-1", "T-1"]


def test_a_field_that_no_row_has_is_an_error_that_lists_the_fields(
    open_project: Callable[..., Project], write: Callable[[str, str], Path]
) -> None:
    write("tickets.py", TASK.format(id_field='ID_FIELD = "number"', last="T-4"))
    write("other.py", OTHER)
    _, failures = run_all(open_project(CONFIG.replace("TASK", "Tickets")), PARTITIONS[:1])
    assert [failure.stage for failure in failures] == ["dataset_snapshot"]
    for part in ("'number'", "ID_FIELD", "ticket_id, question"):
        assert part in failures[0].message


@pytest.mark.long
@pytest.mark.parametrize("has_field", [False, True])
def test_the_id_of_a_doc_names_its_question(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], *, has_field: bool
) -> None:
    write("tickets.py", DOCS.replace("@doc_task(", '@doc_task(id_field="n", ' if has_field else "@doc_task("))
    write("other.py", OTHER)
    project = open_project(CONFIG.replace("TASK", "tickets"))
    _, failures = run_all(project, PARTITIONS)
    assert not failures
    for relation in ("prompts", "responses", "scores"):
        names = _names(project, relation)
        second = {name for sample, name in names.items() if sample.endswith(".1")}
        assert set(names.values()) - second == {"D-1", "D-2"}
        assert second == ({"1", "2"} if has_field else {None}), "of a Doc without an id it is the name of the row"
    assert set(_names(project, "samples").values()) == ({"1", "2"} if has_field else {None})


@pytest.mark.long
def test_labels_of_people_have_the_names(open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path) -> None:
    project = _project(open_project, write)
    run_all(project, PARTITIONS[:1])
    file = tmp_path / "labels.csv"
    export_labels(project.lake, "tickets", MaterializationName(model="one"), file, count=4, seed=0)
    heading, *lines = file.read_text("utf-8-sig").splitlines()
    assert heading.startswith('"eval","model","materialized_at","sample_id","sample_name",')
    assert sum('"T-1"' in line for line in lines) == 1
    filled = [line.removesuffix('"",""') + '"good",""' for line in lines]
    file.write_text("\n".join([heading, *filled]))
    import_labels(project.lake, file, by="Ada")
    publish(project.lake)
    assert set(_names(project, "human_labels").values()) == {"T-1", "2", None, "T-4"}
