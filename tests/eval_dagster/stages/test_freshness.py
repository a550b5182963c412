"""What a dry run says is what the run then makes: cell by cell, after each kind of change."""

import importlib
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from few import few
from running_stages import run_all

from eval_dagster.freshness import PartitionState, partition_states
from eval_dagster.lake.format.parquet_files import read_info
from eval_dagster.lake.records import add_attempts, read_attempts
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult

CONFIG = """
    models:
      one: {backend: scripted, function: "answer.py:answer"}
      two: {backend: scripted, default: " no"}
    evals:
      quiz: {task: "quiz_task.py:Quiz", limit: 3}
      twin: {task: "quiz_task.py:Quiz", limit: 2}
      capitals: {task: capitals, limit: 2}
    suites:
      nightly: {evals: [quiz], models: [one]}
"""
METRIC = """
    from eval_dagster.metrics.base import CompletionMetric

    FACTOR = 1

    class Length(CompletionMetric):
        NAME = "length"

        def calculate(self, response):
            return len(response.completion_text) * FACTOR
"""
TASK = """
    from quiz_metric import Length

    from eval_dagster import BaseTask, ResponseType

    class Quiz(BaseTask[str]):
        NAME = "Quiz"
        DATASET_PATH = "./quiz"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [Length]
        SUBJECTS = ["default"]

        def _get_instruction_text(self, item):
            return f"Say {item['word']}."

        def _get_ground_truth(self, item):
            return item["word"]
"""
ROWS = "word\nred\ngreen\nblue\nblack\nwhite\n"
QUIZ = ("quiz", "one")


def causes_of(stages: Iterable[str], *causes: str) -> dict[str, list[str]]:
    return {stage: list(causes) for stage in stages}


Write = Callable[[str, str], Path]
Change = Callable[[Write], str]
"""Changes files, and returns the configuration from then on."""


def keep(_: Write) -> str:
    return CONFIG


def prompt(write: Write) -> str:
    write("quiz_task.py", TASK.replace("Say {", "Spell {"))
    return CONFIG


def metric(write: Write) -> str:
    write("quiz_metric.py", METRIC.replace("FACTOR = 1", "FACTOR = 10"))
    return CONFIG


def limit(_: Write) -> str:
    return CONFIG.replace("limit: 3", "limit: 4")


def row(write: Write) -> str:
    write("quiz/test.csv", ROWS.replace("green", "grey"))
    return CONFIG


def touched(write: Write) -> str:
    write("quiz/test.csv", ROWS)
    return CONFIG


def other_rows(write: Write) -> str:
    write("quiz/test.csv", ROWS + "pink\n")
    return CONFIG


def model(_: Write) -> str:
    return CONFIG.replace('default: " no"', 'default: " yes"')


def model_settings(_: Write) -> str:
    return CONFIG.replace('two: {backend: scripted, default: " no"}', 'two: {backend: scripted, default: " no", prompt_format: identity}')


def tags(_: Write) -> str:
    return CONFIG.replace('default: " no"}', 'default: " no", reasoning_tags: ["<a>", "</a>"]}')


def seed(_: Write) -> str:
    return CONFIG.replace("limit: 3}", "limit: 3, seed: 5}")


def suite(_: Write) -> str:
    return CONFIG.replace("evals: [quiz]", "evals: [quiz, capitals]")


def new_eval(_: Write) -> str:
    return CONFIG.replace("capitals: {task", "third: {task: quiz_task.py:Quiz, limit: 5}\n      capitals: {task")


