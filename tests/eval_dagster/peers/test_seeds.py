"""Task files written for eval-framework and lighteval run as they are: what they ask, what is correct, what it scores."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eval_dagster.metrics.base import named_values
from eval_dagster.metrics.loglikelihood import AccuracyPMILoglikelihood
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Completion, Loglikelihood, Message, ModelResponse, ResponseType, Role, Row
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import load_task, select_subjects
from eval_dagster.tasks.base import BaseTask, Formatter
from eval_dagster.tasks.benchmark import OrderedTask
from eval_dagster.tasks.samples import TaskRow, build_samples

FILES = Path(__file__).parent / "foreign"
FRUITS = [
    {"thing": "a lemon", "colour": "yellow", "letter": "C"},
    {"thing": "a cherry", "colour": "red", "letter": "A"},
    {"thing": "a lime", "colour": "green", "letter": "B"},
]
FRUIT_ROWS: list[Row] = [{**row, "colours": ["red", "green", "yellow"]} for row in FRUITS]
RIVER_ROWS: list[Row] = [
    {"river": river, "sea": sea, "seas": [" Black Sea", " North Sea", " Baltic"], "sea_index": index}
    for river, sea, index in [("Danube", "Black Sea", 0), ("Rhine", "North Sea", 1), ("Oder", "Baltic", 2)]
]
MOON_ROWS: list[Row] = [
    {"moon": moon, "planet": planet, "planets": ["Mars", "Saturn", "Uranus"]}
    for moon, planet in [("Phobos", "Mars"), ("Titan", "Saturn"), ("Oberon", "Uranus")]
]


NAMES = {
    "Accuracy Loglikelihood": "accuracy",
    "Accuracy Normalized Loglikelihood": "accuracy_norm",
    "Confidence-weighted Accuracy": "confidence_weighted_accuracy",
    "Distributional Correctness Score": "distributional_correctness_score",
    "Probability Mass": "probability_mass",
    "Probability Mass Normalized": "probability_mass_norm",
    "Ternary Score": "ternary_score",
}
"""Short names of eval-framework's metrics."""


def task_of(spec: str) -> BaseTask[Any]:
    return load_task(spec, {}, FILES)()


def render_all(
    spec: str, rows: Sequence[Row], index: int = 0, *, subject: str = "all", fewshot: int = 0, **settings: Any
) -> list[RenderedPrompt]:
    made = load_task(spec, {}, FILES)
    if issubclass(made, OrderedTask):
        return _render_ordered(made(num_fewshot=fewshot), rows, index, subject=subject, **settings)
    task, samples = made(), build_samples({"test": rows}, subject)
    given: dict[str, Any] = {"formatter": ConcatFormatter(), "strategy": "first", **settings}
    rendering = Rendering(task=task, num_fewshot=fewshot, **given).knowing(samples)
    return render_sample(rendering, samples[index], fewshot_pool(task, samples))


def _render_ordered(task: OrderedTask[Any], rows: Sequence[Row], index: int, *, subject: str, **settings: Any) -> list[RenderedPrompt]:
    """The prompts of a task of eval-framework. Its examples are the first other rows, so that the order alone is drawn."""
    pool = [dict(row) for place, row in enumerate(rows) if place != index][: task.num_fewshot]
    samples = build_samples({"test": rows, str(task.FEWSHOT_SPLIT): pool}, subject)
    task.prepare(samples)
    return render_sample(Rendering(task=task, **{"formatter": ConcatFormatter(), **settings}), samples[index], None)


def render(spec: str, rows: Sequence[Row], index: int = 0, **settings: Any) -> RenderedPrompt:
    (prompt,) = render_all(spec, rows, index, **settings)
    return prompt


def scores(spec: str, prompt: RenderedPrompt, logprobs: Sequence[float]) -> Mapping[str, float]:
    view = Loglikelihood(loglikelihoods=logprobs, choices=prompt.request.choices or (), gold_indices=prompt.gold_indices)
    return {
        NAMES.get(metric.NAME, metric.NAME): named_values(metric.NAME, metric().calculate(view))[metric.NAME]
        for metric in task_of(spec).METRICS
    }


# ---- choices


