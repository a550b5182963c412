"""The formatting checks: a sound task passes them under every formatter, and each catches what it is for."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from eval_dagster.metrics.base import BaseMetric, CompletionMetric, CorpusMetric, LoglikelihoodMetric, MetricResult, RepeatedMetric
from eval_dagster.metrics.completion import F1, ExactMatch, ExactNumber
from eval_dagster.metrics.loglikelihood import (
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    AccuracyPMILoglikelihood,
    AccuracyTokensLoglikelihood,
    ConfidenceWeightedAccuracy,
    ProbabilityMass,
    ProbabilityMassNorm,
)
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood, GreedyAccuracy, TargetPerplexity
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.prompts.checks import formatting_problems
from eval_dagster.prompts.formatters import ConcatFormatter, IdentityFormatter, Llama3Formatter, formatter_for
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Completion, Loglikelihood, Message, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.base import BaseTask, Formatter, IDKMixin
from eval_dagster.tasks.doc import Doc, DocTask
from eval_dagster.tasks.samples import build_samples
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle

ROWS: list[Row] = [
    {"question": "Which is a fruit?", "choices": ["iron", "apple", "rain", "wool"], "correct": 1},
    {"question": "Which is a metal?", "choices": ["copper", "milk", "sand", "tea"], "correct": 0},
    {"question": "Which flies?", "choices": ["a stone", "a chair", "a crow", "a brick"], "correct": 2},
]


class Quiz(BaseTask[str]):
    """Sound under every formatter."""

    NAME = "Quiz"
    DATASET_PATH = "quiz"
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS: Sequence[type[BaseMetric]] = (AccuracyLoglikelihood,)
    SUBJECTS = ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {choice}" for choice in item["choices"]]

    def _get_ground_truth(self, item: Row) -> Any:
        return f" {item['choices'][item['correct']]}"


class Written(Quiz):
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch, F1)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 8

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return None


class AllMetrics(Quiz):
    METRICS = (
        AccuracyLoglikelihood,
        AccuracyNormLoglikelihood,
        AccuracyTokensLoglikelihood,
        AccuracyPMILoglikelihood,
        ConfidenceWeightedAccuracy,
        ProbabilityMass,
        ProbabilityMassNorm,
        BitsPerByteLoglikelihood,
    )

    def _get_unconditioned_query(self, item: Row) -> str | None:
        return "Answer:"


class Introduced(Quiz):
    """With a system prompt, an introduction and a cue."""

    def _get_system_prompt_text(self, item: Row) -> str | None:
        return "You answer questions."

    def _get_initial_prompt_text(self, item: Row) -> str:
        return "Here are some questions."

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\n"

    def _get_cue_text(self, item: Row) -> str:
        return "Answer:"


class Reasoned(Written):
    """The examples reason; the post-processing takes what follows."""

    STOP_SEQUENCES = ("Question:",)
    MAX_TOKENS = 40

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" I look at each.\nSo it is: {self._get_ground_truth(item)}"

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
        assert sample is not None
        assert sample.row["choices"]
        return completion_text.rpartition("So it is:")[2]


class Styled(BaseTask[str]):
    NAME = "Styled"
    DATASET_PATH = "quiz"
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    TASK_STYLER = MCStyle()
    SUBJECTS = ("all",)

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"])

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"])

    def _get_correct_index(self, item: Row) -> int:
        return int(item["correct"])


class Cloze(Styled):
    TASK_STYLER = ClozeStyle()


class Bits(Styled):
    TASK_STYLER = BPBStyle()


class Unsure(IDKMixin, Styled):
    NAME = "Unsure"


class Text(Quiz):
    RESPONSE_TYPE = ResponseType.PERPLEXITY
    METRICS = (BitsPerByteLoglikelihood,)

    def _get_ground_truth(self, item: Row) -> Any:
        return None


class Mixed(Quiz):
    """Asks in three ways, the last of them about something else."""

    METRICS = (AccuracyLoglikelihood, ExactMatch, BitsPerByteLoglikelihood)

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        (chosen,) = super()._create_samples(item, index, subject)
        text = TaskSample(messages=[Message(Role.USER, item["question"])], ground_truth=None, response_type=ResponseType.PERPLEXITY)
        other = TaskSample(
            messages=[Message(Role.USER, f"How many choices are there: {', '.join(item['choices'])}?")],
            ground_truth=str(len(item["choices"])),
            response_type=ResponseType.COMPLETION,
        )
        return [chosen, replace(chosen, response_type=ResponseType.COMPLETION), text, other]


class Documents(DocTask):
    NAME = "Documents"
    DATASET_PATH = "quiz"
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    METRICS = (AccuracyLoglikelihood, ExactMatch)
    SUBJECTS = ("all",)

    def doc(self, row: Row) -> list[Doc]:
        choices = [f" {choice}" for choice in row["choices"]]
        turned = [f" {choice}" for choice in reversed(row["choices"])]
        query = f"{row['question']}\nAnswer:"
        return [Doc(query, choices, row["correct"]), Doc(f"Again: {query}", turned, len(choices) - 1 - row["correct"])]


def problems(
    task: type[BaseTask[Any]], *, fewshot: int = 0, formatter: Formatter | None = None, rows: list[Row] = ROWS, tokenizer: Any = None
) -> list[str]:
    """Of all prompts of all rows."""
    instance, formatter = task(), formatter or ConcatFormatter()
    samples = build_samples({"test": rows}, "all")
    pool = fewshot_pool(instance, samples)
    found: list[str] = []
    for sample in samples:
        for prompt in render_sample(Rendering(task=instance, formatter=formatter, num_fewshot=fewshot), sample, pool):
            found += formatting_problems(instance, sample, prompt, formatter=formatter, tokenizer=tokenizer)
    return found


SOUND = [Quiz, Written, AllMetrics, Introduced, Reasoned, Styled, Cloze, Bits, Unsure, Text, Mixed, Documents]


@pytest.mark.parametrize("fewshot", [0, 2])
@pytest.mark.parametrize("prompt_format", ["plain", "identity", "llama3", "chat"])
@pytest.mark.parametrize("task", SOUND)
def test_a_sound_task_has_no_problem(
    task: type[BaseTask[Any]], prompt_format: str, fewshot: int, chat_handle: TransformersHandle, tokenizer: PreTrainedTokenizerFast
) -> None:
    formatter = formatter_for(prompt_format, chat_handle)
    assert problems(task, fewshot=fewshot, formatter=formatter, tokenizer=tokenizer) == []
    assert problems(task, fewshot=fewshot, formatter=formatter) == []


def test_choices_that_are_alike_are_named() -> None:
    rows = [{"question": "Which?", "choices": ["iron", "apple", "iron ", "wool"], "correct": 1}]
    assert problems(Quiz, rows=rows) == ["the choice 'iron' stands at the positions [0, 2]; expected each choice once"]


# ---- where prompt and answer meet


class SpaceTwice(Quiz):
    """The question ends with a space, and the examples' answers begin with one."""

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer: "


