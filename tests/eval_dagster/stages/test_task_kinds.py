"""What a task can ask for, from its definition to the stored tables."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.models.base import Model
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project
from eval_dagster.records import ModelResponse, Request

TASK = """
    import ast
    from dataclasses import replace

    from eval_dagster.metrics.base import CompletionMetric, LoglikelihoodMetric, RowMetric
    from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.perplexity import GreedyAccuracy
    from eval_dagster.metrics.perplexity import WordPerplexity
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyPMILoglikelihood
    from eval_dagster.records import Loglikelihood, Message, ResponseType, Role, TaskSample
    from eval_dagster.tasks.base import BaseTask
    from eval_dagster.tasks.doc import Doc
    from eval_dagster.tasks.doc import DocTask

    class SawContext(LoglikelihoodMetric):
        NAME = "saw_context"

        def calculate(self, response):
            return float(response.context.word == response.row["answer"])

    class Runs(CompletionMetric):
        NAME = "runs"

        def calculate(self, response):
            try:
                exec(response.completion_text, {})
            except Exception:
                return 0.0
            return 1.0

    class SawForm(CompletionMetric):
        NAME = "saw_form"

        def calculate(self, response):
            given = Form.TRUTHS[response.row["answer"]]
            return float(response.ground_truth == given and response.completion_text == str(given))

    class MoreProbable(RowMetric[Loglikelihood]):
        NAME = "more_probable"

        def calculate_row(self, responses):
            first, second = (response.loglikelihoods[0] for response in responses)
            return float(first > second)

    class Base(BaseTask[str]):
        NAME = "Kinds"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            self.dataset = {"test": [{"question": f"What is 6 + {n}?", "answer": str(6 + n)} for n in range(1, 4)]}

        def _get_instruction_text(self, item):
            return f"Question: {item['question']}\\nAnswer:"

        def _get_ground_truth(self, item):
            return item["answer"]

    class Chosen(Base):
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood, AccuracyPMILoglikelihood, GreedyAccuracy, SawContext]

        def _get_possible_completions(self, item):
            return ["7", "8", "9"]

        def _get_unconditioned_query(self, item):
            return "Answer:"

        def _get_context(self, item):
            return {"word": item["answer"]}

    class Text(Base):
        RESPONSE_TYPE = ResponseType.PERPLEXITY
        METRICS = [BitsPerByteLoglikelihood]

    class Written(Base):
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]

        def post_process_generated_completion(self, completion_text, sample=None):
            assert sample.messages[-1].content.startswith("Question"), sample
            assert sample.row["answer"] in sample.ground_truth
            return completion_text.strip(" .")

    class Program(Written):
        METRICS = [Runs]

        def _get_ground_truth(self, item):
            return str([f"assert answer() == {item['answer']}"])

        def post_process_generated_completion(self, completion_text, sample=None):
            tests = ast.literal_eval(str(sample.ground_truth))
            return "\\n".join([completion_text, *(tests if isinstance(tests, list) else [])])

    class Form(Written):
        METRICS = [SawForm]
        TRUTHS = {"7": "7", "8": ["8"], "9": None}

        def _get_ground_truth(self, item):
            return self.TRUTHS[item["answer"]]

        def _get_fewshot_target_text(self, item):
            return item["answer"]

        def post_process_generated_completion(self, completion_text, sample=None):
            return str(sample.ground_truth)

    class Thrice(Written):
        NUM_SAMPLES = 3

    class Both(Chosen):
        METRICS = [AccuracyLoglikelihood, ExactMatch]

        def _create_samples(self, item, index, subject):
            (chosen,) = super()._create_samples(item, index, subject)
            return [chosen, replace(chosen, response_type=ResponseType.COMPLETION, max_tokens=5, use_logits=True)]

    class Pair(Chosen):
        METRICS = [MoreProbable, SawContext]

        def _create_samples(self, item, index, subject):
            (chosen,) = super()._create_samples(item, index, subject)
            return [replace(chosen, messages=[Message(Role.USER, f"{word} {chosen.messages[0].content}")]) for word in ("Now", "Then")]

    class WrittenPair(Pair):
        METRICS = [ExactMatch, MoreProbable]

        def _create_samples(self, item, index, subject):
            first, second = super()._create_samples(item, index, subject)
            return [replace(first, response_type=ResponseType.COMPLETION), first, second]

    class Docs(DocTask):
        NAME = "Docs"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        METRICS = [AccuracyLoglikelihood, WordPerplexity, ExactMatch]
        METHODS = ["LOGPROBS", "PERPLEXITY", "GENERATIVE"]

        def _load_dataset(self, subject):
            self.dataset = {"test": [{"question": f"What is 6 + {n}?", "answer": str(6 + n)} for n in range(1, 4)]}

        def doc(self, row):
            return Doc(row["question"], ["7", "8", "9"], int(row["answer"]) - 7, sampling_methods=self.METHODS)

    class Uneven(Docs):
        def doc(self, row):
            methods = ["LOGPROBS", "PERPLEXITY"] if row["answer"] == "8" else ["LOGPROBS"]
            return Doc(row["question"], ["7", "8", "9"], int(row["answer"]) - 7, sampling_methods=methods)

    class ScoredDocs(Docs):
        METHODS = ["LOGPROBS"]