def test_choices_as_they_stand_in_the_row() -> None:
    spec = "choices.py:Colours"
    prompt = render(spec, FRUIT_ROWS)
    assert prompt.messages == (Message(Role.USER, "What colour is a lemon?"),)
    assert prompt.request.prompt == "What colour is a lemon?"
    assert prompt.request.choices == ("red", "green", "yellow")
    assert (prompt.ground_truths, prompt.gold_indices, prompt.response_type) == (("yellow",), (2,), ResponseType.LOGLIKELIHOODS)
    assert scores(spec, prompt, [-2, -3, -1]) == {"accuracy": 1}
    assert scores(spec, prompt, [-1, -3, -2]) == {"accuracy": 0}


def test_choices_with_the_space_that_parts_them_from_the_prompt() -> None:
    spec = "choices.py:SpacedColours"
    prompt = render(spec, FRUIT_ROWS, fewshot=2)
    assert prompt.request.prompt == "Thing: a cherry\nColour:red\n\nThing: a lime\nColour:green\n\nThing: a lemon\nColour:"
    assert prompt.request.choices == (" red", " green", " yellow")
    assert prompt.gold_indices == (2,)
    assert scores(spec, prompt, [-9, -9, -1]) == {"accuracy": 1}


def test_letters_are_scored_and_answer_the_examples_without_their_space() -> None:
    spec = "choices.py:LabelledColours"
    prompt = render(spec, FRUIT_ROWS, 2, fewshot=1, subject="fruits")
    assert prompt.messages[1] == Message(Role.ASSISTANT, "C")
    assert prompt.request.prompt == (
        "What colour is a lemon?\nA) red\nB) green\nC) yellow\nLetter:C\n\nWhat colour is a lime?\nA) red\nB) green\nC) yellow\nLetter:"
    )
    assert prompt.request.choices == (" A", " B", " C")
    assert (prompt.ground_truths, prompt.gold_indices) == ((" B",), (1,))
    assert select_subjects(load_task(spec, {}, FILES), ["skies"]) == ["skies"]


@pytest.mark.parametrize(("holds", "gold"), [(True, (0,)), (False, (1,))])
def test_right_or_wrong(holds: bool, gold: tuple[int, ...]) -> None:
    spec = "choices.py:Claims"
    prompt = render(spec, [{"claim": "Ice floats.", "holds": holds}])
    assert (prompt.request.prompt, prompt.request.choices) == ("Ice floats. Right or wrong?", (" Right", " Wrong"))
    assert prompt.gold_indices == gold
    assert scores(spec, prompt, [-1, -2]) == {"accuracy": float(holds)}


def test_a_variant_with_a_last_choice_that_is_no_answer() -> None:
    spec = "choices.py:UnsureColours"
    prompt = render(spec, FRUIT_ROWS, fewshot=1)
    assert prompt.request.prompt == "Better no answer than a wrong one.\n\nThing: a cherry\nColour:red\n\nThing: a lemon\nColour:"
    assert prompt.request.choices == (" red", " green", " yellow", " no answer")
    assert prompt.gold_indices == (2,)
    certain = [scores(spec, prompt, [-500 if index != best else 0 for index in range(4)]) for best in range(4)]
    assert [each["ternary_score"] for each in certain] == [-1, -1, 1, 0]
    for each, expected in zip(certain, [-1, -1, 1, 0], strict=True):
        assert each["distributional_correctness_score"] == pytest.approx(expected, abs=0.01)
    assert "UnsureColours" in load_task(spec, {}, FILES).__name__


def test_something_for_the_system_and_before_the_first_question() -> None:
    spec = "choices.py:PolitelyAskedColours"
    prompt = render(spec, FRUIT_ROWS, fewshot=1)
    assert prompt.messages == (
        Message(Role.SYSTEM, "You have good eyes."),
        Message(Role.USER, "Please name colours.\n\nThing: a cherry\nColour:"),
        Message(Role.ASSISTANT, "red"),
        Message(Role.USER, "Thing: a lemon\nColour:"),
    )
    assert prompt.request.prompt == "You have good eyes.\n\nPlease name colours.\n\nThing: a cherry\nColour:red\n\nThing: a lemon\nColour:"
    equal = scores(spec, prompt, [math.log(0.2), math.log(0.2), math.log(0.6)])
    assert equal["accuracy"] == 1
    assert equal["probability_mass"] == pytest.approx(0.6)
    assert set(equal) == {"accuracy", "accuracy_norm", "confidence_weighted_accuracy", "probability_mass", "probability_mass_norm"}


