"""Notebooks: the one of the examples, and what a change of a cell recomputes."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from eval_dagster.versions.notebook import source_of_cells

ROOT = Path(__file__).resolve().parents[3]
TASK = """
import eval_dagster as ed
ANSWER = "yes"
class Plain(ed.BaseTask[str]):
    NAME, DATASET_PATH, SAMPLE_SPLIT, SUBJECTS = "Plain", "own", "test", ["all"]
    RESPONSE_TYPE, METRICS = ed.ResponseType.COMPLETION, [ed.ExactMatch]
    def _load_dataset(self, subject):
        return {"test": [{"question": "one"}, {"question": "two"}]}
    def _get_instruction_text(self, item):
        return item["question"]
    def _get_ground_truth(self, item):
        return ANSWER
def model(request):
    return "yes"
"""
RUN = "print(ed.evaluate(Plain, model, progress=False).score)"


def execute(notebook: nbformat.NotebookNode, folder: Path) -> list[list[dict[str, Any]]]:
    """The outputs of its code cells, without what libraries warn of."""
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    cells = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    return [[output for output in cell["outputs"] if output.get("name") != "stderr"] for cell in cells]


@pytest.mark.long
def test_the_example_evaluates_shows_errors_and_plots(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    _, scores, errors, plot = execute(notebook, tmp_path)
    table = scores[0]["data"]["text/plain"]
    assert "careful" in table
    assert "hasty" in table
    assert "1.000" in table
    shown = errors[0]["data"]["text/html"]
    assert "What is" in shown
    assert "hasty" in shown
    assert "careful" not in shown, "it makes no error"
    assert "image/png" in plot[0]["data"]
    assert (tmp_path / ".eval_dagster" / "lake").is_dir()


@pytest.mark.long
def test_another_definition_is_scored_anew_and_another_call_is_not(tmp_path: Path) -> None:
    cells = [TASK, RUN, RUN, 'ANSWER = "no"', RUN, "unrelated = 5", RUN]
    outputs = execute(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), tmp_path)
    printed = [
        each["text"].strip() for output in outputs for each in output if each["output_type"] == "stream" and each["name"] == "stdout"
    ]
    assert printed == ["1.0", "1.0", "0.0", "0.0"]
    assert len(list((tmp_path / ".eval_dagster/lake/scores").rglob("*.parquet"))) == 2


@pytest.mark.parametrize(
    ("cells", "source"),
    [
        (["import os\ndef f(): return N\nN = 1\nM = 2\nprint(f())"], "import os\ndef f():\n    return N\nN = 1"),
        (["def f(): return 1", "def f(): return 2", "not python at all"], "def f():\n    return 2"),
        (["def f(): return A", "A = B + 1", "B = 3", "f()", "f()"], "def f():\n    return A\nA = B + 1\nB = 3"),
        (["class C: pass", "class C: pass"], "class C:\n    pass"),
    ],
)
def test_the_source_of_cells_is_what_they_define(cells: list[str], source: str) -> None:
    assert source_of_cells(cells) == source
