"""A project on a temporary home, with a scripted model that writes down what it is asked."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_faults import CONFIG as QUIZ_CONFIG
from planted_faults import QUIZ, model_code
from running_stages import CONFIG, run_all

from eval_dagster.project import Project

ANSWER = """
    from pathlib import Path

    def answer(request):
        with Path(__file__).with_name("asked.log").open("a") as log:
            log.write(request.request_id + "\\n")
        if request.choices is not None:
            return [-float(len(choice)) for choice in request.choices]
        return " 7"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


@pytest.fixture
def open_project(tmp_path: Path, write: Callable[[str, str], Path]) -> Callable[..., Project]:
    write("answer.py", ANSWER)

    def open_it(config: str = CONFIG) -> Project:
        return Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")

    return open_it


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[], list[str]]:
    """The ids of the requests sent since the last call."""

    def read() -> list[str]:
        log = tmp_path / "asked.log"
        lines = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    return read


@pytest.fixture
def evaluated(tmp_path: Path, write: Callable[[str, str], Path]) -> Callable[..., Project]:
    """A function that evaluates a task of the quiz, with a fault of the model."""
    write("quiz.py", QUIZ)

    def evaluate(task: str, fault: str = "pass", shots: int = 0) -> Project:
        write("model.py", model_code(task, fault))
        project = Project.open(config_path=write("evals.yaml", QUIZ_CONFIG.format(task=task, shots=shots)), home=tmp_path / "home")
        _, failures = run_all(project, [("quiz", "one")])
        assert failures == []
        return project

    return evaluate
