import re
from dataclasses import replace
from typing import Any

import pytest

from eval_dagster.config.models import GenerationConfig
from eval_dagster.errors import DataError
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.prompts.formatters import ConcatFormatter, IdentityFormatter, Llama3Formatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import GenerationSettings, Message, ResponseType, Role, Row, Sample, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, FewshotStrategy, Formatter
from eval_dagster.tasks.samples import build_samples

ROWS = [{"country": country, "capital": capital} for country, capital in [("Germany", "Berlin"), ("France", "Paris"), ("Italy", "Rome")]]


class Geography(BaseTask[str]):
    NAME = "Geography"
    DATASET_PATH = "geography"
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)
    SUBJECTS = ("world",)

    def _get_system_prompt_text(self, item: Row) -> str | None:
        return "Answer geography questions accurately."

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: What is the capital of {item['country']}?"

    def _get_cue_text(self, item: Row) -> str:
        return "Answer:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [" Rome", " Madrid", " Paris", " Berlin"]

    def _get_ground_truth(self, item: Row) -> Any:
        return f" {item['capital']}"


class Free(Geography):
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    STOP_SEQUENCES = ("\n", "Q:")

    def _get_system_prompt_text(self, item: Row) -> str | None:
        return None

    def _get_cue_text(self, item: Row) -> str:
        return ""

    def _get_ground_truth(self, item: Row) -> Any:
        return item["capital"]


def render(
    task: BaseTask[Any],
    index: int = 2,
    *,
    rows: list[Row] = ROWS,
    fewshot: int = 0,
    formatter: Formatter | None = None,
    generation: GenerationConfig | None = None,
    seed: int = 0,
) -> RenderedPrompt:
    (prompt,) = render_all(task, index, rows=rows, fewshot=fewshot, formatter=formatter, generation=generation, seed=seed)
    return prompt


def render_all(
    task: BaseTask[Any],
    index: int = 0,
    *,
    rows: list[Row] = ROWS,
    fewshot: int = 0,
    formatter: Formatter | None = None,
    generation: GenerationConfig | None = None,
    seed: int = 0,
    **settings: Any,
) -> list[RenderedPrompt]:
    samples = build_samples({"test": rows}, "world")
    rendering = Rendering(
        task=task,
        formatter=formatter or ConcatFormatter(),
        num_fewshot=fewshot,
        seed=seed,
        generation=generation or GenerationConfig(),
        **settings,
    )
    return render_sample(rendering.knowing(samples), samples[index], fewshot_pool(task, samples))


def test_the_geography_quiz_of_the_guide() -> None:
    (prompt,) = render_all(Geography(), 2, fewshot=2, sets="per_sample")
    assert prompt.messages == (
        Message(Role.SYSTEM, "Answer geography questions accurately."),
        Message(Role.USER, "Question: What is the capital of Germany?"),
        Message(Role.ASSISTANT, "Answer: Berlin"),
        Message(Role.USER, "Question: What is the capital of France?"),
        Message(Role.ASSISTANT, "Answer: Paris"),
        Message(Role.USER, "Question: What is the capital of Italy?"),
        Message(Role.ASSISTANT, "Answer:"),
    )
    assert prompt.request.prompt == (
        "Answer geography questions accurately.\n\n"
        "Question: What is the capital of Germany?\nAnswer: Berlin\n\n"
        "Question: What is the capital of France?\nAnswer: Paris\n\n"
        "Question: What is the capital of Italy?\nAnswer:"
    )
    assert prompt.request.choices == (" Rome", " Madrid", " Paris", " Berlin")
    assert prompt.request.generation is None
    assert (prompt.gold_indices, prompt.ground_truths, len(prompt.fewshot_ids)) == ((0,), (" Rome",), 2)


