import io
from collections.abc import Sequence
from typing import Any

import pytest
from PIL import Image

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyPMILoglikelihood
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Grammar, Message, MetricContext, ResponseType, Role, Row, TaskSample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import IDKMixin
from eval_dagster.tasks.doc import Doc, DocTask, SamplingMethod, doc_task, wanted_methods
from eval_dagster.tasks.samples import TaskRow, build_samples

ROWS = [
    {"word": "hello", "french": "bonjour", "kind": "greeting"},
    {"word": "goodbye", "french": "au revoir", "kind": "greeting"},
    {"word": "cat", "french": "chat", "kind": "animal"},
    {"word": "dog", "french": "chien", "kind": "animal"},
]
WORDS = [row["french"] for row in ROWS]


def asked(row: Row) -> Doc:
    return Doc(query=f"French for {row['word']}:", choices=list(WORDS), gold_index=WORDS.index(row["french"]))


def task_of(function: Any = asked, metrics: Sequence[type[BaseMetric[Any]]] = (AccuracyLoglikelihood,), **settings: Any) -> type[DocTask]:
    task = doc_task(dataset_path="words", sample_split="test", fewshot_split="test", metrics=metrics, **settings)(function)
    check_task(task)
    return task


def test_a_field_names_the_subject() -> None:
    assert task_of(subjects=["greeting", "animal"], subject_field="kind").SUBJECT_FIELD == "kind"
    assert task_of().SUBJECT_FIELD is None
    with pytest.raises(TaskDefinitionError, match=r"found load_rows and subject_field='kind'; expected one of them"):
        task_of(subject_field="kind", load_rows=lambda _: {"test": ROWS})


def doc_with(**fields: Any) -> Any:
    def made(row: Row) -> Doc:
        return Doc(**{"query": f"French for {row['word']}:", "choices": list(WORDS), "gold_index": WORDS.index(row["french"]), **fields})

    return made


def render_all(
    task: type[DocTask], index: int = 0, *, rows: Sequence[Row] = ROWS, fewshot: int = 0, **settings: Any
) -> list[RenderedPrompt]:
    made, samples = task(), build_samples({"test": rows}, "default")
    rendering = Rendering(task=made, formatter=ConcatFormatter(), num_fewshot=fewshot, **settings)
    return render_sample(rendering.knowing(samples), samples[index], fewshot_pool(made, samples))


def render(task: type[DocTask], index: int = 0, **settings: Any) -> RenderedPrompt:
    (prompt,) = render_all(task, index, **settings)
    return prompt


def sample_of(function: Any, **settings: Any) -> TaskSample:
    (sample,) = task_of(function, **settings)()._create_samples(ROWS[0], 0, "default")
    return sample


def test_a_function_is_a_task() -> None:
    @doc_task(dataset_path="me/words", sample_split="test", metrics=[AccuracyLoglikelihood])
    def quiz(row: Row, task_name: str) -> Doc:
        """Words of French."""
        return Doc(query=f"{task_name}: {row['word']}", choices=WORDS, gold_index=0)

    check_task(quiz)
    assert (quiz.NAME, quiz.DATASET_PATH, quiz.SAMPLE_SPLIT, quiz.FEWSHOT_SPLIT, quiz.SUBJECTS) == (
        "quiz",
        "me/words",
        "test",
        None,
        ("default",),
    )
    assert (quiz.__name__, quiz.__module__, quiz.__doc__) == ("quiz", __name__, "Words of French.")
    assert render(quiz).messages == (Message(Role.USER, "quiz: hello"),)
    assert quiz().doc(ROWS[1]) == Doc(query="quiz: goodbye", choices=WORDS, gold_index=0)