class WideChoices(Quiz):
    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f"  {choice}" for choice in item["choices"]]

    def _get_ground_truth(self, item: Row) -> Any:
        return f"  {item['choices'][item['correct']]}"


class NoSpace(Quiz):
    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return list(item["choices"])

    def _get_ground_truth(self, item: Row) -> Any:
        return item["choices"][item["correct"]]


class OtherExamples(Quiz):
    """An example is answered by a letter, a question by the text of a choice."""

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {'ABCD'[item['correct']]}"


class WideText(Written):
    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"  {item['choices'][item['correct']]}"


@pytest.mark.parametrize(
    ("task", "formatter", "expected"),
    [
        (SpaceTwice, ConcatFormatter(), r"Which is a fruit\?\\nAnswer: apple'; as a few-shot example it reads '.*Answer:  apple"),
        (SpaceTwice, IdentityFormatter(), r"as a few-shot example it reads '.*Answer:  apple"),
        (WideChoices, ConcatFormatter(), r"Answer:' is followed by '  iron', with more than one space between them"),
        (WideText, ConcatFormatter(), r"Answer:' is followed by '  apple.*', with more than one space between them"),
        (NoSpace, IdentityFormatter(), r"Answer:' is followed by 'iron', with no space between them"),
        (OtherExamples, ConcatFormatter(), r"reads '.*Answer: apple'; as a few-shot example it reads '.*Answer: B\\n\\n\?'"),
        (OtherExamples, Llama3Formatter(), r"reads '.*apple'; as a few-shot example it reads '.*B<\|eot"),
    ],
)
def test_a_space_lost_or_doubled_between_prompt_and_answer_is_shown(task: type[BaseTask[Any]], formatter: Formatter, expected: str) -> None:
    for fewshot in (0, 2):
        found = problems(task, formatter=formatter, fewshot=fewshot)
        assert len(found) >= len(ROWS)
        assert any(re.search(expected, problem) for problem in found), found