@pytest.mark.parametrize("formatter", [ConcatFormatter(), Llama3Formatter(), IdentityFormatter()])
@pytest.mark.parametrize(("cue", "space"), [("Answer:", " "), ("Answer:", ""), ("Answer: ", " "), ("Answer: ", "")])
def test_a_cue_meets_its_continuation_with_one_space(formatter: Formatter, cue: str, space: str) -> None:
    class Cued(Geography):
        def _get_cue_text(self, item: Row) -> str:
            return cue

        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return [f"{space}Rome", f"{space}Oslo"]

    prompt = render(Cued(), formatter=formatter)
    assert prompt.request.choices is not None
    for choice, city in zip(prompt.request.choices, ["Rome", "Oslo"], strict=True):
        assert (prompt.request.prompt + choice).endswith(f"Answer: {city}")
    assert prompt.gold_indices == (0,)


def test_the_question_meets_choices_as_examples_meet_their_answers() -> None:
    class Bare(Free):
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS

        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return ["Rome", "Oslo"]

    class Colon(Bare):
        def _get_instruction_text(self, item: Row) -> str:
            return f"{item['country']}\nAnswer:"

    bare, colon = render(Bare(), fewshot=1).request, render(Colon(), fewshot=1).request
    assert re.fullmatch(r".*\?\n(Paris|Berlin)\n\nQuestion: What is the capital of Italy\?\n", bare.prompt)
    assert re.fullmatch(r".*\nAnswer: (Paris|Berlin)\n\nItaly\nAnswer:", colon.prompt)
    assert (bare.prompt[-2:], bare.choices) == ("?\n", ("Rome", "Oslo"))
    assert (colon.prompt[-1:], colon.choices) == (":", (" Rome", " Oslo"))
    assert render(Bare(), formatter=Llama3Formatter()).request.choices == ("Rome", "Oslo")


def test_a_chat_prompt_ends_with_its_header_and_takes_no_leading_space() -> None:
    class NoCue(Geography):
        def _get_cue_text(self, item: Row) -> str:
            return ""

    request = render(NoCue(), formatter=Llama3Formatter()).request
    assert request.has_special_tokens
    assert request.prompt.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")
    assert request.choices == ("Rome", "Madrid", "Paris", "Berlin")


def test_a_completion_is_asked_as_the_examples_are() -> None:
    (prompt,) = render_all(Free(), 2, fewshot=2, sets="per_sample")
    assert prompt.request.prompt.endswith("France?\nParis\n\nQuestion: What is the capital of Italy?\n")


def test_generation_settings_combine_task_and_model() -> None:
    model = GenerationConfig(temperature=0.7, top_k=5, max_tokens=8, stop_sequences=("Q:", "END"))
    settings = render(Free(), generation=model, seed=3).request.generation
    assert settings is not None
    assert settings.stop_sequences == ("\n", "Q:", "END")
    assert (settings.max_tokens, settings.temperature, settings.top_k, settings.top_p, settings.seed) == (8, 0.7, 5, None, 3)


def test_a_request_id_names_all_that_is_asked() -> None:
    ids = {
        render(Free()).request.request_id,
        render(Free(), 1).request.request_id,
        render(Free(), formatter=Llama3Formatter()).request.request_id,
        render(Free(), generation=GenerationConfig(max_tokens=8)).request.request_id,
        render(Free(), generation=GenerationConfig(temperature=1), seed=1).request.request_id,
        render(Free(), generation=GenerationConfig(temperature=1), seed=2).request.request_id,
    }
    assert len(ids) == 6
    assert render(Free(), seed=1).request == render(Free(), seed=2).request


def test_a_prompt_depends_on_its_sample_and_the_seed_alone() -> None:
    class Other(Geography):
        SUBJECTS = ("world", "moon")

    rows = [{"country": f"c{index}", "capital": "Rome"} for index in range(30)]
    whole = [render(Geography(), index, rows=rows, fewshot=4) for index in range(30)]
    assert whole[:3] == [render(Geography(), index, rows=rows, fewshot=4) for index in range(3)]
    assert whole[::-1] == [render(Other(), index, rows=rows, fewshot=4) for index in reversed(range(30))]
    for prompt in whole:
        assert prompt.sample_id not in prompt.fewshot_ids