def test_every_setting_of_a_function() -> None:
    rows = {"dev": ROWS[:1], "train": ROWS[1:]}
    task = doc_task(
        dataset_path="words",
        sample_split="dev",
        metrics=[ExactMatch, BitsPerByteLoglikelihood],
        fewshot_split="train",
        fewshot_strategy="first",
        subjects=["a", "b"],
        cluster_field="word",
        name="Words",
        dataset_revision="0" * 40,
        headline_metric=BitsPerByteLoglikelihood,
        generation_size=7,
        stop_sequences=["\n"],
        generation_grammar={"type": "regex", "value": "[a-z ]+"},
        num_samples=3,
        language="fr",
        source="made up",
        load_rows=lambda subject: rows if subject == "a" else {},
    )(asked)
    check_task(task)
    assert (task.NAME, task.SUBJECTS, task.DATASET_REVISION, task.LANGUAGE, task.SOURCE) == ("Words", ["a", "b"], "0" * 40, "fr", "made up")
    assert task.HEADLINE_METRIC is BitsPerByteLoglikelihood
    assert (task.FEWSHOT_STRATEGY, task.CLUSTER_FIELD) == ("first", "word")
    assert DatasetReader(None).read(task(), "a", fewshot=True) == rows
    generated, _ = render_all(task, rows=ROWS)
    settings = generated.request.generation
    assert settings is not None
    assert (settings.max_tokens, settings.stop_sequences, settings.num_samples) == (7, ("\n",), 3)
    assert settings.grammar == Grammar(kind="regex", value="[a-z ]+")


@pytest.mark.parametrize("function", [lambda: None, lambda a, b, c: None, lambda row, *, depth: None])
def test_a_function_that_takes_something_else_is_refused(function: Any) -> None:
    with pytest.raises(TaskDefinitionError, match=r"cannot make a Doc; expected it to take a row, or a row and the task's name: def quiz"):
        task_of(function)


def test_choices_are_scored() -> None:
    prompt = render(task_of())
    assert (prompt.request.prompt, prompt.request.choices) == (
        "French for hello:",
        (" bonjour", " au revoir", " chat", " chien"),
    )
    assert (prompt.response_type, prompt.gold_indices, prompt.ground_truths) == (ResponseType.LOGLIKELIHOODS, (0,), ("bonjour",))
    assert prompt.request.generation is None


def test_duplicate_choices_are_told_by_their_positions() -> None:
    prompt = render(task_of(doc_with(choices=["salut", "bonjour", "salut"], gold_index=2)))
    assert (prompt.gold_indices, prompt.ground_truths) == ((2,), ("salut",))


def test_several_gold_answers() -> None:
    several = doc_with(choices=["bonjour", "chat", "salut"], gold_index=[0, 2])
    assert render(task_of(several)).gold_indices == (0, 2)
    prompt = render(task_of(several, metrics=[ExactMatch]))
    assert (prompt.ground_truths, prompt.gold_indices) == (("bonjour", "salut"), ())


def test_text_is_generated() -> None:
    prompt = render(task_of(doc_with(choices=[], generation_size=9, stop_sequences=["\n\n"]), metrics=[ExactMatch]))
    assert (prompt.response_type, prompt.ground_truths, prompt.request.choices) == (ResponseType.COMPLETION, (), None)
    settings = prompt.request.generation
    assert settings is not None
    assert (settings.max_tokens, settings.stop_sequences) == (9, ("\n\n",))


def test_a_doc_without_stop_sequences_has_those_of_the_task() -> None:
    for given, expected in [(None, ("\n",)), ([], ()), (["."], (".",))]:
        task = task_of(doc_with(stop_sequences=given), metrics=[ExactMatch], stop_sequences=["\n"])
        settings = render(task).request.generation
        assert settings is not None
        assert settings.stop_sequences == expected


def test_the_text_of_a_perplexity_is_the_query() -> None:
    prompt = render(task_of(doc_with(choices=[], gold_index=0, instruction="Say it."), metrics=[BitsPerByteLoglikelihood]), fewshot=0)
    assert (prompt.response_type, prompt.request.prompt, prompt.request.perplexity) == (ResponseType.PERPLEXITY, "French for hello:", True)