@pytest.mark.parametrize("task", [SpaceTwice, NoSpace])
def test_what_a_formatter_mends_is_no_problem(task: type[BaseTask[Any]]) -> None:
    assert problems(task, formatter=Llama3Formatter()) == []


def test_an_answer_on_a_line_of_its_own_may_be_indented() -> None:
    class Code(Written):
        STOP_SEQUENCES = ("\ndef",)

        def _get_instruction_text(self, item: Row) -> str:
            return f"def answer():\n    # {item['question']}\n"

        def _get_ground_truth(self, item: Row) -> Any:
            return f"    return {item['choices'][item['correct']]!r}"

    assert problems(Code, fewshot=1) == []


# ---- special tokens


class TwiceBegun(Llama3Formatter):
    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        return "<|begin_of_text|>" + super().format(messages, images=images)


class Undeclared(Llama3Formatter):
    """Writes the begin token, and lets tokenizers add another."""

    has_special_tokens = False


class MarkedText(Quiz):
    """Brings the marks of a chat template in its own text."""

    def _get_instruction_text(self, item: Row) -> str:
        return f"<|begin_of_text|>{super()._get_instruction_text(item)}"


@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize(
    ("task", "formatter", "expected"),
    [
        (Quiz, TwiceBegun(), "the prompt holds the special token <|begin_of_text|> twice in a row"),
        (Quiz, TwiceBegun(), "the prompt has 2 begin tokens <|begin_of_text|>, all in its text"),
        (Quiz, Undeclared(), "the prompt has 2 begin tokens <|begin_of_text|>, one that a tokenizer adds, the others in its text"),
        (AllMetrics, Undeclared(), "the unconditioned prompt has 2 begin tokens"),
        (MarkedText, ConcatFormatter(), "the prompt has 2 begin tokens"),
        (MarkedText, Llama3Formatter(), "the prompt has 2 begin tokens"),
    ],
)
def test_a_begin_token_that_stands_twice_is_found(
    task: type[BaseTask[Any]], formatter: Formatter, expected: str, encoded: bool, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert any(expected in problem for problem in problems(task, formatter=formatter, tokenizer=tokenizer if encoded else None))


def test_a_tokenizer_that_adds_none_is_content(tokenizer: PreTrainedTokenizerFast) -> None:
    def adding_none(text: str, *, add_special_tokens: bool) -> Any:
        return tokenizer(text, add_special_tokens=False)

    adding_none.bos_token_id, adding_none.bos_token = tokenizer.bos_token_id, tokenizer.bos_token  # type: ignore[attr-defined]
    assert problems(MarkedText, tokenizer=adding_none) == []


def test_struck_out_words_are_no_begin_tokens() -> None:
    class Struck(Quiz):
        def _get_instruction_text(self, item: Row) -> str:
            return f"Question: <s>Whose</s> <s>What</s> {item['question']}\nAnswer:"

    assert problems(Struck) == []


# ---- scores


class AlwaysRight(LoglikelihoodMetric):
    NAME = "always_right"

    def calculate(self, response: Loglikelihood) -> float:
        return 1.0


class TurnedRound(LoglikelihoodMetric):
    NAME = "turned_round"

    def calculate(self, response: Loglikelihood) -> float:
        return 1 - AccuracyLoglikelihood().calculate(response)


class Percent(LoglikelihoodMetric):
    NAME = "percent"

    def calculate(self, response: Loglikelihood) -> float:
        return 100 * AccuracyLoglikelihood().calculate(response)


class DeclaredPercent(Percent):
    BEST = 100.0


class TurnedDirection(LoglikelihoodMetric):
    """Errors, of which fewer are said to be worse."""

    NAME = "turned_direction"
    BEST = 0.0

    def calculate(self, response: Loglikelihood) -> float:
        return 1 - AccuracyLoglikelihood().calculate(response)


class Infinite(LoglikelihoodMetric):
    NAME = "infinite"

    def calculate(self, response: Loglikelihood) -> float:
        return float("-inf") if response.loglikelihoods[0] else 1.0


class Raising(LoglikelihoodMetric):
    NAME = "raising"

    def calculate(self, response: Loglikelihood) -> float:
        raise ZeroDivisionError("half of nothing")


class Several(LoglikelihoodMetric):
    NAME = "several"

    def calculate(self, response: Loglikelihood) -> list[MetricResult]:
        right = AccuracyLoglikelihood().calculate(response)
        parts = {"strict": right, "loose": 1.0, "inverse": 1 - right if right else 1.0}
        return [MetricResult(metric_name=name, value=value, higher_is_better=True) for name, value in parts.items()]


class Words(CompletionMetric):
    NAME = "words"
    BEST = None

    def calculate(self, response: Completion) -> float:
        return len(response.completion_text.split())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (AlwaysRight, "the wrong answer ' iron' gets always_right = 1, which is no worse than the gold answer's 1"),
        (TurnedRound, "the gold answer ' apple' gets turned_round = 0; expected 1, the best value (see TurnedRound.BEST)"),
        (Percent, "the gold answer ' apple' gets percent = 100; expected 1, the best value (see Percent.BEST)"),
        (TurnedDirection, "the wrong answer ' iron' gets turned_direction = 1, which is no worse than the gold answer's 0"),
        (Infinite, "the gold answer ' apple' gets infinite = -inf; expected finite numbers"),
        (Raising, "the metric raising raised ZeroDivisionError for the gold answer ' apple': half of nothing"),
        (AccuracyPMILoglikelihood, "the metric accuracy_pmi raised DataError for the gold answer ' apple': the choices have no log-prob"),
        (Several, "gets several/strict = 1, several/loose = 1, several/inverse = 0; expected 1, the best value"),
    ],
)
def test_a_metric_that_does_not_tell_gold_from_wrong_is_found(metric: type[BaseMetric], expected: str) -> None:
    class Measured(Quiz):
        METRICS = (metric, AccuracyLoglikelihood)

    found = problems(Measured)
    assert expected in found[0]
    assert len(found) == len(ROWS)