def test_duplicate_choices_stay_apart_and_are_both_correct() -> None:
    class Twice(Geography):
        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return [" Oslo", " Rome", " Rome"]

    prompt = render(Twice())
    assert prompt.request.choices == (" Oslo", " Rome", " Rome")
    assert prompt.gold_indices == (1, 2)


def test_the_gold_answer_may_lack_the_space_of_its_choice() -> None:
    class Guide(Geography):
        def _get_ground_truth(self, item: Row) -> Any:
            return item["capital"]

    assert render(Guide()).gold_indices == (0,)


def test_several_gold_answers() -> None:
    class Several(Geography):
        def _get_ground_truth(self, item: Row) -> Any:
            return [" Berlin", " Rome"]

    assert render(Several()).gold_indices == (0, 3)


@pytest.mark.parametrize("fewshot", [0, 2])
def test_a_missing_field_is_named_with_the_row_that_lacks_it(fewshot: int) -> None:
    rows: list[Row] = [{"country": "Germany", "capital": "Berlin"}, {"land": "France", "capital": "Paris"}, ROWS[2]]
    index = 2 if fewshot else 1
    with pytest.raises(
        DataError, match=r"row 1 of split 'test' \(subject 'world'\) lacks the field 'country'; it has: land, capital, subject"
    ):
        render(Geography(), index, rows=rows, fewshot=fewshot)


@pytest.mark.parametrize("fewshot", [0, 2])
@pytest.mark.parametrize("empty", [None, float("nan")])
def test_a_null_is_a_missing_field(fewshot: int, empty: Any) -> None:
    rows: list[Row] = [{"country": "Germany", "capital": "Berlin"}, {"country": empty, "capital": "Paris"}, ROWS[2]]
    of_row_2 = r"row 2 of split 'test' \(subject 'world'\): its few-shot examples cannot be drawn: " if fewshot else ""
    said = r"row 1 of split 'test' \(subject 'world'\) has no value for the field 'country' \(null\); fill"
    with pytest.raises(DataError, match=f"^{of_row_2}{said}"):
        render(Geography(), 2 if fewshot else 1, rows=rows, fewshot=fewshot)


def test_a_null_answer_is_a_missing_field() -> None:
    rows: list[Row] = [{"country": "Germany", "capital": None}, ROWS[1], ROWS[2]]
    for task, index, fewshot in [(Geography(), 0, 0), (Free(), 0, 0), (Geography(), 2, 2), (Free(), 2, 2)]:
        with pytest.raises(DataError, match=r"row 0 .* has no value for the field 'capital' \(null\)"):
            render(task, index, rows=rows, fewshot=fewshot)


def test_a_hook_may_do_without_a_field_that_is_null() -> None:
    class Optional(Free):
        def _get_instruction_text(self, item: Row) -> str:
            try:
                hint = item["hint"]
            except KeyError:
                hint = "none"
            return f"{item['country']}, {item.get('note')}, {hint}, {sorted(item)}, {'note' in item}, {item.get('meta') == {'by': None}}"

    prompt = render(Optional(), 0, rows=[{**ROWS[0], "note": None, "hint": None, "meta": {"by": None}}])
    fields = ["capital", "country", "hint", "meta", "note", "subject"]
    assert prompt.messages[0].content == f"Germany, None, none, {fields}, True, True"


def test_a_missing_field_of_an_answer_is_named() -> None:
    rows: list[Row] = [{"country": "Germany"}, ROWS[1], ROWS[2]]
    with pytest.raises(DataError, match=r"row 0 .* lacks the field 'capital'; it has: country, subject"):
        render(Geography(), 2, rows=rows, fewshot=2)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (lambda item: " Athens", r"the gold answer \['Athens'\] is not among the choices \[' Rome'"),
        (lambda item: None, r"the gold answer \[\] is not among the choices"),
        (lambda item: 3, r"the task returned 3 as ground truth; expected a text \(such as '3'\), a list of texts or None"),
        (lambda item: int("x"), r"row 2 of split 'test' \(subject 'world'\): the task raised ValueError: invalid literal"),
        (lambda item: item["lost"], r"lacks the field 'lost'; it has: country, capital, subject"),
        (lambda item: {}["lost"], r"row 2 of split 'test' \(subject 'world'\): the task raised KeyError: 'lost'"),
        (lambda item: {}["country"], r"the task raised KeyError: 'country'"),
    ],
)
def test_what_goes_wrong_with_a_row_is_one_clear_error(truth: Any, message: str) -> None:
    class Wrong(Geography):
        def _get_ground_truth(self, item: Row) -> Any:
            return truth(item)

    with pytest.raises(DataError, match=message):
        render(Wrong())


