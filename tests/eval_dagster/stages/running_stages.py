"""All stages on a scripted model, without Dagster."""

from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

CONFIG = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
      capitals: {task: capitals, num_fewshot: 1, limit: 5}
      arithmetic: {task: arithmetic, limit: 5}
"""


def run_all(project: Project, partitions: list[tuple[str, str]]) -> tuple[dict[tuple[str, str], StageResult], list[StageFailure]]:
    """All stages of some partitions: results by stage and eval, and failures."""
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    results = {(each.stage, each.eval_name): each for each in outcomes if isinstance(each, StageResult)}
    return results, [each for each in outcomes if isinstance(each, StageFailure)]
