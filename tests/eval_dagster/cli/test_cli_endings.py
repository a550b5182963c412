"""What `run` prints when it ends, for each way in which it can end."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_command

from eval_dagster.cli import show as inspecting
from eval_dagster.cli.main import main

CONFIG = """
    models:
      tiny: {{backend: transformers, source: {{folder: "{model}"}}, device: cpu, max_length: 64}}
      broken: {{backend: transformers, source: {{folder: weights}}, device: cpu}}
      sevens: {{backend: scripted, default: " 7"}}
      raising: {{backend: scripted, function: "raising.py:answer"}}
    evals:
      words: {{task: "words.py:Words"}}
      sums: {{task: arithmetic, num_fewshot: 1, limit: 1}}
      wrong: {{task: "words.py:Wrong"}}
      both: {{task: "words.py:Both"}}
"""
TASKS = """
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Words(BaseTask[str]):
        NAME = "Words"
        DATASET_PATH = "words"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"text": "short", "gold": " a"}, {"text": "long " * 40, "gold": " a"}]}

        def _get_instruction_text(self, item):
            return item["text"].strip()

        def _get_possible_completions(self, item):
            return [" a", " b"]

        def _get_ground_truth(self, item):
            return item["gold"]

    class Wrong(Words):
        NAME = "Wrong"

        def _get_ground_truth(self, item):
            return item["nothing"]

    class Both(Words):
        NAME = "Both"

        def _load_dataset(self, subject):
            return {"test": [{"text": "short", "gold": " a"}, {"text": "short", "gold": " b"}]}
"""
RAISING = """
    def answer(request):
        raise ValueError(f"no answer to {request.prompt[-5:]!r}")
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path, tiny_model: Path) -> Run:
    """Run the command line on a new home."""
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(model=tiny_model)))
    (tmp_path / "words.py").write_text(textwrap.dedent(TASKS))
    (tmp_path / "raising.py").write_text(textwrap.dedent(RAISING))
    (tmp_path / "weights").mkdir()
    for file in tiny_model.iterdir():
        (tmp_path / "weights" / file.name).write_bytes(file.read_bytes()[: 200 if file.suffix == ".safetensors" else None])
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml")}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, environment=environment)

    return run


def commands(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """What comes next, without the program's name."""
    return re.findall(r"^  \S*eval-dagster (.*?)  ", done.stdout.partition("\nNext\n")[2], re.MULTILINE)


@pytest.mark.long
def test_a_prompt_too_long_for_the_context_is_a_warning_with_what_to_do(cli: Run) -> None:
    done = cli("run", "--eval", "words", "--model", "tiny")
    assert done.returncode == 0, done.stderr
    warning = next(line for line in done.stderr.splitlines() if line.startswith("warning: "))
    assert "words|tiny: 1 of 2 samples has an error and no score: PromptTooLongError: prompt and choice need " in warning
    assert "the model's context holds 64" in warning
    assert warning.endswith("shorten the prompt (`num_fewshot` of the eval), or set `truncate: true` for this model.")
    assert "failed:" not in done.stderr
    assert commands(done)[0] == "sql errors"
    assert "show words --model tiny" in commands(done)
    again = cli("run", "--eval", "words", "--model", "tiny")
    assert "Nothing to recompute" in again.stdout
    assert warning in again.stderr.splitlines(), "a result that is current has the same errors"


@pytest.mark.long
def test_an_eval_all_of_whose_samples_are_errors_has_failed(cli: Run) -> None:
    done = cli("run", "--eval", "sums", "--model", "raising")
    assert done.returncode == 1
    assert "failed: sums|raising: all 3 samples have an error and no score: ValueError: no answer to" in done.stderr
    assert "warning:" not in done.stderr, "the same is not printed twice"
    assert commands(done) == ["sql errors", "ui"]


@pytest.mark.long
def test_a_run_without_a_result_does_not_advise_to_run(cli: Run) -> None:
    """A model whose weights cannot be read and an eval whose task is wrong."""
    done = cli("run", "--eval", "sums", "--model", "broken")
    assert done.returncode == 1
    assert "failed: model_outputs sums|broken: " in done.stderr
    assert "Nothing has been evaluated yet" not in done.stdout
    assert "There is no result yet" in done.stdout
    assert commands(done) == ["models", "sql attempts", "ui"]
    done = cli("run", "--eval", "wrong", "--model", "sevens")
    assert done.returncode == 1
    assert "failed: rendered_prompts wrong|sevens: " in done.stderr
    assert commands(done) == ["tasks wrong", "sql attempts", "ui"]
    assert "every evaluation failed. Next: " in cli("leaderboard").stdout
    both = cli("run", "--eval", "wrong", "--eval", "sums", "--model", "sevens")
    assert both.returncode == 1
    assert commands(both) == ["tasks wrong", "sql attempts", "show sums --model sevens", "view", "ui"], "no question without a row"


@pytest.mark.long
def test_the_surest_mistakes_are_those_of_the_evals_and_models_of_the_run(cli: Run) -> None:
    """One of two opposite answers is wrong; another run, of which none is, does not point to it."""
    assert "sql confident_errors" in commands(cli("run", "--eval", "both", "--model", "tiny"))
    assert "sql confident_errors" not in commands(cli("run", "--eval", "sums", "--model", "sevens"))
    assert "sql confident_errors" in commands(cli("run", "--eval", "both", "--model", "tiny")), "also where all is current"


def test_an_interrupt_speaks_of_answers_only_where_a_model_was_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspecting, "list_models", interrupted)
    monkeypatch.setattr(sys, "argv", ["eval-dagster", "models"])
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert capsys.readouterr().err.strip() == "interrupted"