@pytest.mark.parametrize("choices", [None, [1, 2]])
def test_choices_must_be_texts(choices: Any) -> None:
    class Wrong(Geography):
        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return choices  # type: ignore[no-any-return]

    with pytest.raises(DataError, match=r"among its choices|as choices"):
        render(Wrong())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "there are no choices"),
        ([" Rome", ""], "choice 2 of 2 is empty"),
        ([None, " Rome"], "choice 1 of 2 is null"),
        ([" Rome", " "], "choice 2 of 2 is ' ', white space alone"),
    ],
)
def test_a_question_that_no_model_can_score_is_an_error_of_its_sample(choices: Any, message: str) -> None:
    class Gap(Geography):
        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return choices if item["country"] == "Italy" else [" Berlin"]

    prompt = render(Gap(), 2)
    assert prompt.error is not None
    assert prompt.error.startswith("RowError: row 2 of split 'test'")
    assert message in prompt.error
    assert render(Gap(), 0).error is None


@pytest.mark.parametrize("fewshot", [0, 2])
@pytest.mark.parametrize("question", ["What is the capital?", "The capital:", "The capital "])
def test_a_generated_prompt_does_not_tell_its_gold_answer(question: str, fewshot: int) -> None:
    class Asked(Free):
        def _get_instruction_text(self, item: Row) -> str:
            return f"{item['country']}. {question}"

    answers = ["Rome", " Rome", "\nRome", "", "  Rome"]
    prompts = [render(Asked(), 2, rows=[*ROWS[:2], {"country": "Italy", "capital": answer}], fewshot=fewshot) for answer in answers]
    assert len({prompt.request.prompt.rpartition("Italy")[2] for prompt in prompts}) == 1
    assert {prompt.ground_truth for prompt in prompts} == set(answers)


def test_a_generated_prompt_ends_as_before_most_answers_of_its_subject() -> None:
    class Spaced(Free):
        def _get_ground_truth(self, item: Row) -> Any:
            return f" {item['capital']}"

    class Silent(Free):
        def _get_ground_truth(self, item: Row) -> Any:
            return ""

    question = "Question: What is the capital of Italy?"
    for fewshot in (0, 2):
        assert render(Spaced(), 2, fewshot=fewshot).request.prompt.endswith(question), "answers follow after a space"
        assert render(Free(), 2, fewshot=fewshot).request.prompt.endswith(f"{question}\n")
    assert render(Silent(), 2).request.prompt.endswith(question), "a task without answers has no way to write them"


def test_sampling_may_have_a_seed_of_its_own() -> None:
    rows = [{"country": f"c{index}", "capital": "Rome"} for index in range(30)]

    def asked(seed: int, sampling_seed: int | None, temperature: float = 1) -> RenderedPrompt:
        how = {"generation": GenerationConfig(temperature=temperature), "sampling_seed": sampling_seed}
        (prompt,) = render_all(Free(), 2, rows=rows, fewshot=3, seed=seed, **how)
        return prompt

    by_seed, other = asked(3, None), asked(3, 8)
    assert by_seed == asked(3, 3), "equal by default"
    assert other.request.prompt == by_seed.request.prompt, "the examples follow the seed"
    assert (by_seed.request.generation.seed, other.request.generation.seed) == (3, 8)  # type: ignore[union-attr]
    assert asked(4, 8).fewshot_ids != other.fewshot_ids
    assert asked(3, 8, temperature=0).request == asked(3, None, temperature=0).request, "greedy text needs no seed"