CHANGES: Mapping[Change, tuple[tuple[str, str], Mapping[str, list[str]]]] = {
    keep: (QUIZ, {}),
    prompt: (QUIZ, causes_of(list(STAGES)[1:], "prompt")),
    metric: (QUIZ, {"rendered_prompts": ["code"], "sample_scores": ["metric"], "task_metrics": ["metric"]}),
    limit: (QUIZ, causes_of(STAGES, "limit")),
    row: (QUIZ, causes_of(STAGES, "data")),
    touched: (QUIZ, {"dataset_snapshot": ["data"]}),
    other_rows: (QUIZ, {"dataset_snapshot": ["data"]}),  # they are beyond the limit
    model: (("quiz", "two"), causes_of(list(STAGES)[2:], "model")),
    tags: (("quiz", "two"), {"model_outputs": ["model settings"]}),
    model_settings: (("quiz", "two"), causes_of(list(STAGES)[1:], "model settings")),
    seed: (QUIZ, {"rendered_prompts": ["settings"]}),
    suite: (QUIZ, {}),
}
"""For each change a partition with the causes by stage that the dry run names; stages that are not named stay as they are."""


MODULES = dict(zip(STAGES, ("snapshot", "prompts", "outputs", "scores", "metrics"), strict=True))


@pytest.fixture
def project(open_project: Callable[..., Project], write: Write, tmp_path: Path) -> Callable[[str], Project]:
    (tmp_path / "quiz").mkdir()
    write("quiz/test.csv", ROWS)
    write("quiz_metric.py", METRIC)
    write("quiz_task.py", TASK)
    return open_project


def partitions(project: Project) -> list[tuple[str, str]]:
    return [(eval_name, model_name) for model_name in project.config.models for eval_name in project.config.evals]


def looked(project: Project) -> dict[tuple[str, str], PartitionState]:
    """The states, in the order of a run; nothing in the home changes by that."""
    files = tree(project.home)
    states = list(partition_states(project, list(project.config.evals), list(project.config.models)))
    assert tree(project.home) == files
    return {(state.eval, state.model): state for state in states}


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def made(project: Project) -> dict[tuple[str, str, str], bool]:
    """What a run makes: for each eval, model and stage, whether it was made."""
    found: dict[tuple[str, str, str], bool] = {}
    for outcome in evaluate(project, partitions(project), stages=set(STAGES), run_id="test", reporter=SilentReporter()):
        assert isinstance(outcome, StageResult), outcome
        for model_name in [outcome.model] if outcome.model else project.config.models:
            found[outcome.eval_name, model_name, outcome.stage] = not outcome.cached
    return found


@pytest.mark.long
@few("change", CHANGES, kept=[keep, prompt, row, model], ids=lambda change: change.__name__)
def test_a_dry_run_says_what_the_run_makes(
    change: Change, project: Callable[[str], Project], write: Write, asked: Callable[[], list[str]]
) -> None:
    run_all(project(CONFIG), partitions(project(CONFIG)))
    asked()
    partition, causes = CHANGES[change]
    config = change(write)
    states = looked(project(config))
    said = {(*key, stage): cell.is_made for key, state in states.items() for stage, cell in state.cells.items()}
    assert said == made(project(config))
    assert sum(state.estimate.requests or 0 for (_, name), state in states.items() if name == "one") == len(asked())
    named = {stage: list(cell.causes) for stage, cell in states[partition].cells.items() if cell.causes}
    assert named == causes
    again = looked(project(config))
    assert all(state.is_fresh for state in again.values()), again