@pytest.mark.parametrize(
    ("metrics", "methods"),
    [
        ([ExactMatch], ["GENERATIVE"]),
        ([AccuracyLoglikelihood], ["LOGPROBS"]),
        ([AccuracyLoglikelihood, BitsPerByteLoglikelihood], ["LOGPROBS"]),
        ([BitsPerByteLoglikelihood], ["PERPLEXITY"]),
        ([AccuracyLoglikelihood, ExactMatch], ["LOGPROBS", "GENERATIVE"]),
        ([ExactMatch, BitsPerByteLoglikelihood], ["GENERATIVE", "PERPLEXITY"]),
        ([int, "x"], []),
        (3, []),
    ],
)
def test_what_metrics_want(metrics: Any, methods: list[str]) -> None:
    assert wanted_methods(metrics) == methods


def test_metrics_of_several_kinds_ask_several_things() -> None:
    task = task_of(metrics=[AccuracyLoglikelihood, ExactMatch])
    scored, generated = render_all(task)
    assert task.RESPONSE_TYPE is ResponseType.LOGLIKELIHOODS
    assert (scored.request.choices, generated.request.choices) == ((" bonjour", " au revoir", " chat", " chien"), None)
    assert scored.request.prompt == generated.request.prompt
    assert (generated.sample_id, generated.source_id) == (f"{scored.sample_id}.1", scored.sample_id)


def test_a_doc_may_say_what_is_asked() -> None:
    methods = [SamplingMethod.PERPLEXITY, SamplingMethod.GENERATIVE, SamplingMethod.PERPLEXITY]
    prompts = render_all(task_of(doc_with(sampling_methods=methods), metrics=[ExactMatch, BitsPerByteLoglikelihood]))
    assert [prompt.response_type for prompt in prompts] == [ResponseType.PERPLEXITY, ResponseType.COMPLETION]