def test_a_metric_declares_its_best_value_or_that_it_has_none() -> None:
    class Measured(Quiz):
        METRICS = (DeclaredPercent,)

    class Counted(Written):
        METRICS = (ExactMatch, Words)

    assert problems(Measured) == problems(Counted) == []


def test_every_gold_answer_of_several_is_best() -> None:
    class FirstOnly(LoglikelihoodMetric):
        NAME = "first_only"

        def calculate(self, response: Loglikelihood) -> float:
            return float(response.loglikelihoods.index(max(response.loglikelihoods)) == response.gold_indices[0])

    class Measured(Quiz):
        METRICS = (FirstOnly,)

        def _get_ground_truth(self, item: Row) -> Any:
            return [f" {item['choices'][index]}" for index in (1, 3)]

    assert problems(Measured, rows=ROWS[:1]) == [
        "the gold answer ' wool' gets first_only = 0; expected 1, the best value (see FirstOnly.BEST)"
    ]
    Measured.METRICS = (AccuracyLoglikelihood, ProbabilityMass, ConfidenceWeightedAccuracy)  # type: ignore[assignment]
    assert problems(Measured, rows=ROWS[:1]) == []


class Ratio(CorpusMetric[Completion]):
    """A corpus metric as BLEU is one: of short texts alone it tells nothing."""

    NAME = "ratio"
    STATISTICS = ("right", "long")

    def calculate(self, response: Completion) -> dict[str, float]:
        is_long = len(response.ground_truths[0].split()) > 1
        return {"right": is_long * ExactMatch().calculate(response), "long": is_long}

    @classmethod
    def aggregate(cls, sums: Any) -> Any:
        return np.where(sums[..., 1] > 0, sums[..., 0] / np.maximum(sums[..., 1], 1), np.nan)