def test_subjects_that_are_members_of_an_enum() -> None:
    spec = "choices.py:ShelvedColours"
    task = load_task(spec, {}, FILES)
    (member,) = select_subjects(task, ["green_grocery"])
    assert select_subjects(task, ["GREEN_GROCERY"]) == select_subjects(task, [member]) == [member]
    assert len(select_subjects(task, None)) == 2
    prompt = render(spec, FRUIT_ROWS, 2, fewshot=1, subject=member)
    assert prompt.subject == "green_grocery"
    assert prompt.request.prompt == (
        "You know every shelf.\n\nShelf (Green Grocery)\nWhat colour is a lemon?\nA) red\nB) green\nC) yellow\nLetter:C\n\n"
        "Shelf (Green Grocery)\nWhat colour is a lime?\nA) red\nB) green\nC) yellow\nLetter:"
    )
    assert (prompt.request.choices, prompt.gold_indices) == ((" A", " B", " C"), (1,))
    assert scores(spec, prompt, [-3, -1, -2]) == {"accuracy": 1}


# ---- texts


RIVERS = (
    Message(Role.SYSTEM, "You know maps."),
    Message(Role.USER, "Which sea does the Danube reach?"),
    Message(Role.ASSISTANT, "Sea: Black Sea"),
    Message(Role.USER, "Which sea does the Rhine reach?"),
    Message(Role.ASSISTANT, "Sea: North Sea"),
    Message(Role.USER, "Which sea does the Oder reach?"),
    Message(Role.ASSISTANT, "Sea:"),
)


@pytest.mark.parametrize("name", ["Rivers", "RiversByHand", "RankedRivers"])
@pytest.mark.parametrize("formatter", [ConcatFormatter(), Llama3Formatter()])
def test_system_examples_question_and_cue(name: str, formatter: Formatter) -> None:
    prompt = render(f"texts.py:{name}", RIVER_ROWS, 2, fewshot=2, formatter=formatter)
    assert prompt.messages == RIVERS
    assert len(prompt.fewshot_ids) == (0 if name == "RiversByHand" else 2)
    assert prompt.request.prompt.endswith("Sea:")
    assert prompt.request.prompt.count("Sea: North Sea") == 1


def test_the_text_is_post_processed_and_compared() -> None:
    prompt = render("texts.py:Rivers", RIVER_ROWS, 2)
    assert prompt.request.generation is not None
    assert prompt.request.choices is None
    task = task_of("texts.py:Rivers")
    text = task.post_process_generated_completion(" Baltic.")
    view = Completion(completion_text=text, raw_text=" Baltic.", ground_truths=prompt.ground_truths)
    (metric,) = task.METRICS
    assert metric().calculate(view)[0].value == 1
    assert metric().calculate(Completion(completion_text="the Baltic", ground_truths=prompt.ground_truths))[0].value == 0


def test_the_seas_are_ranked() -> None:
    spec = "texts.py:RankedRivers"
    prompt = render(spec, RIVER_ROWS, 1)
    assert prompt.request.choices == (" Black Sea", " North Sea", " Baltic")
    assert (prompt.ground_truths, prompt.gold_indices) == ((" North Sea",), (1,))
    assert scores(spec, prompt, [-2, -1, -3]) == {"accuracy": 1}


# ---- Docs


def test_a_doc_with_choices() -> None:
    spec = "docs.py:moons"
    prompt = render(spec, MOON_ROWS, 1, fewshot=1)
    assert prompt.messages == (
        Message(Role.USER, "Name a planet.\n\nPhobos circles"),
        Message(Role.ASSISTANT, "Mars"),
        Message(Role.USER, "Titan circles"),
    )
    assert (prompt.request.choices, prompt.gold_indices) == (("Mars", "Saturn", "Uranus"), (1,))
    assert scores(spec, prompt, [-3, -1, -2]) == {"accuracy": 1}


def test_a_doc_with_several_answers() -> None:
    spec = "docs.py:moons_with_two_answers"
    prompt = render(spec, MOON_ROWS)
    assert (prompt.request.choices, prompt.gold_indices) == ((" Jupiter", " Venus", " Saturn"), (0, 2))
    assert [scores(spec, prompt, logprobs)["accuracy"] for logprobs in ([-1, -2, -3], [-2, -1, -3], [-3, -2, -1])] == [1, 0, 1]