def test_the_instruction_opens_the_first_turn_of_the_user() -> None:
    """As in lighteval, and in tasks that are written for it."""
    prompt = render(task_of(doc_with(instruction="Translate.")), fewshot=1)
    assert [message.role for message in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.messages[0].content.startswith("Translate.\n\nFrench for ")
    assert not prompt.messages[2].content.startswith("Translate.")
    assert prompt.request.prompt.startswith("Translate.\n\nFrench for "), "plain text reads as with a system message"


def test_an_instruction_is_not_said_twice() -> None:
    query = "Translate.\n\nFrench for hello:"
    prompt = render(task_of(doc_with(query=query, instruction="Translate.")))
    assert prompt.request.prompt == query
    assert prompt.messages == (Message(Role.USER, query),)


def test_examples_are_drawn_and_made_by_the_same_function() -> None:
    prompt = render(task_of(), 2, fewshot=2)
    assert prompt.request.prompt.endswith("\n\nFrench for cat:")
    assert len(prompt.fewshot_ids) == 2
    for question, answer in [prompt.messages[0:2], prompt.messages[2:4]]:
        row = next(row for row in ROWS if row["word"] in question.content)
        assert (question.content, answer.content) == (f"French for {row['word']}:", row["french"])
        assert f"{question.content} {answer.content}\n\n" in prompt.request.prompt


def test_a_doc_may_bring_its_examples() -> None:
    own = [Doc("French for one:", ["deux", "un"], 1), Doc("French for hello:", ["bonjour"], 0)]
    prompt = render(task_of(doc_with(fewshot_samples=own)), fewshot=1)
    # The second asks the same as the question: it would tell the answer.
    assert prompt.request.prompt == "French for one: un\n\nFrench for hello:"
    assert len(prompt.fewshot_ids) == 1
    assert render(task_of(doc_with(fewshot_samples=own))).messages == prompt.messages


@pytest.mark.parametrize("example", [Doc("French for one:", [], 0), Doc("French for one:", ["un"], 0, images=[b"x"])])
def test_an_example_that_cannot_stand_there_is_named(example: Doc) -> None:
    with pytest.raises(
        DataError, match=r"task made made Doc\(query='French for one:'.* of a few-shot example; expected a Doc with choices"
    ):
        render(task_of(doc_with(fewshot_samples=[example])))


def test_a_row_that_makes_no_doc_is_left_out_and_is_no_example() -> None:
    def greetings(row: Row) -> Doc | None:
        return asked(row) if row["kind"] == "greeting" else None

    task = task_of(greetings)
    assert render_all(task, 2) == []
    prompt = render(task, 0, fewshot=1)
    assert prompt.messages[:2] == (Message(Role.USER, "French for goodbye:"), Message(Role.ASSISTANT, "au revoir"))
    with pytest.raises(DataError, match="has 1 distinct few-shot examples for row 0"):
        render(task, 0, fewshot=2)


def test_examples_of_all_classes() -> None:
    def classed(row: Row) -> Doc:
        return Doc(f"French for {row['word']}:", [row["french"]], 0, fewshot_sorting_class=row["kind"])

    rows = [*ROWS, *({"word": f"w{index}", "french": f"m{index}", "kind": "animal"} for index in range(40))]
    for index in range(0, 44, 7):
        prompt = render(task_of(classed), index, rows=rows, fewshot=2, strategy="balanced")
        drawn = [row["kind"] for row in rows if any(f"for {row['word']}:" in message.content for message in prompt.messages[:-1])]
        assert sorted(drawn) == ["animal", "greeting"]
    task = task_of()()
    assert task._get_fewshot_class(ROWS[2]) == "chat"
    assert task_of(doc_with(choices=[]))()._get_fewshot_class(ROWS[2]) == ""


def test_a_row_may_make_several_docs() -> None:
    def both(row: Row) -> list[Doc]:
        return [asked(row), Doc(f"English for {row['french']}:", ["hello", "cat"], 1, specific={"way": "back"})]

    there, back = render_all(task_of(both), 2, fewshot=1)
    assert (there.request.prompt.count("French"), back.request.prompt.count("French")) == (2, 1)
    assert back.request.prompt.endswith("\n\nEnglish for chat:")
    assert (back.gold_indices, back.context) == ((1,), (MetricContext(way="back"),))
    assert [prompt.sample_id for prompt in (there, back)] == [there.source_id, f"{there.source_id}.1"]


def test_id_and_task_name_are_those_of_sample_and_task() -> None:
    def named(row: Row, task_name: str) -> list[Doc]:
        return [Doc(task_name, ["a"], 0, id="mine", task_name="mine"), Doc("b", ["a"], 0)]

    (sample,) = build_samples({"test": ROWS[:1]}, "default")
    first, second = task_of(named, name="Words")().docs(TaskRow(sample))
    assert (first.query, first.id, first.task_name) == ("Words", sample.sample_id, "Words")
    assert (second.id, second.task_name) == (f"{sample.sample_id}.1", "Words")
    plain = task_of(named)().docs(ROWS[0])
    assert len({doc.id for doc in plain}) == 2


def test_a_prompt_without_the_question() -> None:
    task = task_of(doc_with(unconditioned_query="Answer:"), metrics=[AccuracyPMILoglikelihood])
    assert render(task).request.unconditioned_prompt == "Answer:"
    assert render(task_of(doc_with(unconditioned_query=""))).request.unconditioned_prompt == ""
    assert render(task_of()).request.unconditioned_prompt is None


def test_what_the_metrics_get() -> None:
    prompt = render(task_of(doc_with(specific={"level": 3, "tags": ["a"]}, original_query="bonjour?")))
    assert prompt.context == (MetricContext(level=3, tags=["a"], original_query="bonjour?"),)
    assert render(task_of(doc_with(original_query=""))).context == (MetricContext(original_query=""),)
    assert render(task_of()).context == ()


def test_settings_of_a_doc_reach_the_request() -> None:
    sample = sample_of(
        doc_with(use_logits=True, num_samples=4, generation_size=5, generation_grammar={"type": "json", "value": {}}), metrics=[ExactMatch]
    )
    assert (sample.use_logits, sample.num_samples, sample.max_tokens) == (True, 4, 5)
    assert sample.grammar == Grammar(kind="json_schema", value="{}")
    assert (sample.id, sample.subject, sample.row) == (0, "default", ROWS[0])
    default = sample_of(asked, metrics=[ExactMatch])
    assert (default.use_logits, default.num_samples, default.max_tokens, default.grammar) == (False, None, None, None)


def _image(format_: str, mode: str = "RGB") -> tuple[Image.Image, bytes]:
    image, file = Image.new(mode, (2, 3)), io.BytesIO()
    image.save(file, format_)
    return image, file.getvalue()


def test_images_become_png_files() -> None:
    image, png = _image("PNG")
    cmyk, jpeg = _image("JPEG", "CMYK")
    sample = sample_of(doc_with(images=[image, png, cmyk, jpeg]))
    assert sample.images[1] == png
    for made in sample.images:
        opened = Image.open(io.BytesIO(made))
        assert (opened.format, opened.size, opened.mode) == ("PNG", (2, 3), "RGB")


@pytest.mark.parametrize("image", [b"no image", "cat.png", 3])
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises(DataError, match=r"a Doc has an image of type .*; expected a PIL image or the bytes of an image file"):
        sample_of(doc_with(images=[image]))


@pytest.mark.parametrize("made", ["a text", [Doc("?", [], 0), "a text"], {"query": "?"}])
def test_what_is_no_doc_is_refused(made: Any) -> None:
    expected = r"task words made .* of a row; expected a Doc, a list of Docs or None \(from eval_dagster import Doc\)"
    with pytest.raises(DataError, match=expected):
        render(task_of(lambda row: made, name="words"))


def test_choices_to_score_must_be_there() -> None:
    prompt = render(task_of(doc_with(choices=[])))
    assert prompt.error == (
        "RowError: row 0 of split 'test' (subject 'default'): there are no choices; expected one at least. Correct the row, or leave it out"
    )


def test_a_subclass_may_use_the_hooks_of_every_task() -> None:
    class Words(DocTask):
        NAME = "Words"
        DATASET_PATH = "words"
        SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
        SUBJECTS = ("default",)
        METRICS = (AccuracyLoglikelihood,)

        def doc(self, row: Row) -> Doc:
            return asked(row)

        def _get_initial_prompt_text(self, item: Row) -> str:
            return f"Words of kind {item['kind']}."

        def _get_cue_text(self, item: Row) -> str:
            return "Mot:"

    check_task(Words)
    assert Words.RESPONSE_TYPE is ResponseType.LOGLIKELIHOODS
    prompt = render(Words, fewshot=1, strategy="first")
    assert prompt.request.prompt == "Words of kind greeting.\n\nFrench for goodbye: Mot: au revoir\n\nFrench for hello: Mot:"
    assert prompt.request.choices == (" bonjour", " au revoir", " chat", " chien")
    doubtful = type("Doubtful", (IDKMixin, Words), {})
    check_task(doubtful)
    unsure = render(doubtful)
    assert (unsure.request.choices or ())[-1] == " I don't know."
    assert unsure.gold_indices == (0,)


def test_a_null_is_a_missing_field_for_a_function_too() -> None:
    with pytest.raises(DataError, match=r"row 0 of split 'test' \(subject 'default'\) has no value for the field 'word' \(null\)"):
        render(task_of(), rows=[{"word": None, "french": "chat"}])
    with pytest.raises(DataError, match=r"row 0 .* lacks the field 'word'; it has: french, subject"):
        render(task_of(), rows=[{"french": "chat"}])
