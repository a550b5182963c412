"""Samples pass through the stages in batches, whose size changes no row."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from few import few
from running_stages import run_all

from eval_dagster.errors import LakeError
from eval_dagster.lake.answers import responses
from eval_dagster.lake.files import table_of
from eval_dagster.lake.format import parquet_files
from eval_dagster.lake.format.parquet_files import iter_rows, read_rows, write_parquet
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import Advance, SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages import inference, outputs, scores, snapshot, stage_table
from eval_dagster.stages.inference import Asker
from eval_dagster.stages.partition import STAGES, Partition, Plan
from eval_dagster.stages.snapshot import SnapshotSamples, read_samples
from eval_dagster.versions.hashes import stable_hash

TASK = """
    from dataclasses import replace

    from eval_dagster.metrics.base import RowMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import Completion, Message, ResponseType, Role
    from eval_dagster.tasks.base import BaseTask

    class Same(RowMetric[Completion]):
        "Whether both answers about a row are one."

        NAME = "same"

        def calculate_row(self, responses):
            first, second = (response.completion_text for response in responses)
            return float(first == second)

    class Pairs(BaseTask[str]):
        NAME, DATASET_PATH, SAMPLE_SPLIT, FEWSHOT_SPLIT = "Pairs", "own", "test", "train"
        RESPONSE_TYPE, METRICS, SUBJECTS, CLUSTER_FIELD = ResponseType.COMPLETION, [ExactMatch, Same], ["odd", "even"], "page"

        def _load_dataset(self, subject):
            first = int(subject == "odd")
            return {
                "test": [{"n": n, "page": n // 3} for n in range(first, 14, 2)],
                "train": [{"n": n, "page": ""} for n in range(20 + first, 30, 2)],
            }

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])

        def _create_samples(self, item, index, subject):
            (chosen,) = super()._create_samples(item, index, subject)
            return [chosen, replace(chosen, messages=[*chosen.messages[:-1], Message(Role.USER, f"Now say {item['n']}.")])]

    class Whole(Pairs):
        NAME, CLUSTER_FIELD = "Whole", None

    class Lost(Pairs):
        NAME, CLUSTER_FIELD = "Lost", "chapter"
"""
ANSWER = """
    def answer(request):
        number = int(request.prompt.split()[-1].rstrip("."))
        if number == 9:
            return "\\ud83d"
        return str(number if number % 4 or "Now" in request.prompt else 0)
"""
CONFIG = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
      pairs: {task: "pairs.py:Pairs", num_fewshot: 1, variants: {loud: {instruction: "Read aloud."}, soft: {instruction: "Read."}}}
      whole: {task: "pairs.py:Whole", limit: 5}
      lost: {task: "pairs.py:Lost"}
"""
TIMES = {
    "latency_s",
    "worker_s",
    "gpu_s",
    "answered_at",
    "run_id",
    "model_seconds",
    "run_seconds",
    "run_peak_memory_mib",
    "worker_s_computed",
}
KEYS = [("pairs", "scripted"), ("whole", "scripted")]


def new_project(folder: Path, config: str = CONFIG) -> Callable[[str], Project]:
    """Write the files of a project, and return a function that opens a home beside them by its name."""
    for name, text in {"pairs.py": TASK, "answer.py": ANSWER, "evals.yaml": config}.items():
        (folder / name).write_text(textwrap.dedent(text))
    return lambda home: Project.open(config_path=folder / "evals.yaml", home=folder / home)


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Project]:
    return new_project(tmp_path)


def partition(project: Project, eval_name: str) -> Partition:
    return Partition(project=project, eval_name=eval_name, model="scripted", run_id="test")