def test_examples_need_a_split() -> None:
    (sample,) = build_samples({"test": ROWS[:1]}, "world")
    with pytest.raises(DataError, match="2 few-shot examples are wanted, but task Geography names no split"):
        render_sample(Rendering(task=Geography(), formatter=ConcatFormatter(), num_fewshot=2), sample, None)


class Drawing(Geography):
    """Draws its examples itself, as eval-framework's tasks do."""

    def _sample_fewshot_examples(self, item: Row) -> list[Row]:
        return self.rnd.sample(list(self.dataset["test"]), self.num_fewshot)


def test_a_task_that_draws_itself_never_draws_what_is_asked_and_draws_the_same_again() -> None:
    rows = [{"country": f"Country {index}", "capital": "Rome"} for index in range(6)] + [{"country": "country 2", "capital": "Rome"}]
    for index in range(len(rows)):
        prompt = render(Drawing(), index, rows=rows, fewshot=4)
        assert len(prompt.fewshot_ids) == 4
        asked = f"capital of {rows[index]['country']}?".casefold()
        assert prompt.request.prompt.casefold().count(asked) == 1
        assert prompt == render(Drawing(), index, rows=rows, fewshot=4)
    task = Drawing()
    first = [render(task, index, rows=rows, fewshot=3).request for index in range(5)]
    assert first == [render(task, index, rows=rows, fewshot=3).request for index in reversed(range(5))][::-1]


class Shuffling(Geography):
    """Asks with choices in an order of chance, calls each of three classes by chance, and refuses no example but draws a number."""

    SAMPLE_SPLIT = "asked"

    def _get_instruction_text(self, item: Row) -> str:
        letters = list("ABCDEFGH")
        self.rnd.shuffle(letters)
        return f"{super()._get_instruction_text(item)} {''.join(letters)}"

    def _get_fewshot_class(self, item: Row) -> str:
        return str(self.rnd.randrange(3))

    def is_example(self, item: Row) -> bool:
        return self.rnd.random() < 2


@pytest.mark.parametrize("strategy", ["random", "balanced"])
@pytest.mark.parametrize("task_class", [Shuffling, type("Drawing", (Shuffling, Drawing), {})])
def test_prompts_by_chance_depend_on_no_order_and_share_their_examples(task_class: type[Geography], strategy: FewshotStrategy) -> None:
    words = ["river", "hill", "lake", "wood", "bay", "moor", "fen", "dale"]
    rows = {split: [{"country": f"{split} {word}", "capital": "Rome"} for word in words] for split in ("asked", "test")}
    samples = build_samples(rows, "world")
    asked = [sample for sample in samples if sample.split == "asked"]

    def rendered(order: list[Sample]) -> dict[str, RenderedPrompt]:
        task = task_class()
        pool = fewshot_pool(task, [sample for sample in samples if sample.split == "test"])
        rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=3, strategy=strategy)
        return {sample.sample_id: render_sample(rendering, sample, pool)[0] for sample in order}

    prompts = rendered(asked)
    assert prompts == rendered(asked[::-1])
    assert prompts == {**rendered(asked[:1]), **rendered(asked[1:])}
    assert len({prompt.messages[:-2] for prompt in prompts.values()}) == 1, "the examples, with their letters"
    assert len({prompt.messages[-2].content.rpartition(" ")[2] for prompt in prompts.values()}) == len(asked)
    assert {prompt.fewshot_set for prompt in prompts.values()} == {1}


def test_rows_that_ask_the_same_are_known_although_they_ask_by_chance() -> None:
    rows = [{"id": f"{index} one two three four five six", "country": "Spain", "capital": "Rome"} for index in range(4)]
    with pytest.raises(DataError, match="has 0 distinct few-shot examples"):
        render(Shuffling(), 0, rows=rows, fewshot=1)


