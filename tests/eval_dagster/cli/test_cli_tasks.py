"""The command `tasks`: all that evals can use, and one of them with an example and its checks."""

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from commands import run_command

from eval_dagster.cli.task_list import list_tasks
from eval_dagster.cli.task_page import PromptFormat, show_task
from eval_dagster.errors import ConfigError, DataError, DatasetNotFoundError, TaskDefinitionError, UsageError
from eval_dagster.task_defs import TASKS

EVALS = """
    models: {}
    evals:
      sums: {task: "quizzes/mine.py:Sums", num_fewshot: 2, subjects: [multiplication]}
      capitals: {task: capitals, num_fewshot: 2}
      words: {task: gsm8k, num_fewshot: 1}
      customary: {task: gsm8k}
"""
TASK_FILE = '''
    from dataclasses import replace

    from eval_dagster import Doc, ExactMatch, doc_task
    from eval_dagster.metrics.base import CompletionMetric, RowMetric
    from eval_dagster.records import Loglikelihood, Message, ResponseType, Role
    from eval_dagster.tasks.base import BaseTask
    from eval_dagster.task_defs.arithmetic import Arithmetic
    from eval_dagster.task_defs.capitals import CapitalsChoice

    class Sums(Arithmetic):
        """Sums that are
        very easy.

        More of no interest.
        """
        NAME = "Easy sums"

    class Wide(Sums):
        def _get_fewshot_target_text(self, item):
            return f"  {item['answer']}"

    class Folder(Sums):
        DATASET_PATH = "./rows"
        SUBJECTS = ["default"]
        _load_dataset = BaseTask._load_dataset

    class Twice(CapitalsChoice):
        LANGUAGE = ["en", "en", "fr"]
        HEADLINE_METRIC = CapitalsChoice.METRICS[1]

        def _create_samples(self, item, index, subject):
            (made,) = super()._create_samples(item, index, subject)
            return [made, replace(made, messages=[Message(Role.USER, "Say a city.\\\\nA:")])]

    class OfRow(RowMetric[Loglikelihood]):
        NAME = "of_row"

    class Together(Twice):
        HEADLINE_METRIC = None
        METRICS = [*CapitalsChoice.METRICS, OfRow]

    class Silent(CapitalsChoice):
        def _create_samples(self, item, index, subject):
            return []

    class Fieldless(CapitalsChoice):
        def _get_instruction_text(self, item):
            return item["lost"]

    class Open(Sums):
        def __init__(self, num_fewshot: int = 0) -> None:
            super().__init__(num_fewshot)
            self.max_tokens = None

    class Empty(Sums):
        METRICS = []

    class Tickets(BaseTask[str]):
        NAME = "Tickets"
        DATASET_PATH = "./tickets"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["default"]
        ID_FIELD = "ticket_id"

        def _get_instruction_text(self, item):
            return f"Which team takes {item['text'].strip()}?"

        def _get_ground_truth(self, item):
            return item["team"]

    class Partly(CompletionMetric):
        NAME = "partly"

        def calculate(self, response):
            return float(response.completion_text.strip() in response.ground_truths)

    class Within(Partly):
        NAME = "within"
        BOUNDS = (0.0, 1.0)

    class Scored(Folder):
        METRICS = [Partly, Within, ExactMatch]

    class Mistyped(Tickets):
        ID_FIELD = "tickt_id"

    @doc_task(dataset_path="./rows", sample_split="test", metrics=[ExactMatch])
    def short(row):
        return Doc(query="What is the sum?", choices=[str(row["answer"])], gold_index=0, generation_size=8)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with evals.yaml and task files, in which the commands run."""
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(EVALS))
    (tmp_path / "quizzes").mkdir()
    (tmp_path / "quizzes" / "mine.py").write_text(textwrap.dedent(TASK_FILE))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "test.jsonl").write_text('{"a": 1, "sign": "+", "b": 2, "answer": 3}\n')
    for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME", "EVAL_DAGSTER_DATASETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the page of a task prints, its white space folded."""

    def show(name: str, shots: int | None = None, prompt_format: PromptFormat = PromptFormat.PLAIN) -> str:
        show_task(name, shots, prompt_format)
        return " ".join(capsys.readouterr().out.split())

    return show


def test_the_list_has_the_registry_and_the_tasks_named_by_file(capsys: pytest.CaptureFixture[str]) -> None:
    list_tasks()
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert names[2 : len(TASKS) + 3] == [*TASKS, "quizzes/mine.py:Sums"]
    mmlu = next(index for index, line in enumerate(lines) if line.startswith("mmlu "))
    assert lines[mmlu].split()[1:] == ["loglikelihoods", "5,", "first", "of", "dev", "accuracy"]
    assert lines[mmlu + 1].strip() == f"cais/mmlu@{TASKS['mmlu'].DATASET_REVISION:.8} · 57 subjects · en · MIT"


def test_the_list_needs_no_evals_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "evals.yaml").unlink()
    list_tasks()
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in TASKS)
    assert not (folder / ".eval_dagster").exists()


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ("task: capitals", "task: capitls", "there is no task 'capitls'; did you mean 'capitals'"),
        ("mine.py:Sums", "mine.py:Empty", "quizzes/mine.py:Empty: .*Empty.* has an empty METRICS"),
    ],
)
def test_what_is_wrong_is_told_after_the_list_of_all_others(
    folder: Path, capsys: pytest.CaptureFixture[str], wrong: str, kind: str, message: str
) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(EVALS).strip().replace(wrong, kind))
    with pytest.raises(UsageError, match=message):
        list_tasks()
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in TASKS)


def test_a_named_evals_file_must_be_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(folder / "elsewhere.yaml"))
    with pytest.raises(UsageError, match="there is no such file"):
        list_tasks()
    with pytest.raises(ConfigError, match="there is no such file"):
        show_task("capitals", None, PromptFormat.PLAIN)


def test_a_registered_task_is_shown_without_examples(shown: Callable[..., str], folder: Path) -> None:
    (folder / "evals.yaml").unlink()
    page = shown("capitals")
    for part in (
        "capitals · Capitals (choice) Which of four cities is a country's capital",
        "metrics accuracy (headline), accuracy_norm",
        "subjects 6: africa, asia, europe, north_america, …",
        "row 0 of split 'test' (subject 'africa') · plain · 0 shots",
        "Q: What is the capital of Algeria? A: ends with ' Algeria?\\nA:'",
        "' Algiers' │ ✓",
        "examples none",
        "✓ checked the first 5 rows",
    ):
        assert part in page
    assert not (folder / ".eval_dagster").exists()


def test_an_eval_is_shown_with_its_settings(shown: Callable[..., str]) -> None:
    page = shown("sums")
    for part in (
        "sums · Easy sums Sums that are very easy. type",
        "(subject 'multiplication') · plain · 2 shots",
        "generated one text, at most 16 tokens, until '\\n', greedy",
        "gold '",
        "examples 2 (",
    ):
        assert part in page
    assert "of no interest" not in page
    assert "plain · 1 shot ─" in shown("sums", 1)


def test_the_page_states_how_long_a_text_may_be(shown: Callable[..., str]) -> None:
    assert "texts at most 16 tokens, fewer if generation.max_tokens of the model is lower dataset" in shown("sums")
    page = shown("quizzes/mine.py:Open")
    assert "texts the task sets no maximum: generation.max_tokens of the model applies, else the rest of its context" in page
    assert "generated one text, as many tokens as the context holds, until" in page
    assert "texts" not in shown("capitals")
    page = shown("quizzes/mine.py:short")
    assert "sets no maximum" not in page
    assert "texts each question may set a maximum; without one generation.max_tokens of the model applies" in page
    assert "generated one text, at most 8 tokens" in page


def test_a_format_is_chosen(shown: Callable[..., str]) -> None:
    page = shown("quizzes/mine.py:Sums", 1, PromptFormat.LLAMA3)
    assert page.count("<|begin_of_text|>") == 1
    assert "llama3 · 1 shot" in page
    assert "✓" in page


def test_every_question_about_a_row_is_shown(shown: Callable[..., str]) -> None:
    page = shown("quizzes/mine.py:Twice", 1)
    assert "metrics accuracy_norm (headline), accuracy " in page
    assert "language en, fr" in page
    assert "question 1 of 2" in page
    assert "question 2 of 2" in page
    assert "Say a city." in page
    assert "not checked" not in page


def test_a_metric_of_several_questions_is_not_checked(shown: Callable[..., str]) -> None:
    page = shown("quizzes/mine.py:Together", 0)
    assert "not checked: of_row, which needs the answers to all questions about a row" in page
    assert "✓" in page


def test_a_metric_without_bounds_is_named(shown: Callable[..., str]) -> None:
    page = shown("quizzes/mine.py:Scored")
    assert "partly: values between 0 and 1, and no BOUNDS; an interval may leave them, and ten values of 0 have none." in page
    assert "within:" not in page
    assert "exact_match:" not in page
    assert "✓ checked the only row" in page


def test_the_rows_of_a_folder_are_read(shown: Callable[..., str]) -> None:
    page = shown("quizzes/mine.py:Folder")
    assert "dataset folder ./rows" in page
    assert "What is 1 + 2?" in page
    assert "✓ checked the only row" in page


def test_a_mirror_is_read(folder: Path, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = folder / "mirror" / "openai" / "gsm8k" / "main"
    mirror.mkdir(parents=True)
    for split in ("test", "train"):
        row = '{"question": "How many in %s?", "answer": "One and one.\\n#### 2"}'
        (mirror / f"{split}.jsonl").write_text((row % split).replace("\n", "\\n") + "\n")
    monkeypatch.setenv("EVAL_DAGSTER_DATASETS", str(folder / "mirror"))
    with pytest.raises(DataError, match=r"has 1 distinct few-shot examples .* expected 5"):
        show_task("customary", None, PromptFormat.PLAIN)
    page = shown("words")
    assert "few-shot 1 (the task's default is 5), random of train" in page
    assert "Question: How many in train? Answer: One and one. #### 2 Question: How many in test? Answer: ends with" in page


def test_a_problem_is_told_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stop:
        show_task("quizzes/mine.py:Wide", None, PromptFormat.PLAIN)
    assert stop.value.exit_code == 1
    printed = capsys.readouterr()
    assert "✗ 5 problems in the first 5 rows" in printed.err
    assert "row 0: ' What is 59 + 65?\\nA:' is followed by '  124', with more than one space between them" in printed.err
    assert "✓ checked" not in printed.out


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("capitls", UsageError, "there is no task or eval 'capitls'; did you mean 'capitals'"),
        ("summs", UsageError, "there is no task or eval 'summs'; did you mean 'sums'"),
        ("quizzes/mine.py:Sum", TaskDefinitionError, "'Sum'; did you mean 'Sums'"),
        ("quizzes/yours.py:Sums", TaskDefinitionError, "yours.py"),
        ("gsm8k", DatasetNotFoundError, "openai/gsm8k at commit .* is not in the cache, and HF_HUB_OFFLINE forbids the Hub"),
        ("quizzes/mine.py:Silent", DataError, "makes no prompt of any of its 48 rows"),
        ("quizzes/mine.py:Fieldless", DataError, "row 0 .* lacks the field 'lost'"),
    ],
)
def test_what_cannot_be_shown_is_one_clear_error(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        show_task(name, None, PromptFormat.PLAIN)


@pytest.fixture
def tickets(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[int, dict[str, object]], tuple[int, str, str]]:
    """Write twenty tickets, with other fields in one of them, and return the exit status, the output and the errors of their page."""

    def show(place: int, fields: dict[str, object]) -> tuple[int, str, str]:
        rows: list[dict[str, object]] = [
            {"ticket_id": f"T-{i}", "text": f"a ticket about {'abcdefghijklmnopqrst'[i] * 4}", "team": f"team {i % 3}"} for i in range(20)
        ]
        rows[place] |= fields
        (folder / "tickets").mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (folder / "tickets" / "test.jsonl").write_bytes(lines.replace(b"BYTE", b"\xff"))
        status = 0
        try:
            show_task("quizzes/mine.py:Tickets", None, PromptFormat.PLAIN)
        except typer.Exit as stop:
            status = stop.exit_code
        printed = capsys.readouterr()
        return status, " ".join(printed.out.split()), printed.err

    return show


def test_a_row_on_which_the_task_fails_is_a_problem(tickets: Callable[..., tuple[int, str, str]]) -> None:
    status, page, problems = tickets(6, {"text": 7})
    assert (status, "✓" in page) == (1, False)
    assert "✗ the task fails on 1 of 20 rows, and each is an error of its sample in an eval; the first: row 6 of split 'test'" in problems
    assert "AttributeError" in problems
    assert "(mine.py, line " in problems
    assert "found nothing in 19 of 20 rows" in page


def test_the_first_row_on_which_the_task_fails_hides_no_other(tickets: Callable[..., tuple[int, str, str]]) -> None:
    status, page, problems = tickets(0, {"text": 7})
    assert status == 1
    assert "row 1 of split 'test'" in page
    assert "the first: row 0 of split 'test'" in problems


def test_a_row_that_cannot_be_asked_is_a_problem(tickets: Callable[..., tuple[int, str, str]]) -> None:
    status, page, problems = tickets(2, {"text": "a ticket BYTE"})
    assert (status, "✓" in page) == (1, False)
    assert "✗ 1 of 20 rows cannot be asked, which is an error of its sample in an eval; the first: RowError: row 2 of" in problems


def test_a_name_of_two_rows_is_told(tickets: Callable[..., tuple[int, str, str]]) -> None:
    status, page, problems = tickets(19, {"ticket_id": "T-3"})
    assert (status, "✓ checked the first 5 rows" in page) == (0, True)
    assert "warning: 1 name belongs to several samples each, 'T-3' for instance to " in problems
    assert "choices" not in page
    assert "language" not in page
    assert "source" not in page


def test_a_field_of_names_must_exist(tickets: Callable[..., tuple[int, str, str]]) -> None:
    tickets(0, {})
    with pytest.raises(DataError, match=r"no row has the field 'tickt_id' of the task's ID_FIELD; the rows have: ticket_id, text, team"):
        show_task("quizzes/mine.py:Mistyped", None, PromptFormat.PLAIN)


def test_the_command_takes_name_shots_and_format() -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command("tasks", *arguments)

    fine, broken = run("sums", "--shots", "1", "--format", "identity"), run("quizzes/mine.py:Wide")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "identity · 1 shot" in fine.stdout
    assert broken.returncode == 1
    assert "✗ 5 problems" in broken.stderr
