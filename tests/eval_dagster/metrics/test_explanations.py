"""What explains a score: the answer that was found, a judge's words, the output of a program."""

import json
from collections.abc import Sequence
from typing import Any

import duckdb
import pytest

from eval_dagster.lake.tables.rows import score_row, to_table
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.metrics.base import CompletionMetric, MetricResult
from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
from eval_dagster.metrics.completion import AccuracyCompletion, DropExactMatch, ExactMatch, ExactNumber, NormalizedExactMatch
from eval_dagster.metrics.explanations import MOST_CHARACTERS, explain
from eval_dagster.metrics.repeated import pass_at_k
from eval_dagster.records import Completion, MetricContext, Request, ResponseType
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.results.samples import explanation_of
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.stages.scores import score_response


class Judged(CompletionMetric):
    """Two values, each with the words of a judge; none where the judge says nothing that can be read."""

    NAME = "judged"

    def calculate(self, response: Completion) -> list[MetricResult]:
        def result(name: str, reply: str) -> MetricResult:
            value = float(reply) if reply.isdigit() else None
            asked = f"{name} of {response.completion_text}?"
            return MetricResult(metric_name=name, value=value, higher_is_better=True, llm_judge_prompt=asked, llm_judge_response=reply)

        kind, _, tone = response.completion_text.partition(" ")
        return [result("kind", kind), result("tone", tone)]


class Refused(CompletionMetric):
    NAME = "refused"

    def calculate(self, response: Completion) -> float:
        explain("judge_response", f"I cannot say: {response.completion_text}")
        raise ValueError("the judge gave no verdict")


def answers(*texts: str, gold: str = "4") -> Sequence[Completion]:
    return [Completion(completion_text=text, ground_truths=[gold]) for text in texts]


def test_the_answer_that_was_found_in_the_text() -> None:
    number, exact, normal, two = score_response(
        [ExactNumber, ExactMatch, NormalizedExactMatch, pass_at_k(ExactNumber, 2)], answers("2 + 2 is 4", "I do not know"), None
    )
    assert number.explanation == {"answer": ["4", None]}
    assert exact.explanation is None  # the text itself
    assert normal.explanation == {"answer": ["2 2 is 4", "i do not know"]}
    assert two.explanation == {"answer": ["4", None]}
    assert score_response([ExactNumber], answers("4"), None)[0].explanation is None


def test_each_value_has_the_words_of_its_judge() -> None:
    kind, tone = score_response([Judged], answers("1 0"), None)
    assert (kind.metric, kind.value) == ("judged/kind", 1.0)
    assert kind.explanation == {"judge_prompt": ["kind of 1 0?"], "judge_response": ["1"]}
    assert tone.explanation == {"judge_prompt": ["tone of 1 0?"], "judge_response": ["0"]}


def test_words_are_kept_where_there_is_no_value() -> None:
    (none,) = score_response([Judged], answers("1 maybe"), None)
    assert none.value is None
    assert none.explanation is not None
    assert none.explanation["judge_response"] == ["1", "maybe"]
    refused, number = score_response([Refused, ExactNumber], answers("It is 4."), None)
    assert refused.error == "ValueError: the judge gave no verdict"
    assert refused.explanation == {"judge_response": ["I cannot say: It is 4."]}
    assert number.explanation == {"answer": ["4"]}


def test_an_explanation_never_costs_a_value() -> None:
    class Odd(CompletionMetric):
        NAME = "odd"

        def calculate(self, response: Completion) -> MetricResult:
            explain("answer", 5)  # type: ignore[arg-type]
            trace: Any = {"exit": 1}
            return MetricResult(metric_name="odd", value=1.0, higher_is_better=True, code_execution_trace=trace)

    (score,) = score_response([Odd], answers("5"), None)
    assert (score.value, score.explanation) == (1.0, {"answer": ["5"], "program_output": ["{'exit': 1}"]})


def test_answers_are_shown_as_texts() -> None:
    (drop,) = score_response([DropExactMatch], answers("The Smith and Jones\n10 yards", gold="10 yards"), None)
    assert drop.explanation == {"answer": ["10.0 yards; smith and jones"]}
    (same,) = score_response([AccuracyCompletion], answers(" 4\n"), None)
    assert same.explanation is None


def test_outside_of_a_score_nothing_is_kept() -> None:
    explain("answer", "lost")
    (score,) = score_response([ExactMatch], answers("4"), None)
    assert score.explanation is None


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_the_end_of_a_program() -> None:
    def run(text: str) -> str:
        context = MetricContext(test="def check(f):\n    assert f(2) == 4\n", entry_point="double")
        (score,) = score_response([Quick], [Completion(completion_text=text, context=context)], None)
        assert score.explanation is not None
        (output,) = score.explanation["program_output"]
        assert output is not None
        return output

    class Quick(CodeExecutionPassAtOne):
        TIMEOUT_S = 2.0

    with sandbox_policy(SandboxPolicy(allowed=True)):
        assert run("def double(x): return 2 * x") == "The program passed the tests."
        wrong = run("print('hello')\ndef double(x): return x")
        assert wrong.startswith("The program exited before the tests came to their last line.\nhello\n")
        assert "AssertionError" in wrong
        assert run("while True: pass").startswith("The program took too much time.")


def test_a_row_of_scores_holds_it_as_json() -> None:
    text = "x" * 2 * MOST_CHARACTERS + ". \ud83d 4"
    (score,) = score_response([NormalizedExactMatch], answers(text), None)
    prompt = RenderedPrompt(
        sample_id="s",
        source_id="s",
        subject="",
        response_type=ResponseType.COMPLETION,
        messages=(),
        request=Request(request_id="r", prompt="2 + 2?"),
        ground_truths=("4",),
    )
    (row,) = to_table([score_row("sums", "mine", prompt, "s", score)], TABLES["scores"]).to_pylist()
    (answer,) = explanation_of(row)["answer"]
    assert answer is not None
    assert MOST_CHARACTERS < len(answer) < MOST_CHARACTERS + 100
    assert "characters left out" in answer
    assert answer.endswith(" \\ud83d 4")
    assert duckdb.sql("select $1 ->> '$.answer[0]'", params=[row["explanation"]]).fetchall() == [(answer,)]
    assert json.loads(row["explanation"]).keys() == {"answer"}
    assert explanation_of({}) == {}  # of a file that is older