def test_a_task_that_draws_from_rows_among_which_is_the_one_asked_shares_no_set() -> None:
    prompts = [render(Drawing(), index, fewshot=1) for index in range(len(ROWS))]
    assert {prompt.fewshot_set for prompt in prompts} == {None}
    assert len({prompt.fewshot_ids for prompt in prompts}) > 1
    assert {render(Geography(), index, fewshot=1).fewshot_set for index in range(len(ROWS))} == {1}


def test_examples_of_a_tasks_own_stand_in_the_prompt_unless_they_tell_the_answer() -> None:
    class Fixed(Geography):
        def _sample_fewshot_examples(self, item: Row) -> list[Row]:
            return [{"country": "Spain", "capital": "Madrid"}, {"country": "Italy", "capital": "Rome"}]

    told = render(Fixed(), 2, fewshot=2)
    assert "Answer: Madrid" in told.request.prompt
    assert "Answer: Rome" not in told.request.prompt
    assert len(told.fewshot_ids) == 1
    assert "Answer: Rome" in render(Fixed(), 0, fewshot=2).request.prompt


def test_an_example_with_the_cue_in_its_answer_bears_it_once() -> None:
    class Cued(Geography):
        def _get_fewshot_target_text(self, item: Row) -> str:
            return f"Answer: {item['capital']}"

    assert render(Cued(), fewshot=2).request == render(Geography(), fewshot=2).request


class Twice(Geography):
    """Asks for the capital of a country and for the country of a capital."""

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        (first,) = super()._create_samples(item, index, subject)
        question = Message(Role.USER, f"Question: {item['capital']} is the capital of which country?")
        second = TaskSample(
            id=index,
            subject=subject,
            messages=[question, Message(Role.ASSISTANT, "Answer:")],
            ground_truth=item["country"],
            response_type=ResponseType.COMPLETION,
            max_tokens=7,
            stop_sequences=["\n"],
            context={"asked": "country"},
        )
        return [first, second] if item["country"] != "France" else []


def test_a_row_can_make_several_samples_or_none() -> None:
    first, second = render_all(Twice(), 0)
    assert (first.source_id, first.sample_id) == (second.source_id, first.source_id)
    assert second.sample_id == f"{first.sample_id}.1"
    assert first.request.choices is not None
    assert second.request.generation == GenerationSettings(max_tokens=7, stop_sequences=("\n",))
    assert second.request.prompt == "Question: Berlin is the capital of which country?\nAnswer:"
    assert second.context[0].asked == "country"  # type: ignore[attr-defined]
    assert second.ground_truths == ("Germany",)
    assert render_all(Twice(), 1) == []


def test_gold_by_position_holds_where_texts_do_not_tell() -> None:
    class Repeated(Geography):
        def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
            (made,) = super()._create_samples(item, index, subject)
            return [replace(made, possible_completions=[" Rome", " Oslo", " Rome"], gold_indices=[2], ground_truth=None)]

    prompt = render(Repeated())
    assert (prompt.gold_indices, prompt.ground_truths) == ((2,), (" Rome",))

    class Outside(Repeated):
        def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
            return [replace(super()._create_samples(item, index, subject)[0], gold_indices=[3])]

    with pytest.raises(DataError, match=r"gold indices are \[3\]; expected positions of the 3 choices"):
        render(Outside())


def test_the_unconditioned_query_meets_the_choices_as_the_prompt_does() -> None:
    class Normalised(Geography):
        def _get_unconditioned_query(self, item: Row) -> str | None:
            return "Answer:"

    assert render(Geography()).request.unconditioned_prompt is None
    plain = render(Normalised()).request
    assert (plain.unconditioned_prompt, plain.choices) == ("Answer:", (" Rome", " Madrid", " Paris", " Berlin"))
    chat = render(Normalised(), formatter=Llama3Formatter()).request
    assert chat.unconditioned_prompt == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nAnswer:<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert plain.request_id != render(Geography()).request.request_id


