"""A benchmark of one's own, from a folder of files: what the command `tasks` shows of it, and what it says of each mistake."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from eval_dagster.cli.task_page import PromptFormat, show_task
from eval_dagster.errors import EvalDagsterError

ROWS = [{"question": "Is it red?", "a": "yes", "b": "no", "right": 0}, {"question": "Is it blue?", "a": "yes", "b": "no", "right": 1}]
QUIZ = '''
from eval_dagster.tasks.doc import Doc
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import ResponseType
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.doc import doc_task


class Tickets(BaseTask[str]):
    """Questions about tickets."""

    NAME = "Tickets"
    DATASET_PATH = "./tickets"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [AccuracyLoglikelihood]

    def _get_instruction_text(self, item):
        return f"Question: {item['question']}\\nAnswer:"

    def _get_possible_completions(self, item):
        return [f" {item['a']}", f" {item['b']}"]

    def _get_ground_truth(self, item):
        return self._get_possible_completions(item)[item["right"]]


class Unsplit(Tickets):
    SAMPLE_SPLIT = "train"


class Empty(Tickets):
    DATASET_PATH = "./empty"


class Nested(Tickets):
    DATASET_PATH = "./nested"


class Bare(BaseTask[str]):
    NAME = "Bare"


class Number(Tickets):
    def _get_ground_truth(self, item):
        return item["right"]


@doc_task(dataset_path="./tickets", sample_split="test", metrics=[AccuracyLoglikelihood])
def beyond(row):
    return Doc(query=row["question"], choices=[row["a"], row["b"]], gold_index=2 * row["right"])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Path:
    """A folder as a new user has it."""
    (tmp_path / "quiz.py").write_text(QUIZ)
    (tmp_path / "evals.yaml").write_text(
        f"""
models:
  plain: {{backend: scripted}}
  chatty: {{backend: transformers, source: {{folder: "{tiny_model}"}}, prompt_format: chat}}
evals:
  tickets: {{task: "quiz.py:Tickets"}}
"""
    )
    for name in ("tickets", "empty", "nested/only"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "empty/test.xlsx").touch()
    for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME", "EVAL_DAGSTER_DATASETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_csv(file: Path) -> None:
    file.with_suffix(".csv").write_text("\n".join([",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]))


def write_jsonl(file: Path) -> None:
    file.with_suffix(".jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))


def write_parquet(file: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), file.with_suffix(".parquet"))


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
@pytest.mark.parametrize(("task", "place"), [("Tickets", "tickets"), ("Nested", "nested/only")])
def test_a_folder_of_files_needs_no_subject(
    folder: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], None], task: str, place: str
) -> None:
    write(folder / place / "test")
    show_task(f"quiz.py:{task}", None, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Question: Is it red? Answer:" in shown
    assert "checked the first 2 rows" in shown
    assert "user_files_" not in shown


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "Unsplit",
            r"lacks the split 'train': looked for \S+/tickets/train\.parquet, \.jsonl and \.csv, .* the folder holds the splits: test",
        ),
        (
            "Empty",
            r"dataset \./empty has no rows: looked for .*test\.csv say.* in \S+/empty, which holds no split, but the files: test\.xlsx",
        ),
        ("Bare", r"task class Bare \(\S+/quiz\.py\) lacks DATASET_PATH, SAMPLE_SPLIT, RESPONSE_TYPE, METRICS, _get_instruction_text"),
        ("Number", r"row 0 of split 'test' \(subject 'default'\): the task returned 0 as ground truth; expected a text \(such as '0'\)"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder: Path, task: str, message: str) -> None:
    write_csv(folder / "tickets/test")
    with pytest.raises(EvalDagsterError, match=message) as raised:
        show_task(f"quiz.py:{task}", None, None)
    assert "user_files_" not in str(raised.value)


def test_what_is_wrong_with_a_later_row_is_a_problem_of_the_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_csv(folder / "tickets/test")
    with pytest.raises(typer.Exit):
        show_task("quiz.py:beyond", None, None)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert "row 1 of split 'test' (subject 'default'): a Doc has the gold_index 2; expected positions of its 2 choices, from 0" in printed


@pytest.mark.parametrize(("prompt_format", "model"), [(PromptFormat.CHAT, None), (PromptFormat.CHAT, "chatty"), (None, "chatty")])
def test_a_prompt_is_shown_by_the_template_of_a_model(
    folder: Path, capsys: pytest.CaptureFixture[str], prompt_format: PromptFormat | None, model: str | None
) -> None:
    write_csv(folder / "tickets/test")
    show_task("quiz.py:Tickets", None, prompt_format, model)
    shown = " ".join(capsys.readouterr().out.split())
    assert "<|im_start|>user Question: Is it red? Answer:<|im_end|> <|im_start|>assistant" in shown
    assert "· chat ·" in shown


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"--format chat needs the template of a model, and no model of evals\.yaml has `prompt_format: chat`; .* has: plain"),
        ("plain", r"Model 'plain' is scripted and has no chat template"),
        ("lost", r"unknown model 'lost'"),
    ],
)
def test_a_template_that_is_not_there_is_refused(folder: Path, model: str | None, message: str) -> None:
    write_csv(folder / "tickets/test")
    (folder / "evals.yaml").write_text("models: {plain: {backend: scripted}}\nevals: {}\n")
    with pytest.raises(EvalDagsterError, match=message):
        show_task("quiz.py:Tickets", None, PromptFormat.CHAT, model)