@pytest.mark.long
@few("stage", STAGES, kept=["sample_scores"])
def test_changed_code_of_a_stage_of_the_package_is_a_cause(
    stage: str, project: Callable[[str], Project], asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade: the functions of one stage have another version."""
    run_all(project(CONFIG), partitions(project(CONFIG)))
    asked()
    module = importlib.import_module(f"eval_dagster.stages.{MODULES[stage]}")
    version = module.code_version
    monkeypatch.setattr(module, "code_version", lambda *functions: version(*functions) + " of another release")
    states = looked(project(CONFIG))
    expected = causes_of([stage, "task_metrics"] if stage == "sample_scores" else [stage], "code")
    for state in states.values():
        assert {name: list(cell.causes) for name, cell in state.cells.items() if cell.causes} == expected, state
    assert {(*key, name): cell.is_made for key, state in states.items() for name, cell in state.cells.items()} == made(project(CONFIG))
    assert not asked()


@pytest.mark.long
def test_before_the_first_run_everything_is_missing(
    project: Callable[[str], Project], asked: Callable[[], list[str]], tmp_path: Path
) -> None:
    states = looked(project(CONFIG))
    assert not (tmp_path / "home").exists()
    assert {cell.state for state in states.values() for cell in state.cells.values()} == {"missing"}
    # The two samples of `twin` are among those of `quiz`, whose requests are sent once.
    assert [states[name, "one"].estimate.requests for name in ("quiz", "twin", "capitals")] == [3, 0, 12]
    run_all(project(CONFIG), partitions(project(CONFIG)))
    assert len(asked()) == 15


@pytest.mark.long
def test_a_new_eval_of_known_requests_sends_none_of_them(project: Callable[[str], Project], write: Write) -> None:
    run_all(project(CONFIG), partitions(project(CONFIG)))
    state = looked(project(new_eval(write)))["third", "one"]
    assert {cell.state for cell in state.cells.values()} == {"missing"}
    assert state.estimate.requests == 2


BROKEN = CONFIG.replace("    suites:", "      broken: {task: 'broken_task.py:Quiz'}\n    suites:").replace(
    "    evals:", "      lost: {backend: scripted, function: 'broken_model.py:answer'}\n    evals:", 1
)


@pytest.mark.long
def test_what_is_broken_has_its_reason_and_costs_no_other(project: Callable[[str], Project], write: Write) -> None:
    for name in ("broken_task.py", "broken_model.py"):
        write(name, "import no_such_package")
    run_all(project(CONFIG), partitions(project(CONFIG)))
    states = looked(project(BROKEN))
    assert states["quiz", "one"].is_fresh
    broken = states["broken", "one"]
    assert [cell.state for cell in broken.cells.values()] == ["broken", *["not reached"] * 4]
    assert "no_such_package" in broken.cells["dataset_snapshot"].detail
    lost = states["quiz", "lost"]
    assert [cell.state for cell in lost.cells.values()] == ["fresh", "missing", "broken", "not reached", "not reached"]
    assert "no_such_package" in lost.cells["model_outputs"].detail
    assert not broken.is_known
    assert not lost.is_known
    assert lost.estimate.requests == 0


@pytest.mark.long
def test_errors_that_may_not_come_again_are_asked_again(project: Callable[[str], Project], write: Write) -> None:
    write("answer.py", "def answer(request):\n    raise ValueError('no answer')\n")
    config = CONFIG.replace("twin: {task", "# twin: {task")
    first = project(config)
    run_all(first, partitions(first))
    state = looked(project(config))["quiz", "one"]
    assert state.cells["model_outputs"].causes == ["errors"]
    assert state.estimate.requests == 3
    assert {state.cells[stage].state for stage in ("sample_scores", "task_metrics")} == {"cannot tell"}
    assert not state.is_known


@pytest.mark.long
def fetching(indent: str, otherwise: str) -> str:
    """Lines of a hook that asks a server, and does something else if none answers."""
    lines = [
        "import urllib.request",
        "try:",
        "    urllib.request.urlopen('http://127.0.0.1:9/file')",
        "except OSError:",
        f"    {otherwise}",
    ]
    return "".join(f"{indent}{line}\n" for line in lines)


@pytest.mark.long
def test_rows_that_code_brings_are_read_without_a_network(project: Callable[[str], Project], write: Write) -> None:
    fetches = TASK.replace(
        "        def _get_instruction_text",
        "        def _load_dataset(self, subject):\n"
        + fetching(" " * 12, "return {'test': [{'word': word} for word in ('red', 'green')]}")
        + "\n        def _get_instruction_text",
    )
    write("quiz_task.py", fetches)
    run_all(project(CONFIG), partitions(project(CONFIG)))
    assert looked(project(CONFIG))["quiz", "one"].is_fresh
    write("quiz_task.py", fetches.replace("Say {", "Spell {"))
    opened = project(CONFIG)
    state = looked(opened)["quiz", "one"]
    assert state.cells["dataset_snapshot"].state == "stale"
    assert {cell.state for cell in list(state.cells.values())[1:]} == {"cannot tell"}
    assert "have to be fetched" in state.cells["rendered_prompts"].detail
    [fetched] = partition_states(opened, ["quiz"], ["one"], fetches=True)
    assert fetched.is_known
    assert fetched.cells["rendered_prompts"].causes == ["prompt"]


@pytest.mark.long
def test_prompts_are_rendered_without_a_network(project: Callable[[str], Project], write: Write) -> None:
    asking = "return f\"Say {item['word']}.\""
    fetches = TASK.replace(f"            {asking}\n", fetching(" " * 12, asking))
    assert fetches != TASK
    write("quiz_task.py", fetches)
    run_all(project(CONFIG), partitions(project(CONFIG)))
    assert looked(project(CONFIG))["quiz", "one"].is_fresh
    write("quiz_task.py", fetches.replace("Say {", "Spell {"))
    state = looked(project(CONFIG))["quiz", "one"]
    assert (state.cells["rendered_prompts"].state, state.cells["rendered_prompts"].causes) == ("stale", ["prompt"])
    assert state.cells["model_outputs"].state == "cannot tell"
    assert "have to be fetched" in state.cells["model_outputs"].detail


@pytest.mark.long
def test_a_result_of_an_earlier_release_says_what_it_knows(project: Callable[[str], Project], write: Write) -> None:
    """Its files do not record what they are made of; of their inputs they do."""
    opened = project(CONFIG)
    run_all(opened, partitions(opened))
    for path in opened.lake.root.rglob("eval=quiz/**/*.parquet"):
        table, info = pq.read_table(path, partitioning=None), read_info(path)
        path.unlink()
        opened.lake.add(path, table, replace(info, made_of={}))
    cells = looked(project(row(write)))["quiz", "one"].cells
    assert cells["dataset_snapshot"].causes == ["unknown"]
    assert cells["rendered_prompts"].causes == ["unknown"]
    assert cells["rendered_prompts"].is_made
    write("quiz/test.csv", ROWS)


@pytest.mark.long
def test_time_and_cost_are_by_the_history_of_the_model(project: Callable[[str], Project]) -> None:
    run_all(project(CONFIG), partitions(project(CONFIG)))
    opened = project(CONFIG)
    past = [attempt for attempt in read_attempts(opened.lake) if attempt.eval == "quiz" and attempt.model == "one"]
    append_cost = [replace(past[0], run_id="priced", cost=0.03, model_seconds=6.0)]
    add_attempts(opened.lake, append_cost)
    estimate = looked(project(limit(lambda *_: Path())))["quiz", "one"].estimate
    assert estimate.requests == 1
    assert estimate.seconds == pytest.approx((6.0 + (past[0].model_seconds or 0)) / 6, abs=0.01)
    assert estimate.cost == pytest.approx(0.01)
    assert "of this eval" in estimate.basis


def test_no_server_is_asked(project: Callable[[str], Project]) -> None:
    """Nothing is known of it, so that the requests are estimated by the samples."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        served = f'      far: {{backend: openai, base_url: "{url}", model: m, prompt_format: chat}}\n    evals:'
        opened = project(CONFIG.replace("    evals:", served, 1))
        [state] = partition_states(opened, ["quiz"], ["far"])
        with pytest.raises(TimeoutError):
            server.accept()
    assert {cell.state for cell in state.cells.values()} == {"missing"}
    assert "a run asks its server" in state.cells["model_outputs"].detail
    assert (state.estimate.requests, state.estimate.is_exact) == (3, False)


def test_a_dataset_that_is_elsewhere_is_not_fetched(project: Callable[[str], Project]) -> None:
    config = CONFIG.replace("    suites:", "      far: {task: arc_easy, limit: 2}\n    suites:")
    [state] = partition_states(project(config), ["far"], ["one"])
    assert {cell.state for cell in state.cells.values()} == {"missing"}
    assert "have to be fetched first" in state.cells["rendered_prompts"].detail
    assert state.estimate.requests is None