class Made:
    """What the stages of a home have made of all evals, to be compared: rows, versions, counts."""

    def __init__(self, project: Project) -> None:
        results, failures = run_all(project, KEYS)
        assert failures == []
        files = [results["sample_scores", name].file for name, _ in KEYS]
        self.scores = [(read_rows(file.path), {"version": file.info.version, **file.info.counts}) for file in files]
        found = [project.lake.require("responses", "model_outputs", *key) for key in KEYS]
        self.answers = [
            (
                [{name: value for name, value in row.items() if name not in TIMES} for row in read_rows(file.path)],
                {"version": file.info.version, **{name: value for name, value in file.info.counts.items() if name not in TIMES}},
            )
            for file in found
        ]
        found = [project.lake.require("prompts", "rendered_prompts", *key) for key in KEYS]
        self.prompts = [(read_rows(file.path), file.info.version, file.info.counts, file.info.notes) for file in found]
        found = [project.lake.require("samples", "dataset_snapshot", name) for name, _ in KEYS]
        self.samples = [(read_rows(file.path), file.info.version, file.info.counts) for file in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Everything in batches of the usual size, which hold it all."""
    return Made(new_project(tmp_path_factory.mktemp("whole"))("home"))


@pytest.mark.long
def test_all_rows_are_in_one_batch(whole: Made) -> None:
    assert {row["prompt_version"] for row in whole.prompts[0][0]} == {whole.prompts[0][1]}
    assert whole.prompts[0][2]["prompts"] == 14 * 2 * 3
    figures = whole.answers[0][1]
    assert (figures["errors"], figures["escaped"]) == (0, 6), "one row with half of a character, asked twice in three variants"
    (first, _), (second, _) = whole.scores
    assert {row["value"] for row in first} == {0.0, 1.0}
    assert {row["metric"] for row in first} == {"exact_match", "same"}
    assert {row["cluster"] for row in first} == {str(page) for page in range(5)}
    assert {row["variant"] for row in first} == {"default", "loud", "soft"}
    assert all(row["cluster"] == row["source_id"] for row in second)


# Each part of the prompts reads all answers to the parts before it: single prompts take much longer than single rows.
@pytest.mark.long
@few("size, prompts", [(1, 5), (7, 7), (1, 1), (2, 2)], kept=2)
def test_the_size_of_batches_changes_nothing(
    whole: Made, project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch, size: int, prompts: int
) -> None:
    monkeypatch.setattr(parquet_files, "_BATCH", size)
    monkeypatch.setattr(snapshot, "_BATCH", size)
    monkeypatch.setattr(snapshot, "_MOST_HELD", size)
    monkeypatch.setattr(scores, "_BATCH", size)
    monkeypatch.setattr(stage_table, "_FIRST_ROWS", size)
    monkeypatch.setattr(stage_table, "_MOST_ROWS", size)
    monkeypatch.setattr(stage_table, "_HELD_BYTES", 0)
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", prompts)
    monkeypatch.setattr(responses, "_LARGE_BYTES", 0)
    parts = Made(project("parts"))
    assert parts.scores == whole.scores
    assert parts.answers == whole.answers
    assert parts.prompts == whole.prompts
    assert parts.samples == whole.samples


class Counting(SilentReporter):
    """Keeps what is tracked."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked: list[str] = []

    @contextmanager
    def track(self, description: str, **settings: Any) -> Iterator[Advance]:
        self.tracked.append(f"{description}: {settings['total']} {settings['unit']}")
        with super().track(description, **settings) as advance:
            yield advance


@pytest.mark.long
def test_prompts_are_asked_in_parts_that_are_told(project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", 60)
    reporter = Counting()
    list(evaluate(project("home"), KEYS, stages=set(STAGES), run_id="test", reporter=reporter))
    told = [each for each in reporter.tracked if each.startswith(("generat", "answer", "load"))]
    assert told == [
        "load scripted: 1 model",
        "generate pairs scripted, prompts 1 to 60 of 104: 60 requests",
        "generate scripted, first answer of 2 evals, prompts 61 to 104 of 104: 1 answer",
        "generate pairs scripted, prompts 61 to 104 of 104: 24 requests",
        "generate whole scripted, prompts 61 to 104 of 104: 20 requests",
    ]


@pytest.mark.long
def test_the_characters_of_a_part_are_bounded(project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = project("home")
    run_all(opened, KEYS[:1])
    monkeypatch.setattr(outputs, "_MOST_CHARACTERS", 100)
    where = partition(opened, "pairs")
    prompts, _ = scores.require_outputs(where)
    asking = outputs._Asking(partition=where, prompts=prompts, plan=Plan(fingerprint="", made_of={}, current=None), rows=None, counts=None)
    parts = [[len(row["prompt"]) for _, row in part] for part in outputs._parts((asking, row) for row in outputs._prompts(asking))]
    assert sum(map(len, parts)) == 14 * 2 * 3
    assert all(sum(part[:-1]) < 100 <= sum(part) for part in parts[:-1]), "no part goes on after it is full"


@pytest.mark.long
def test_a_model_that_fails_leaves_the_parts_after_it_alone(project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", 10)
    opened, asked = project("home"), list[int]()
    send = Asker._send

    def fail(self: Asker, requests: Any, claim: Any, part: str) -> None:
        asked.append(len(requests))
        if len(asked) == 3:
            self.run.failure = "the machine burnt down"
        else:
            send(self, requests, claim, part)

    monkeypatch.setattr(Asker, "_send", fail)
    _, failures = run_all(opened, KEYS)
    assert asked == [10, 10, 10]
    assert [(each.stage, each.eval_name, "burnt down" in each.message) for each in failures if each.stage == "model_outputs"] == [
        ("model_outputs", "pairs", True),
        ("model_outputs", "whole", True),
    ]
    monkeypatch.setattr(Asker, "_send", send)
    counts = run_all(opened, KEYS)[0]["model_outputs", "pairs"].file.info.counts
    assert (counts["requests_computed"], counts["requests_cached"]) == (64, 20), "what was answered is not asked again"


SHARED = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
      first: {task: "pairs.py:Pairs", num_fewshot: 1, limit: 3}
      second: {task: "pairs.py:Pairs", num_fewshot: 1, limit: 3}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Callable[[str], Project]:
    """Two evals with the same 12 requests."""
    return new_project(tmp_path, SHARED)


def counts_of_shared(opened: Project) -> list[dict[str, float]]:
    assert run_all(opened, [("first", "scripted"), ("second", "scripted")])[1] == []
    found = [opened.lake.require("responses", "model_outputs", name, "scripted").info.counts for name in ("first", "second")]
    return [{name: count for name, count in each.items() if name not in TIMES} for each in found]


@pytest.fixture(scope="module")
def counts_without_parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return counts_of_shared(new_project(tmp_path_factory.mktemp("shared"), SHARED)("home"))


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 5, 12])
def test_requests_that_evals_share_are_counted_alike_in_parts(
    size: int, counts_without_parts: list[dict[str, float]], shared: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [(each["requests_computed"], each["requests_cached"], each["run_requests"]) for each in counts_without_parts]
    assert asked == [(12, 0, 12), (0, 12, 12)]
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", size)
    assert counts_of_shared(shared("home")) == counts_without_parts


@pytest.mark.long
def test_a_request_that_failed_is_not_sent_again_in_a_later_part(shared: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    timed = inference._timed

    def failing(loaded: Any, requests: Any) -> Any:
        for request, response in timed(loaded, requests):
            sent.append(request.request_id)
            yield request, replace(response, text=(), finish_reason=(), output_tokens=(), error="lost", retryable=True)

    monkeypatch.setattr(inference, "_timed", failing)
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", 12)
    opened = shared("home")
    run_all(opened, [("first", "scripted"), ("second", "scripted")])
    assert len(sent) == len(set(sent)) == 12
    found = [opened.lake.require("responses", "model_outputs", name, "scripted").info.counts for name in ("first", "second")]
    assert [each["retryable_errors"] for each in found] == [12, 12]


@pytest.mark.long
def test_an_eval_before_prompts_that_cannot_be_read_has_its_result(
    project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_MOST_PROMPTS", 10)
    read = outputs.iter_rows

    def lost(path: Path, columns: Any = None) -> Iterator[Any]:
        for number, row in enumerate(read(path, columns)):
            if columns == outputs._ASKED and "whole" in str(path) and number == 12:
                raise LakeError("the disk is gone")
            yield row

    monkeypatch.setattr(outputs, "iter_rows", lost)
    results, failures = run_all(project("home"), KEYS)
    assert ("task_metrics", "pairs") in results
    assert [(each.stage, each.eval_name, each.message) for each in failures] == [("model_outputs", "whole", "the disk is gone")]


def test_a_file_of_which_a_part_cannot_be_read_is_not_left(tmp_path: Path) -> None:
    table = table_of("samples", [{"eval": "e", "sample_id": "a"}])

    def parts() -> Iterator[Any]:
        yield table
        raise LakeError("damaged")

    with pytest.raises(LakeError, match="damaged"):
        write_parquet(tmp_path / "made.parquet", parquet_files.TableParts(schema=table.schema, read=parts))
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_too_large_for_the_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_table, "_MOST_ROWS", 500)
    monkeypatch.setattr(stage_table, "_HELD_BYTES", 1000)
    made = stage_table.StageTable("samples", tmp_path / "home", ["sample_id"])
    rows = [{"eval": "e", "sample_id": f"{number}", "row": "x" * 100, "row_index": number} for number in range(5000)]
    for row in rows:
        made.add(row)
    parts = list(made.rows(dataset_version="v").read())
    assert len(parts) > 3, "parts"
    assert [row["row_index"] for part in parts for row in part.to_pylist()] == list(range(5000))
    assert {row["dataset_version"] for part in parts for row in part.to_pylist()} == {"v"}
    assert list((tmp_path / "home").iterdir()) == []
    assert made.version() == stable_hash([[row["sample_id"]] for row in rows])
    assert [part.num_rows for part in stage_table.StageTable("samples", tmp_path).rows().read()] == [0]


def test_a_cluster_field_that_no_row_has_is_named(project: Callable[[str], Project]) -> None:
    _, [failure] = run_all(project("home"), [("lost", "scripted")])
    assert "no row has the field 'chapter' of the task's CLUSTER_FIELD; the rows have: n, page" in failure.message


@pytest.mark.long
def test_samples_are_found_in_any_order(project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = project("home")
    run_all(opened, KEYS)
    samples = read_samples(opened, "pairs")
    names = [sample.sample_id for sample in samples]
    monkeypatch.setattr(snapshot, "_BATCH", 3)
    for most in (100, 2):  # passes
        monkeypatch.setattr(snapshot, "_MOST_PASSES", most)
        lazily = SnapshotSamples(partition(opened, "pairs").snapshot())
        assert (list(lazily), len(lazily)) == (names, len(names))
        for order in (names, names, names[::-1], [*names[::2], *names[1::2]], names[:1] * 3, [names[-1], names[0], names[-1]]):
            assert [lazily[name].sample_id for name in order] == order
        assert lazily == {sample.sample_id: sample for sample in samples}
        assert "another" not in lazily
        assert names[0] in lazily


@pytest.mark.long
def test_few_passes_are_enough_in_the_order_of_the_snapshot(project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = project("home")
    run_all(opened, KEYS[:1])
    monkeypatch.setattr(snapshot, "_BATCH", 2)
    passes: list[object] = []
    monkeypatch.setattr(snapshot, "iter_rows", lambda path, columns: passes.append(path) or iter_rows(path, columns))
    list(scores._score_rows(partition(opened, "pairs"), *scores.require_outputs(partition(opened, "pairs"))))
    assert len(passes) <= 1 + 3, "one for the cluster field, and one for each variant"


@pytest.mark.long
def test_answers_are_found_in_another_order_and_a_lacking_one_is_named(project: Callable[[str], Project]) -> None:
    opened = project("home")
    run_all(opened, KEYS)
    where = partition(opened, "pairs")
    prompts, answers = scores.require_outputs(where)
    rows, scored = read_rows(answers.path), list(scores._score_rows(where, prompts, answers))
    write_parquet(answers.path, table_of("responses", rows[::-1]), answers.info)
    assert list(scores._score_rows(where, prompts, answers)) == scored
    write_parquet(answers.path, table_of("responses", rows[:-1]), answers.info)
    with pytest.raises(LakeError, match=f"has no answer to the sample {rows[-1]['sample_id']}; materialize model_outputs"):
        list(scores._score_rows(where, prompts, answers))
