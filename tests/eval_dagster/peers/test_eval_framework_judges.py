"""Metric files in eval-framework's style that ask a judge."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from user_metrics import Load, load_metric, scores

from eval_dagster.errors import RequirementError
from eval_dagster.peers.eval_framework.responses import Completion

GRADER = """
from eval_framework.llm.base import BaseLLM
from eval_framework.metrics.llm.graders.language import Language
from eval_framework.metrics.llm.graders.models import GradingOutput, PromptTemplate, parse_json_output


class PolitenessOutput(GradingOutput):
    is_polite: bool | None


class RefusalGrader:
    TEMPLATES = {Language("en"): PromptTemplate(system_prompt="Reply {as JSON}.", user_prompt="Is this polite? {text}")}

    def __init__(self, grading_model: BaseLLM) -> None:
        self._model = grading_model

    def grade(self, text, language):
        messages = language.language_config(self.TEMPLATES).to_messages([], [("text", text)])
        reply = self._model.generate_from_messages([messages])[0]
        found = parse_json_output(reply.completion)
        return PolitenessOutput(is_polite=found.get("is_polite"), judge_prompt=reply.prompt, judge_response=reply.completion)
"""
JUDGE = """
from eval_framework.llm.base import BaseLLM
from eval_framework.metrics.llm.base import BaseLLMJudgeMetric
from eval_framework.metrics.llm.graders.language import Language
from eval_framework.metrics.llm.graders.refusal_grader import RefusalGrader
from eval_framework.shared.types import RawCompletion


class Politeness(BaseLLMJudgeMetric):
    NAME = "politeness"

    def __init__(self, llm_judge: BaseLLM):
        super().__init__(llm_judge)
        self._grader = RefusalGrader(llm_judge)

    def calculate(self, response):
        found = self._grader.grade(response.sanitized_completion, Language("en"))
        value = None if found.is_polite is None else float(found.is_polite)
        return [self._create_metric_result(self.NAME, True, value, llm_judge_prompt=found.judge_prompt)]


class Judge(BaseLLM):
    def generate_from_messages(self, messages, stop_sequences=None, max_tokens=None, temperature=None, top_p=None):
        shown = [" / ".join(message.content for message in each) for each in messages]
        reply = 'I say {"is_polite": true}' if "Please" in shown[0] else 'I say {"is_polite": false}' if "Go" in shown[0] else "{none}"
        sizes = {"prompt_sequence_positions": None, "completion_sequence_positions": None}
        return [RawCompletion(prompt=each, completion=reply, **sizes) for each in shown]


class WithJudge(Politeness):
    def __init__(self):
        super().__init__(Judge())
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(load_metric, tmp_path)


def test_a_judge_that_the_metric_makes(load: Load, tmp_path: Path) -> None:
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    metric = load(JUDGE, "WithJudge")
    assert scores(metric, "Please <|come|> in.") == {"politeness": 1.0}
    assert scores(metric, "Go.") == {"politeness": 0.0}
    assert "no value for 'politeness'" in str(scores(metric, "What?")["politeness"])
    (result,) = metric().calculate(Completion(completion="Go <|x|>"))
    assert result.llm_judge_prompt == "Reply {as JSON}. / Is this polite? Go <| x |>"


def test_a_judge_lacks_its_model_or_its_grader(load: Load, tmp_path: Path) -> None:
    metric = load(JUDGE, "WithJudge")
    with pytest.raises(RequirementError, match="copy the grader's file of eval_framework/metrics/llm/graders beside the metric's file"):
        scores(metric)
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    with pytest.raises(RequirementError, match="the metric Politeness asks a judge model, and evals have none"):
        scores(load(JUDGE, "Politeness"))


def test_the_failure_of_a_judge(load: Load, tmp_path: Path) -> None:
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    metric: Any = load(JUDGE, "WithJudge")()
    result = metric._create_metric_result("politeness", True, None, error=TimeoutError("no answer"))
    assert str(result.error) == "TimeoutError: no answer"