def test_a_doc_of_a_text() -> None:
    prompt = render("docs.py:moon_tale", MOON_ROWS)
    assert (prompt.request.prompt, prompt.ground_truths, prompt.gold_indices) == ("Tell of Phobos.", (), ())
    settings = prompt.request.generation
    assert settings is not None
    assert (settings.max_tokens, settings.stop_sequences) == (60, ("\n\n", "The Moon"))


def test_a_doc_with_examples() -> None:
    prompt = render("docs.py:moons_with_examples", MOON_ROWS)
    assert prompt.request.prompt == "Triton circles: Neptune\n\nCharon circles: Pluto\n\nPhobos circles:"
    assert prompt.ground_truths == ("Mars",)
    assert len(prompt.fewshot_ids) == 2


def test_a_doc_with_a_picture() -> None:
    (sample,) = build_samples({"test": [{"moon": "Io", "picture": Image.new("RGB", (4, 5), "orange")}]}, "all")
    task = task_of("docs.py:moon_pictures")
    (made,) = task._create_samples(TaskRow(sample), 0, "all")
    (png,) = made.images
    picture = Image.open(io.BytesIO(png))
    assert (picture.format, picture.size, picture.getpixel((0, 0))) == ("PNG", (4, 5), (255, 165, 0))
    assert (made.possible_completions, made.gold_indices) == (["Io", "none"], [0])


def test_a_doc_without_its_question_and_as_a_whole() -> None:
    scored, whole = render_all("docs.py:moons_without_the_question", MOON_ROWS)
    assert (scored.request.prompt, scored.request.unconditioned_prompt) == ("Phobos circles", "It circles")
    assert scored.request.choices == (" Mars", " Saturn")
    assert (whole.response_type, whole.request.prompt, whole.request.perplexity) == (ResponseType.PERPLEXITY, "Phobos circles", True)


# ---- responses


def test_a_response_of_texts() -> None:
    response = ModelResponse(text=["Phobos circles Mars."], input_tokens=[1, 2], output_tokens=[[3, 4, 5]])
    assert (response.final_text, response.output_tokens) == (["Phobos circles Mars."], [[3, 4, 5]])
    thought = ModelResponse(text=["<think>the red one</think>Mars", "Mars"]).post_process()
    assert (thought.text_post_processed, thought.reasonings) == (["Mars", "Mars"], ["the red one", None])
    assert thought.text[0].startswith("<think>")


def test_a_response_of_choices() -> None:
    response = ModelResponse(
        logprobs=[-1.5, -0.25, -4.0], argmax_logits_eq_gold=[False, True, False], input_tokens=[1, 2], output_tokens=[[3], [4], [5, 6]]
    )
    prompt = render("docs.py:moons", MOON_ROWS, 1)
    assert scores("docs.py:moons", prompt, response.logprobs) == {"accuracy": 1}
    assert list(response.argmax_logits_eq_gold).index(True) == prompt.gold_indices[0]


def test_a_response_of_a_perplexity() -> None:
    response = ModelResponse(text=["Phobos circles Mars."], logprobs=[-1.0, -3.0], input_tokens=[1, 2], output_tokens=[[2], [3]])
    assert math.exp(-sum(response.logprobs) / len(response.logprobs)) == pytest.approx(math.exp(2))
    assert len(response.output_tokens) == len(response.logprobs)


def test_a_response_with_and_without_the_question() -> None:
    response = ModelResponse(text=["Mars"], logprobs=[-2.0, -1.0], unconditioned_logprobs=[-5.0, -1.5], output_tokens=[[5], [6]])
    assert response.unconditioned_logprobs is not None
    gains = [with_it - without for with_it, without in zip(response.logprobs, response.unconditioned_logprobs, strict=True)]
    assert gains == [3.0, 0.5]
    view = Loglikelihood(
        loglikelihoods=response.logprobs,
        unconditioned_loglikelihoods=response.unconditioned_logprobs,
        choices=(" Mars", " Saturn"),
        gold_indices=(0,),
    )
    assert AccuracyPMILoglikelihood().calculate(view) == 1
