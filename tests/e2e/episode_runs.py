"""Runs of episodes in processes of their own, which are forked from one with the libraries imported."""

import multiprocessing
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["eval_dagster.pipeline", "duckdb", "pandas"])
TASK = '''
import tempfile
from pathlib import Path

import eval_dagster as ed


class Notes:
    """A folder with notes."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp())

    def write(self, name: str, text: str) -> list[str]:
        """Write a note, and return all."""
        (self.folder / name).write_text(text)
        return sorted(f"{path.name}={path.read_text()}" for path in self.folder.iterdir())


class Writing(ed.EpisodeTask):
    NAME = "Writing"
    DATASET_PATH = "writing"
    SAMPLE_SPLIT = "test"
    METRICS = (ed.ExactMatch,)
    TOOLS = (Notes,)

    def _load_dataset(self, subject):
        return {"test": [{"n": n} for n in range(3)]}

    def _get_instruction_text(self, item):
        return f"Episode {item['n']}."

    def _get_ground_truth(self, item):
        return "done"
'''
MODEL = """
import json
import os
import time

import eval_dagster as ed

TURNS = 50


def writer(request):
    file = os.open(os.environ["ASKED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{request.request_id}\\n".encode())
    os.close(file)
    time.sleep(0.003)
    turn = request.prompt.count("write(")
    if turn == TURNS - 1:
        return "done"
    arguments = json.dumps({"name": f"note{turn % 7}", "text": f"{turn}"})
    call = json.dumps({"id": "", "type": "function", "function": {"name": "write", "arguments": arguments}})
    return ed.ModelResponse(text=("",), finish_reason=("stop",), tool_calls=((call,),))
"""
CONFIG = """
models:
  writer: WRITER
evals:
  writing: {task: "task.py:Writing"}
"""
SCRIPTED = '{backend: scripted, function: "model.py:writer"}'
TURNS = 50
"""Turns of an episode."""


def note_of(turn: int) -> tuple[str, dict[str, object]] | None:
    """The call of the model in a turn, as the scripted one has it; null in the last one."""
    return None if turn == TURNS - 1 else ("write", {"name": f"note{turn % 7}", "text": f"{turn}"})


def start(folder: Path, *, is_last: bool = True, writer: str = SCRIPTED) -> BaseProcess:
    """Start a run of the episodes in a folder: of all stages, or of the model's answers alone. `writer` is the model in evals.yaml."""
    folder.mkdir(exist_ok=True)
    for name, text in (("task.py", TASK), ("model.py", MODEL), ("evals.yaml", CONFIG.replace("WRITER", writer))):
        if not (folder / name).exists():
            (folder / name).write_text(text)
    process = _PROCESSES.Process(target=_run, args=(folder, is_last))
    process.start()
    return process


def asked(folder: Path) -> list[str]:
    """The ids of the requests that the model was sent, in order."""
    path = folder / "asked.log"
    return path.read_text().split() if path.exists() else []


def _run(folder: Path, is_last: bool) -> None:
    import os
    import tempfile

    from eval_dagster.lake.catalog.publishing import publish
    from eval_dagster.pipeline import evaluate
    from eval_dagster.progress.reporting import SilentReporter
    from eval_dagster.project import Project
    from eval_dagster.stages.partition import STAGES, StageFailure

    os.environ["ASKED"] = str(folder / "asked.log")
    (folder / "temporary").mkdir(exist_ok=True)
    tempfile.tempdir = str(folder / "temporary")
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    outcomes = evaluate(
        project, [("writing", "writer")], stages=set(STAGES) if is_last else {"model_outputs"}, run_id="test", reporter=SilentReporter()
    )
    failed = [each for each in outcomes if isinstance(each, StageFailure)]
    publish(project.lake)
    sys.exit(str(failed) if failed else 0)
