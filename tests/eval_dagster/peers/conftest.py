"""An environment with a package that the tests write."""

import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.task_files import registries


@dataclass(frozen=True)
class QuizEnvironment:
    """A virtual environment whose only package is `quizbook`."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    def write(self, version: str) -> None:
        """Write the package, as a new release of it would be installed."""
        # Python compares the time of a file in seconds, and its size.
        for compiled in self.folder.rglob("*.pyc"):
            compiled.unlink(missing_ok=True)
        package, information = self.site_packages / "quizbook", self.site_packages / "quizbook-1.dist-info"
        package.mkdir(exist_ok=True)
        information.mkdir(exist_ok=True)
        rows = [(f"{number} + 1", str(number + 1)) for number in range(3)]
        many = [(f"{number} + 1", str(number + 1)) for number in range(500)]
        (package / "__init__.py").write_text(f"VERSION = {version!r}\nQUIZZES = {{'sums': {rows}, 'many': {many}}}\n")
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: quizbook\nVersion: 1\n")


@pytest.fixture
def quiz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuizEnvironment]:
    """The environment, and the registry `quiz` among those that are installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    information = tmp_path / "site" / "quizzes-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: quizzes\nVersion: 1\n")
    entry = "quiz = tests.eval_dagster.peers.quiz_registry:QuizRegistry"
    (information / "entry_points.txt").write_text(f"[{registries.GROUP}]\n{entry}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registries.registered.cache_clear()
    made = QuizEnvironment(tmp_path / "quiz-environment")
    venv.create(made.folder, with_pip=False)
    made.write("1")
    yield made
    close_processes()
    registries.registered.cache_clear()