"""
CONFIG = """
    models:
      scripted: {{backend: scripted, function: "answer.py:answer", generation: {{temperature: 0.5}}}}
    evals:
      kind: {{task: "kinds.py:{name}"}}
"""


@pytest.fixture
def run(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., dict[str, list[dict[str, Any]]]]:
    """Evaluate a class of the task file and return the tables' rows."""

    def run_it(name: str, handle: ScriptedHandle | None = None) -> dict[str, list[dict[str, Any]]]:
        write("kinds.py", TASK)
        project = open_project(CONFIG.format(name=name))
        if handle is not None:
            project._handles["scripted"] = handle
        results, failures = run_all(project, [("kind", "scripted")])
        assert failures == []
        tables = {stage: read_rows(result.file.path) for (stage, _), result in results.items()}
        tables["counts"] = [dict(results["model_outputs", "kind"].file.info.counts)]
        return tables

    return run_it


def values(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    for row in tables["sample_scores"]:
        assert row["error"] is None, row
        found.setdefault(row["metric"], []).append(row["value"])
    return found


class Answering(ScriptedHandle, Model):
    """A model that gives prepared responses."""

    def __init__(self, respond: Callable[[Request], ModelResponse]) -> None:
        super().__init__("prepared")
        self._respond = respond

    def load(self) -> Any:
        return self

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        for request in requests:
            yield request, self._respond(request)

    def usage(self) -> tuple[()]:
        return ()


@pytest.mark.long
def test_mutual_information_greediness_and_context_reach_the_metrics(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        assert request.unconditioned_prompt == "Answer:"
        return ModelResponse(
            logprobs=[-1.0, -2.0, -3.0],
            token_logprobs=[[-1.0], [-2.0], [-3.0]],
            output_tokens=[[1], [2], [3]],
            argmax_logits_eq_gold=[False, True, False],
            unconditioned_logprobs=[-1.0, -2.5, -9.0],
        )

    tables = run("Chosen", Answering(respond))
    assert values(tables) == {"accuracy": [1, 0, 0], "accuracy_pmi": [0, 0, 1], "greedy_accuracy": [0, 1, 0], "saw_context": [1, 1, 1]}
    assert tables["model_outputs"][0]["unconditioned_logprobs"] == [-1.0, -2.5, -9.0]
    assert json.loads(tables["rendered_prompts"][0]["context"]) == [{"word": "7"}]


@pytest.mark.long
def test_a_perplexity_is_scored_as_one_choice(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        assert request.perplexity
        # 4 tokens of 2 bits each.
        bits = [-2 * 0.6931471805599453] * 4
        return ModelResponse(logprobs=bits, token_logprobs=[bits], output_tokens=[[1], [2], [3], [4]], argmax_logits_eq_gold=[False])

    tables = run("Text", Answering(respond))
    size = len("Question: What is 6 + 1?\nAnswer:")
    assert values(tables)["bits_per_byte"] == pytest.approx([8 / size] * 3)
    assert tables["model_outputs"][0]["choice_logprobs"] == pytest.approx([-8 * 0.6931471805599453])
    assert [row["response_type"] for row in tables["rendered_prompts"]] == ["perplexity"] * 3


@pytest.mark.long
def test_reasoning_is_split_off_and_a_text_cut_inside_it_is_no_answer(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    texts = {"+ 1": "<think>6 + 1 is 7</think> 7.", "+ 2": "8", "+ 3": "<think>is it 9"}

    def respond(request: Request) -> ModelResponse:
        text = next(text for key, text in texts.items() if key in request.prompt)
        return ModelResponse(text=[text], output_tokens=[[1]], finish_reason=["length" if text.endswith("9") else "stop"])

    tables = run("Written", Answering(respond))
    assert values(tables) == {"exact_match": [1, 1, 0]}
    assert [row["reasoning"] for row in tables["model_outputs"]] == [["6 + 1 is 7"], [None], ["is it 9"]]
    assert [row["text"] for row in tables["model_outputs"]] == [[text] for text in texts.values()]
    assert [row["text_post_processed"] for row in tables["model_outputs"]] == [["7."], ["8"], [""]]
    assert [row["finish_reason"] for row in tables["model_outputs"]] == [["stop"], ["stop"], ["reasoning"]]
    assert (tables["counts"][0]["cut_in_reasoning"], tables["counts"][0]["cut_at_max_tokens"]) == (1, 0)


def test_every_text_of_several_counts(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        assert request.generation is not None
        assert request.generation.num_samples == 3
        return ModelResponse(text=["7", "8", "7"], output_tokens=[[1], [2], [1]], finish_reason=["stop"] * 3)

    assert values(run("Thrice", Answering(respond)))["exact_match"] == pytest.approx([2 / 3, 1 / 3, 0])


def test_a_program_that_post_processing_builds_of_the_gold_answer_holds_its_tests(
    run: Callable[..., dict[str, list[dict[str, Any]]]],
) -> None:
    def respond(request: Request) -> ModelResponse:
        return ModelResponse(text=["def answer(): return 7"], output_tokens=[[1]], finish_reason=["stop"])

    assert values(run("Program", Answering(respond))) == {"runs": [1, 0, 0]}


def test_the_gold_answer_reaches_post_processing_and_metrics_as_the_task_gave_it(
    run: Callable[..., dict[str, list[dict[str, Any]]]],
) -> None:
    def respond(request: Request) -> ModelResponse:
        return ModelResponse(text=["7"], output_tokens=[[1]], finish_reason=["stop"])

    tables = run("Form", Answering(respond))
    assert values(tables) == {"saw_form": [1, 1, 1]}
    assert [row["gold"] for row in tables["rendered_prompts"]] == [["7"], ["8"], []]


@pytest.mark.long
def test_one_row_asked_in_two_ways_has_a_score_of_each(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        if request.choices is None:
            assert request.use_logits
            return ModelResponse(text=["8"], output_tokens=[[4]], finish_reason=["stop"], logits=[[2.5]])
        return ModelResponse(
            logprobs=[-1, -2, -3], token_logprobs=[[-1], [-2], [-3]], output_tokens=[[1]] * 3, argmax_logits_eq_gold=[False] * 3
        )

    tables = run("Both", Answering(respond))
    assert values(tables) == {"accuracy": [1, 0, 0], "exact_match": [0, 1, 0]}
    ids = [(row["sample_id"], row["source_id"]) for row in tables["sample_scores"]]
    assert [sample == source for sample, source in ids] == [True, False] * 3
    assert all(sample == f"{source}.1" for sample, source in ids[1::2])
    assert [row["logits"] for row in tables["model_outputs"]] == [None, [[2.5]]] * 3
    assert {(row["metric"], row["n"]) for row in tables["task_metrics"]} == {("accuracy", 3), ("exact_match", 3)}


def of_any_kind(request: Request) -> ModelResponse:
    """The first choice is the best, each word of a text has the log-probability -2, and every written answer is 8."""
    if request.perplexity:
        words = [-2.0] * len(request.prompt.split())
        return ModelResponse(logprobs=words, token_logprobs=[words], output_tokens=[[1] * len(words)], argmax_logits_eq_gold=[False])
    if request.choices is None:
        return ModelResponse(text=["8"], output_tokens=[[4]], finish_reason=["stop"])
    return ModelResponse(
        logprobs=[-1, -5, -9], token_logprobs=[[-1], [-5], [-9]], output_tokens=[[1]] * 3, argmax_logits_eq_gold=[False] * 3
    )


@pytest.mark.long
def test_each_metric_sees_the_answers_of_its_own_sampling_method(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    tables = run("Docs", Answering(of_any_kind))
    found = {row["metric"]: (row["value"], row["n"], row["n_errors"]) for row in tables["task_metrics"]}
    assert found == {
        "accuracy": (pytest.approx(1 / 3), 3, 0),
        "word_perplexity": (pytest.approx(math.exp(2)), 3, 0),
        "exact_match": (pytest.approx(1 / 3), 3, 0),
    }


def test_a_perplexity_is_of_texts_where_any_row_asks_for_one(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    tables = run("Uneven", Answering(of_any_kind))
    found = {row["metric"]: (row["value"], row["n"], row["n_errors"]) for row in tables["task_metrics"] if row["n"]}
    assert found == {"accuracy": (pytest.approx(1 / 3), 3, 0), "word_perplexity": (pytest.approx(math.exp(2)), 1, 0)}


def test_a_perplexity_is_of_the_right_choice_where_no_text_is_asked_for(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    tables = run("ScoredDocs", Answering(of_any_kind))
    found = {row["metric"]: (row["value"], row["n"]) for row in tables["task_metrics"] if row["n"]}
    assert found == {"accuracy": (pytest.approx(1 / 3), 3), "word_perplexity": (pytest.approx(math.exp(5)), 3)}


@pytest.mark.long
def test_a_metric_of_a_row_sees_only_answers_of_its_kind(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        if request.choices is None:
            return ModelResponse(error="no text") if "+ 3" in request.prompt else of_any_kind(request)
        value = -1.0 if request.prompt.startswith("Now") == ("+ 1" in request.prompt) else -2.0
        return ModelResponse(logprobs=[value] * 3, token_logprobs=[[value]] * 3, argmax_logits_eq_gold=[False] * 3)

    tables = run("WrittenPair", Answering(respond))
    found = {row["metric"]: (row["value"], row["n"], row["n_errors"]) for row in tables["task_metrics"]}
    assert found == {"exact_match": (0.5, 2, 1), "more_probable": (pytest.approx(1 / 3), 3, 0)}
    of_row = [row["sample_id"] for row in tables["sample_scores"] if row["metric"] == "more_probable"]
    assert all(name.endswith(".1") for name in of_row), "the first question that it scores"


@pytest.mark.long
def test_a_metric_of_a_row_sees_the_answers_to_all_its_questions(run: Callable[..., dict[str, list[dict[str, Any]]]]) -> None:
    def respond(request: Request) -> ModelResponse:
        if "+ 3" in request.prompt and request.prompt.startswith("Then"):
            return ModelResponse(error="the machine failed")
        value = -1.0 if request.prompt.startswith("Now") == ("+ 1" in request.prompt) else -2.0
        return ModelResponse(logprobs=[value] * 3, token_logprobs=[[value]] * 3, argmax_logits_eq_gold=[False] * 3)

    tables = run("Pair", Answering(respond))
    of_row = [row for row in tables["sample_scores"] if row["metric"] == "more_probable"]
    assert [(row["value"], row["error"]) for row in of_row] == [(1, None), (0, None), (None, "the machine failed")]
    assert all(row["sample_id"] == row["source_id"] for row in of_row)
    others = [(row["value"], row["error"]) for row in tables["sample_scores"] if row["metric"] == "saw_context"]
    assert others == [(1, None)] * 5 + [(None, "the machine failed")]
    (found,) = (row for row in tables["task_metrics"] if row["metric"] == "more_probable")
    assert (found["value"], found["n"], found["n_errors"]) == (0.5, 2, 1)
