"""Pages of the documentation as their blocks, in order, and what it takes to try them."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from commands import run_command

import eval_dagster
from eval_dagster.config.loading import load_config
from eval_dagster.models.registry import section_in_file
from eval_dagster.task_defs import TASKS
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.recorded import IMPORTED

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"Save this as `([^`]+)`")
NOT_RUN = ("eval-dagster ui", "eval-dagster view", "eval-dagster init", "make", "pip install", "ssh ", "docker ")
"""Commands that serve until they are stopped, or install something; tests of their own cover them."""
SHOWN = ("dotenv", "nginx", "text")
"""Languages of blocks that are not run. A text after a command is its output."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    file: str | None
    """Where the page tells the reader to save it."""
    where: str
    """Page and line, for messages."""


def name_of(page: Path) -> str:
    """The name of a page in the output of pytest."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text("utf-8")
    for match in BLOCK.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        named = None if before.endswith("```") else FILE.search(before)
        line = text.count("\n", 0, match.start()) + 1
        yield Block(language=match[1], text=match[2], file=named and named[1], where=f"{name_of(page)}:{line}")


class Reader:
    """Somebody who does what a page shows, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        """What the last command printed."""

    def do(self, page: Path) -> int:
        """Do everything on a page; returns the number of blocks that were run."""
        done = 0
        for block in blocks(page):
            if block.file is not None:
                path = self.folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, "utf-8")
            done += self._do(block)
        return done

    def _do(self, block: Block) -> bool:
        match block.language:
            case "sh":
                for line in filter(str.strip, block.text.splitlines()):
                    self.run(line, block.where)
            case "text":
                missing = [line for line in block.text.splitlines() if _plain(line) not in _plain(self.printed)]
                assert not (self.printed and missing), f"{block.where}: {missing} is not in\n{self.printed}"
            case "sql":
                with eval_dagster.connect(self.folder / ".eval_dagster") as results:
                    assert results.execute(block.text).description, block.where
            case "yaml" if block.file is None:
                self._configure(block)
            case "python" if block.file is None and "evaluate(" not in block.text:
                self.python(block.text, block.where)
            case "toml":
                assert tomllib.loads(block.text), block.where
            case _:
                assert block.file is not None or block.language in (*SHOWN, "python"), f"{block.where}: {block.language} is not tried"
        if block.language != "sh":
            self.printed = ""
        return block.language not in SHOWN

    def run(self, line: str, where: str) -> None:
        """Run a command as the page has it, and compare its exit status."""
        command, _, comment = line.partition("  #")
        if command.strip().startswith(NOT_RUN):
            self.printed = ""
            return
        status = re.search(r"exit status (\d)", comment)
        words = shlex.split(command)
        assert words[0] == "eval-dagster", f"{where}: {line!r} is neither run nor listed as NOT_RUN"
        done = self.command(*words[1:])
        assert done.returncode == (int(status[1]) if status else 0), f"{where}: {command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip(), f"{where}: {command} printed nothing"
        self.printed = done.stdout

    def python(self, text: str, where: str) -> None:
        """Run a script in the folder. It is a file, since versions of functions are those of their code."""
        script = self.folder / "block.py"
        script.write_text(text, "utf-8")
        done = self.program(str(script))
        script.unlink()
        assert done.returncode == 0, f"{where}: {done.stderr}"

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the folder, as a user does who has set no variable."""
        return run_command(*arguments, folder=self.folder, environment=self._environment)

    def program(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Run a script in the folder, as a user does who has set no variable."""
        command = [sys.executable, script]
        return subprocess.run(command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=300, check=False)

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER_", "DAGSTER_"))}
        return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def _configure(self, block: Block) -> None:
        """Check a part of evals.yaml together with what the folder has."""
        config = yaml.safe_load((self.folder / "evals.yaml").read_text()) if (self.folder / "evals.yaml").exists() else {}
        for section, given in yaml.safe_load(block.text).items():
            config[section] = {**config.get(section, {}), **given} if section in ("models", "evals", "suites") else given
        path = self.folder / "with_block.yaml"
        path.write_text(yaml.safe_dump({"models": {}, "evals": {}, **config}))
        config = load_config(path, section_in_file=section_in_file)
        for task in (settings.task for settings in config.evals.values()):
            if task != IMPORTED and (":" not in task or ".py:" in task):  # those of registries need their packages
                assert load_task(task, TASKS, self.folder), block.where
        path.unlink()


def block_of(page: Path, file: str) -> str:
    """The text of the first block that a page tells the reader to save under a name."""
    return next(block.text for block in blocks(page) if block.file == file)


def _plain(text: str) -> str:
    return " ".join(text.split())
