from typing import Any

import pytest

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.completion import AccuracyCompletion, ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.prompts.checks import GoldScores
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import Message, ResponseType, Role, Row
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask, Formatter
from eval_dagster.tasks.language import Language
from eval_dagster.tasks.samples import build_samples
from eval_dagster.tasks.style import (
    BPBStyle,
    ClozeStyle,
    MCCompletionStyle,
    MCStyle,
    TaskStyle,
    TaskStyler,
    answer_key_to_index,
    get_n_letters,
)

ROWS = [
    {"ask": "Which planet has rings?", "options": ["Mars", "Saturn", "Venus"], "right": 1},
    {"ask": "Which planet is red?", "options": ["Mars", "Saturn", "Venus"], "right": 0},
]


def styled(styler: TaskStyler, **attributes: Any) -> type[BaseTask[str]]:
    class Planets(BaseTask[str]):
        NAME = "Planets"
        DATASET_PATH = "planets"
        SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
        SUBJECTS = ("all",)
        TASK_STYLER = styler

        def _get_raw_question(self, item: Row) -> str:
            return str(item["ask"])

        def _get_choices(self, item: Row) -> list[str]:
            return list(item["options"])

        def _get_correct_index(self, item: Row) -> int:
            return int(item["right"])

    return type("Planets", (Planets,), attributes) if attributes else Planets


def render(styler: TaskStyler, *, fewshot: int = 0, formatter: Formatter | None = None) -> RenderedPrompt:
    task, samples = styled(styler)(), build_samples({"test": ROWS}, "all")
    rendering = Rendering(task=task, formatter=formatter or ConcatFormatter(), num_fewshot=fewshot)
    (prompt,) = render_sample(rendering, samples[0], fewshot_pool(task, samples))
    return prompt


def test_multiple_choice() -> None:
    prompt = render(MCStyle(), fewshot=1)
    assert prompt.messages == (
        Message(Role.USER, "Question: Which planet is red?\nA. Mars\nB. Saturn\nC. Venus\n"),
        Message(Role.ASSISTANT, "Answer: A"),
        Message(Role.USER, "Question: Which planet has rings?\nA. Mars\nB. Saturn\nC. Venus\n"),
        Message(Role.ASSISTANT, "Answer:"),
    )
    assert prompt.request.prompt.endswith("C. Venus\nAnswer: A\n\nQuestion: Which planet has rings?\nA. Mars\nB. Saturn\nC. Venus\nAnswer:")
    assert prompt.request.choices == (" A", " B", " C")
    assert (prompt.ground_truths, prompt.gold_indices) == ((" B",), (1,))


def test_multiple_choice_with_a_space_before_the_labels() -> None:
    prompt = render(MCStyle(question_prefix="Q: ", cue_text="A:", space_prefixed_labels=True))
    assert prompt.request.prompt == "Q: Which planet has rings?\n A. Mars\n B. Saturn\n C. Venus\nA:"


def test_multiple_choice_in_words() -> None:
    prompt = render(MCCompletionStyle(), fewshot=1)
    assert prompt.messages[0].content == "Question: Which planet is red?\nA. Mars\nB. Saturn\nC. Venus\n"
    assert prompt.messages[1] == Message(Role.ASSISTANT, "Answer: Mars")
    assert prompt.request.prompt == render(MCStyle(), fewshot=1).request.prompt.replace("Answer: A\n", "Answer: Mars\n")
    assert (prompt.response_type, prompt.request.choices) == (ResponseType.COMPLETION, None)
    assert prompt.request.generation is not None
    assert (prompt.ground_truths, prompt.gold_indices) == (("Saturn",), ())


def test_cloze() -> None:
    prompt = render(ClozeStyle(), fewshot=1)
    assert prompt.request.prompt == "Question: Which planet is red?\nAnswer: Mars\n\nQuestion: Which planet has rings?\nAnswer:"
    assert prompt.request.choices == (" Mars", " Saturn", " Venus")
    assert prompt.gold_indices == (1,)


def test_cloze_that_continues_a_sentence() -> None:
    styler = ClozeStyle(question_prefix="", cue_text="", trailing_newline=False)
    prompt = render(styler, fewshot=1)
    assert prompt.messages[1:] == (Message(Role.ASSISTANT, " Mars"), Message(Role.USER, "Which planet has rings?"))
    assert prompt.request.prompt == "Which planet is red? Mars\n\nWhich planet has rings?"
    assert prompt.request.choices == (" Mars", " Saturn", " Venus")


def test_choices_may_come_without_their_space() -> None:
    styler = ClozeStyle(leading_space_continuations=False)
    assert styler.get_possible_completions(["Mars", "Venus"]) == ["Mars", "Venus"]
    assert styler.get_ground_truth(["Mars", "Venus"], 1) == "Venus"


@pytest.mark.parametrize("formatter", [ConcatFormatter(), Llama3Formatter()])
@pytest.mark.parametrize(
    "styler",
    [
        MCStyle(),
        MCStyle(cue_text="Answer: "),
        ClozeStyle(leading_space_continuations=False),
        ClozeStyle(cue_text="Answer: "),
        BPBStyle(),
        MCCompletionStyle(cue_text="Answer: "),
    ],
)
def test_an_example_reads_as_what_is_scored(styler: TaskStyler, formatter: Formatter) -> None:
    prompt = render(styler, fewshot=1, formatter=formatter)
    assert prompt.messages[1].content.startswith("Answer: ")
    assert not prompt.messages[1].content.startswith("Answer:  ")
    for choice in prompt.request.choices or ():
        assert f"Answer: {choice.strip()}" in (prompt.request.prompt + choice)