class HalfRatio(Ratio):
    NAME = "half_ratio"

    @classmethod
    def aggregate(cls, sums: Any) -> Any:
        return super().aggregate(sums) / 2


class Constant(Ratio):
    NAME = "constant"

    @classmethod
    def aggregate(cls, sums: Any) -> Any:
        return np.zeros(sums.shape[:-1])


def test_a_corpus_metric_is_that_of_the_sample_alone_where_that_tells() -> None:
    class Measured(Written):
        METRICS = (Ratio, HalfRatio, Constant)

    assert problems(Measured) == ["the gold answer ' a crow' gets half_ratio = 0.5; expected 1, the best value (see HalfRatio.BEST)"]


class BestOfFour(RepeatedMetric):
    NAME = "best_of_four"

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        if len(responses) < 4:
            raise ValueError(f"{len(responses)} texts")
        return max(ExactMatch().calculate(response) for response in responses)


def test_a_metric_of_several_texts_sees_as_many_as_are_generated() -> None:
    class Measured(Written):
        METRICS = (BestOfFour,)
        NUM_SAMPLES = 4

    class TooFew(Measured):
        NUM_SAMPLES = 3

    assert problems(Measured) == []
    assert problems(TooFew)[0] == "the metric best_of_four raised ValueError for the gold answer ' apple': 3 texts"


class FirstBeatsWrong(LoglikelihoodMetric):
    """Whether the first correct choice is more probable than every wrong one, however probable the other correct ones are."""

    NAME = "first_beats_wrong"

    def calculate(self, response: Loglikelihood) -> float:
        values, gold = response.loglikelihoods, response.gold_indices
        return float(all(values[gold[0]] > value for index, value in enumerate(values) if index not in gold))


def test_one_gold_answer_may_be_better_than_another() -> None:
    class Measured(Quiz):
        METRICS = (FirstBeatsWrong, AccuracyLoglikelihood, AccuracyNormLoglikelihood, ProbabilityMass, ConfidenceWeightedAccuracy)

        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return [" no", " yes, by far the longest of all", " yes", " not at all, whoever may ask"]

        def _get_ground_truth(self, item: Row) -> Any:
            return [" yes, by far the longest of all", " yes"]

    assert problems(Measured) == []


def test_a_single_choice_cannot_be_told_by_accuracy() -> None:
    class OneChoice(Bits):
        METRICS = (AccuracyLoglikelihood, BitsPerByteLoglikelihood)

    found = problems(OneChoice)
    assert found == ["a gold answer that is improbable gets accuracy = 1, which is no worse than the gold answer's 1"] * len(ROWS)


def test_a_single_choice_is_told_by_what_a_model_would_write_and_by_its_perplexity() -> None:
    class Continued(Bits):
        METRICS = (GreedyAccuracy, TargetPerplexity)

    class Likelihood(TargetPerplexity):
        NAME = "likelihood"

        @classmethod
        def aggregate(cls, sums: Any) -> Any:
            return 1 / super().aggregate(sums)

    class Turned(Bits):
        METRICS = (Likelihood,)

    assert problems(Continued) == []
    found = problems(Turned)
    assert found == ["a gold answer that is improbable gets likelihood = 0, which is no worse than the gold answer's 1"] * len(ROWS)