def test_a_perplexity_scores_the_text_as_it_is_under_every_format() -> None:
    class Text(Geography):
        RESPONSE_TYPE = ResponseType.PERPLEXITY

        def _get_messages(self, item: Row) -> list[Message]:
            return [Message(Role.USER, f"{item['capital']} lies in {item['country']}. ")]

        def _get_ground_truth(self, item: Row) -> Any:
            return None

    for formatter in (ConcatFormatter(), Llama3Formatter()):
        request = render(Text(), formatter=formatter).request
        assert (request.prompt, request.perplexity, request.choices, request.generation) == ("Rome lies in Italy. ", True, None, None)
        assert not request.has_special_tokens


def test_several_texts_are_asked_for_by_task_or_eval() -> None:
    class Several(Free):
        NUM_SAMPLES = 3

    warm = GenerationConfig(temperature=0.5)
    (by_task,) = render_all(Several(), generation=warm)
    (by_eval,) = render_all(Several(), generation=warm, num_samples=5)
    assert [by_task.request.generation.num_samples, by_eval.request.generation.num_samples] == [3, 5]  # type: ignore[union-attr]


class RowSettings(Free):
    """Settings of its own for each row."""

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        return [replace(made, **item["settings"]) for made in super()._create_samples(item, index, subject)]


def test_rows_with_other_settings_do_not_share_them() -> None:
    """Nor do 0 and 0.0, which are equal, and other texts in the id of a request."""
    settings = [{}, {"temperature": 0}, {"temperature": 0.0}, {"max_tokens": 7}, {"stop_sequences": ["a"]}, {"stop_sequences": ("a", "b")}]
    rows = {"test": [{"id": "x", "country": "Spain", "capital": "Madrid", "settings": each} for each in [*settings, *settings[::-1]]]}
    rendering = Rendering(task=RowSettings(), formatter=ConcatFormatter())
    for sample in build_samples(rows, "world"):
        alone = Rendering(task=RowSettings(), formatter=ConcatFormatter())
        together, by_itself = (render_sample(each, sample, None)[0].request for each in (rendering, alone))
        assert together.request_id == by_itself.request_id
        assert repr(together.generation) == repr(by_itself.generation)
    assert len({repr(render_sample(rendering, each, None)[0].request.generation) for each in build_samples(rows, "world")}) == 5


def test_settings_that_a_task_leaves_open_are_the_models() -> None:
    class Open(Free):
        def __init__(self, num_fewshot: int = 0) -> None:
            super().__init__(num_fewshot)
            self.stop_sequences = None
            self.max_tokens = None

    assert render(Open()).request.generation == GenerationSettings(max_tokens=None)
    own = render(Open(), generation=GenerationConfig(max_tokens=400, stop_sequences=("END",))).request.generation
    assert own == GenerationSettings(max_tokens=400, stop_sequences=("END",))
    silent = render(Free(), generation=GenerationConfig(max_tokens=4096)).request.generation
    assert silent is not None
    assert silent.max_tokens == 4096, "a task that says nothing of it"


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [(None, None, None), (None, 4096, 4096), (None, 8, 8), (300, None, 300), (300, 4096, 300), (300, 8, 8)],
)
def test_the_maximum_of_a_text_is_the_lower_of_those_that_are_named(task: int | None, model: int | None, expected: int | None) -> None:
    class Capped(Free):
        MAX_TOKENS = task

    settings = render(Capped(), generation=GenerationConfig(max_tokens=model)).request.generation
    assert settings is not None
    assert settings.max_tokens == expected


def test_strategies_choose_the_examples() -> None:
    rows = [{"country": f"Country {index}", "capital": "Rome" if index < 20 else "Madrid"} for index in range(40)]
    (first,) = render_all(Geography(), 30, rows=rows, fewshot=4, strategy="first")
    assert [f"Country {index}?" in first.request.prompt for index in range(5)] == [True] * 4 + [False]
    (balanced,) = render_all(Geography(), 30, rows=rows, fewshot=4, strategy="balanced")
    assert [balanced.request.prompt.count(f"Answer: {city}") for city in ("Rome", "Madrid")] == [2, 2]

    class OwnWay(Geography):
        FEWSHOT_STRATEGY = "first"

    assert render(OwnWay(), 30, rows=rows, fewshot=4).request == first.request