def test_bits_per_byte_scores_the_correct_choice_alone() -> None:
    prompt = render(BPBStyle())
    assert prompt.request.prompt == render(ClozeStyle()).request.prompt
    assert (prompt.request.choices, prompt.gold_indices) == ((" Saturn",), (0,))
    with pytest.raises(DataError, match="BPBStyle scores the correct choice alone; give its position as correct_index"):
        BPBStyle().get_possible_completions(["a", "b"])


@pytest.mark.parametrize(
    ("styler", "style", "response_type", "metrics"),
    [
        (
            MCStyle(),
            TaskStyle.MULTIPLE_CHOICE,
            ResponseType.LOGLIKELIHOODS,
            (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood),
        ),
        (
            ClozeStyle(),
            TaskStyle.CLOZE,
            ResponseType.LOGLIKELIHOODS,
            (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood),
        ),
        (BPBStyle(), TaskStyle.BPB, ResponseType.LOGLIKELIHOODS, (BitsPerByteLoglikelihood,)),
        (MCCompletionStyle(), TaskStyle.MULTIPLE_CHOICE, ResponseType.COMPLETION, (ExactMatch,)),
    ],
)
def test_a_styler_brings_response_type_and_metrics(styler: TaskStyler, style: Any, response_type: Any, metrics: Any) -> None:
    task = styled(styler)
    check_task(task)
    assert (styler.task_style, task.RESPONSE_TYPE, task.METRICS) == (style, response_type, metrics)


@pytest.mark.parametrize("styler", [MCStyle(), MCCompletionStyle(), MCCompletionStyle(cue_text=""), ClozeStyle()])
def test_the_gold_answer_is_right_and_others_are_not(styler: TaskStyler) -> None:
    (sample, _), prompt = build_samples({"test": ROWS}, "all"), render(styler)
    scored = GoldScores(asked=AnsweredPrompt(task=styled(styler)(), sample=sample, prompt=prompt), answer=" Saturn")
    assert list(scored.problems()) == []


def test_a_task_may_have_metrics_of_its_own() -> None:
    task = styled(MCCompletionStyle(), TASK_STYLER=MCCompletionStyle(), METRICS=[AccuracyCompletion])
    check_task(task)
    assert list(task.METRICS) == [AccuracyCompletion]


def test_a_variant_changes_the_styler_alone() -> None:
    variant = styled(MCStyle(), TASK_STYLER=BPBStyle())
    check_task(variant)
    assert (variant.METRICS, variant()._get_possible_completions(ROWS[0])) == ((BitsPerByteLoglikelihood,), [" Saturn"])


@pytest.mark.parametrize(
    ("language", "prefix", "cue"),
    [(Language.DEU, "Frage: ", "Antwort:"), (Language.ENG, "Question: ", "Answer:"), (Language.SPA, "Pregunta: ", "Respuesta:")],
)
def test_the_words_of_a_language(language: Language, prefix: str, cue: str) -> None:
    styler = MCStyle.for_language(language, space_prefixed_labels=True)
    assert styler.get_question_text("x") == f"{prefix}x"
    assert (styler.get_cue_text(), styler.space_prefixed_labels) == (cue, True)
    assert ClozeStyle.for_language(language, cue_text="->").get_cue_text() == "->"


def test_a_language_without_known_words_needs_both() -> None:
    with pytest.raises(TaskDefinitionError, match=r"MCStyle knows no words for Language\.MLT; give it question_prefix and cue_text, or"):
        MCStyle.for_language(Language.MLT, cue_text="Tweġiba:")
    assert MCStyle.for_language(Language.MLT, question_prefix="", cue_text="Tweġiba:").get_cue_text() == "Tweġiba:"


@pytest.mark.parametrize(("count", "last"), [(1, "A"), (4, "D"), (26, "Z"), (27, "AA"), (52, "AZ"), (53, "BA"), (702, "ZZ"), (703, "AAA")])
def test_labels(count: int, last: str) -> None:
    letters = get_n_letters(count)
    assert (len(letters), len(set(letters)), letters[-1]) == (count, count, last)


def test_no_labels() -> None:
    assert get_n_letters(0) == get_n_letters(-1) == []


@pytest.mark.parametrize(("key", "index"), [("A", 0), ("d", 3), ("1", 0), (" 4 ", 3), ("12", 11)])
def test_answer_keys(key: str, index: int) -> None:
    assert answer_key_to_index(key) == index


@pytest.mark.parametrize("key", ["", "0", "AB", "?", "-1"])
def test_a_wrong_answer_key_is_named(key: str) -> None:
    with pytest.raises(DataError, match=r"the answer key is .*; expected a letter from A on or a number from 1 on"):
        answer_key_to_index(key)


@pytest.mark.parametrize("styler", [MCStyle(), MCCompletionStyle(), ClozeStyle(), BPBStyle()])
@pytest.mark.parametrize("index", [-1, 3, "1"])
def test_a_position_outside_the_choices_is_named(styler: TaskStyler, index: Any) -> None:
    with pytest.raises(DataError, match=r"the correct index is .*; expected a position of the 3 choices \['a', 'b', 'c'\], from 0"):
        styler.get_ground_truth(["a", "b", "c"], index)
