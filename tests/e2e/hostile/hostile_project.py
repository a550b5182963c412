"""A project whose rows, answers and errors are hostile texts."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from hostile_texts import STORABLE

CONFIG = """
    models:
      echo: {backend: scripted, function: "answer.py:echo"}
      other: {backend: scripted, function: "answer.py:other"}
    evals:
      words: {task: "words.py:Words"}
    suites:
      nightly: {evals: [words], models: [echo], baseline: other, gate: {alpha: 0.9, max_error_rate: 1.0}}
"""
ANSWERS = """
    def echo(request):
        if "safe" in request.prompt:
            raise ValueError(request.prompt + chr(10) + "failed: a line of its own")
        return request.prompt

    def other(request):
        return request.prompt[::-1]
"""
TASK = '''
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import Completion, ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Broken(CompletionMetric):
        """Fails with the text of an answer."""

        NAME = "broken \\x1b[31m \\u202e"
        HIGHER_IS_BETTER = True

        def calculate(self, response: Completion) -> float:
            if "\\x1b" in response.completion_text:
                raise RuntimeError("cannot read " + response.completion_text)
            return 1.0

    class Words(BaseTask[str]):
        """Says words again."""

        NAME = "Words \\x1b]0;title\\x07"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch, Broken]
        SUBJECTS = ["default"]

        def _get_instruction_text(self, item):
            return item["text"]

        def _get_ground_truth(self, item):
            return item["text"]
'''


def write_project(folder: Path, texts: Sequence[str] = STORABLE) -> None:
    """Write evals.yaml, the task, the models and the rows."""
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (folder / "answer.py").write_text(textwrap.dedent(ANSWERS))
    (folder / "words.py").write_text(textwrap.dedent(TASK))
    (folder / "rows").mkdir()
    rows = [json.dumps({"text": text or "nothing", "number": number}) for number, text in enumerate(texts)]
    (folder / "rows" / "test.jsonl").write_text("\n".join(rows))
