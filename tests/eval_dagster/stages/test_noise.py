"""The relation `noise`: the part of an error bar that the draw of the answers makes, and the part of the questions."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
from no_mlflow import NoMlflow

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

TEXTS, QUESTIONS = 6, 50
CONFIG = f"""
    models:
      chance: {{backend: scripted, function: "answers.py:answer", generation: {{temperature: 1.0}}}}
    evals:
      drawn: {{task: "numbers_task.py:Numbers", num_samples: {TEXTS}}}
      once: {{task: "numbers_task.py:Numbers"}}
"""
TASK = f"""
    from eval_dagster import BaseTask, ExactMatch, ResponseType

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("all",)

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n}} for n in range({QUESTIONS})]}}

        def _get_instruction_text(self, item):
            return f"Number {{item['n']}}"

        def _get_ground_truth(self, item):
            return "right"
"""
ANSWERS = f"""
    import random

    DRAW = random.Random(7)

    def answer(request):
        return "right" if DRAW.random() < int(request.prompt.split()[-1]) / {QUESTIONS} else "wrong"
"""


def test_the_parts_of_the_error_bar(tmp_path: Path) -> None:
    for name, text in (("evals.yaml", CONFIG), ("numbers_task.py", TASK), ("answers.py", ANSWERS)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    project = Project.open(tasks={}, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    object.__setattr__(project, "tracker", NoMlflow(home=tmp_path / "home", tracking_uri=None, experiment="noise"))
    partitions = [("drawn", "chance"), ("once", "chance")]
    done = list(evaluate(project, partitions, stages=set(STAGES), run_id="run", reporter=SilentReporter()))
    assert not [each for each in done if isinstance(each, StageFailure)]
    publish(project.lake)
    drawn, once = read_rows(project.lake, "select * from noise order by eval")
    values = np.array([row["text_values"] for row in read_rows(project.lake, "select text_values from scores where eval = 'drawn'")])
    assert values.shape == (QUESTIONS, TEXTS)
    within, means = values.var(axis=1, ddof=1).mean(), values.mean(axis=1).var(ddof=1)
    assert drawn["prediction_variance"] == pytest.approx(within)
    assert drawn["data_variance"] == pytest.approx(means - within / TEXTS)
    [score] = read_rows(project.lake, "select stderr, value from metrics where eval = 'drawn' and subject is null and is_headline")
    assert (drawn["stderr"], drawn["value"]) == (pytest.approx(score["stderr"]), pytest.approx(score["value"]))
    assert drawn["prediction_stderr"] ** 2 + drawn["data_stderr"] ** 2 == pytest.approx(drawn["stderr"] ** 2)
    assert drawn["prediction_share"] == pytest.approx(within / TEXTS / means)
    # Right with probabilities from 0 to 1: within a question 1/6 on average, and 1/12 between questions.
    assert drawn["prediction_variance"] == pytest.approx(1 / 6, rel=0.2)
    assert drawn["data_variance"] == pytest.approx(1 / 12, rel=0.35)
    assert (once["n_texts"] or 1, once["prediction_variance"], once["data_variance"]) == (1, None, None), "one text tells nothing"
    assert once["stderr"] > 0