def test_an_unsure_choice_that_counts_as_correct_is_found() -> None:
    class Sure(Unsure):
        def _get_correct_index(self, item: Row) -> int:
            return len(item["choices"])

    assert any("the last choice is marked as correct" in problem for problem in problems(Sure))


class Reversed(Written):
    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
        return completion_text[::-1]


class Demanding(Written):
    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
        return completion_text.split()[0]


class CutShort(Written):
    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"\n{item['choices'][item['correct']]}"


class Brief(Reasoned):
    MAX_TOKENS = 3


class EmptyIsRight(Written):
    METRICS = (F1,)

    def _get_ground_truth(self, item: Row) -> Any:
        return "The"


class Wordy(Written):
    METRICS = (ExactNumber,)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Reversed, "the gold answer ' apple' gets exact_match = 0; expected 1"),
        (Demanding, "the task raised IndexError: list index out of range"),
        (CutShort, "the gold answer '\\napple', which the stop sequence '\\n' cuts to '', gets exact_match = 0"),
        (Brief, "the gold answer has 8 words, more than the 3 tokens (max_tokens) that are generated"),
        (EmptyIsRight, "the wrong answer '' gets f1 = 1, which is no worse than the gold answer's 1"),
        (Wordy, "the metric exact_number raised DataError for the gold answer ' apple': the gold answer ' apple' holds no number"),
    ],
)
def test_a_gold_text_that_does_not_score_is_found(task: type[BaseTask[Any]], expected: str) -> None:
    found = problems(task)
    assert any(expected in problem for problem in found), found
    assert len(found) >= len(ROWS)


def test_an_empty_text_may_be_the_gold_answer() -> None:
    class Unanswerable(Written):
        METRICS = (F1, ExactMatch)

        def _get_ground_truth(self, item: Row) -> Any:
            return [""]

        def _get_fewshot_target_text(self, item: Row) -> str:
            return " unanswerable"

        def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:
            return completion_text.replace("unanswerable", "")

    assert problems(Unanswerable) == []


def test_a_perplexity_that_falls_with_the_probability_is_found() -> None:
    class Likelihood(BitsPerByteLoglikelihood):
        NAME = "likelihood"
        BEST = 0.0

        def calculate(self, response: Loglikelihood) -> float:
            return -super().calculate(response)

    class Overflowing(BitsPerByteLoglikelihood):
        NAME = "overflowing"

        def calculate(self, response: Loglikelihood) -> float:
            return float("inf") if response.loglikelihoods[0] else 0.0

    class Broken(Text):
        METRICS = (Likelihood, Overflowing)

    falling, overflowing = problems(Broken, rows=ROWS[:1])
    assert falling.startswith("a text that is less than certain gets likelihood = -0.0")
    assert falling.endswith("which is no worse than the gold answer's 0")
    assert overflowing == "a text that is less than certain gets overflowing = inf; expected finite numbers"


def test_a_response_that_no_metric_scores_is_found() -> None:
    class Unscored(Mixed):
        METRICS = (AccuracyLoglikelihood, ExactMatch)

    assert problems(Unscored, rows=ROWS[:1]) == ["none of the task's metrics (accuracy, exact_match) scores what is asked for: perplexity"]


def test_a_completion_without_a_gold_answer_is_checked_for_errors_alone() -> None:
    class Free(Written):
        METRICS = (Words,)

        def _get_ground_truth(self, item: Row) -> Any:
            return None

    class Compared(Free):
        METRICS = (ExactMatch,)

    assert problems(Free) == []
    assert "the metric exact_match raised DataError for the wrong answer 'qwzx vbnk': there is no gold answer" in problems(Compared)[0]
