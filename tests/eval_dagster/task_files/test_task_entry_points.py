"""Tasks of other packages: found by their entry point, and left out with one warning where they are broken."""

import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import ConfigError, TaskDefinitionError
from eval_dagster.project import Project
from eval_dagster.task_defs import TASKS
from eval_dagster.task_defs.arithmetic import Arithmetic
from eval_dagster.task_files import registries

TASK = """
    from eval_dagster.task_defs.arithmetic import Arithmetic

    class Doubles(Arithmetic):
        NAME = "Doubles"

    MORE = {"doubles-too": Doubles, "arithmetic": Doubles}
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one module and one entry point, `doubles`, where Python finds it."""

    def put(code: str, value: str) -> None:
        information = tmp_path / "site" / "doubling-1.0.dist-info"
        information.mkdir(parents=True)
        (tmp_path / "site" / "doubling.py").write_text(textwrap.dedent(code))
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{registries.TASKS_GROUP}]\ndoubles = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        registries._tasks_of.cache_clear()

    yield put
    registries._tasks_of.cache_clear()
    sys.modules.pop("doubling", None)


def test_a_class_is_known_by_the_name_of_the_entry_point(install: Install) -> None:
    install(TASK, "doubling:Doubles")
    assert registries.registered_tasks()["doubles"].NAME == "Doubles"


def test_a_mapping_gives_its_names_and_replaces_no_task_of_this_package(install: Install) -> None:
    install(TASK, "doubling:MORE")
    tasks = registries.registered_tasks()
    assert tasks["doubles-too"].NAME == "Doubles"
    assert tasks["arithmetic"] is Arithmetic
    assert "doubles" not in tasks


BROKEN = {
    "import": ("import no_such_library", "doubling:Doubles", "cannot be imported (ModuleNotFoundError: No module named 'no_such_library')"),
    "exit": ("raise SystemExit(3)", "doubling:Doubles", "cannot be imported (SystemExit: 3)"),
    "no task": ("Doubles = 7", "doubling:Doubles", "have 7 under the name 'doubles'; expected a task class"),
    "no task in it": ('MORE = {"doubles": int}', "doubling:MORE", "have <class 'int'> under the name 'doubles'"),
}


@pytest.mark.parametrize(("code", "value", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_tasks_are_left_out_with_one_warning(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, value: str, message: str
) -> None:
    install(code, value)
    (tmp_path / "evals.yaml").write_text("models: {m: {backend: scripted}}\nevals: {sums: {task: arithmetic, limit: 1}}\n")
    with caplog.at_level(logging.WARNING, "eval_dagster"):
        for _ in range(3):
            assert Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home").task("sums") is Arithmetic
    [record] = caplog.records
    assert record.getMessage() == f"the tasks {value} of doubling {message}" + record.getMessage().partition(message)[2]
    assert record.getMessage().endswith("; they are left out")
    assert set(registries.registered_tasks()) == set(TASKS)


def test_an_eval_of_a_task_that_was_left_out_is_an_error_of_that_eval(install: Install, tmp_path: Path) -> None:
    install(*BROKEN["import"][:2])
    (tmp_path / "evals.yaml").write_text("models: {m: {backend: scripted}}\nevals: {mine: {task: doubles}}\n")
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    with pytest.raises(TaskDefinitionError, match="there is no task 'doubles'; `eval-dagster tasks` lists all names"):
        project.task("mine")


def test_an_installation_that_is_older_than_the_code_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "entries", lambda _: ())
    with pytest.raises(ConfigError, match="older than its code: it registers no tasks; install it again, with `make` in a checkout"):
        registries.registered_tasks()
