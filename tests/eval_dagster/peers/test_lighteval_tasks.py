"""Tasks of lighteval's configurations: their prompts, their rows, the files beside them."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError
from eval_dagster.metrics.base import CorpusMetric, ItemMetric, LoglikelihoodMetric, PerplexityMetric, RepeatedMetric, metrics_for
from eval_dagster.peers.lighteval.config import LightevalTaskConfig
from eval_dagster.peers.lighteval.doc import Doc
from eval_dagster.peers.lighteval.ignored import Ignored, decorator, extract_target_from_pred
from eval_dagster.peers.lighteval.members import Metrics
from eval_dagster.peers.lighteval.metric import SampleLevelMetric
from eval_dagster.peers.lighteval.templates import HybridFormulation, MCFFormulation, get_mcq_prompt_function, get_qa_prompt_function
from eval_dagster.peers.lighteval.values import Language, extend_enum, requires
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import Message, ModelResponse, ResponseType, Row
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import check_task, load_task
from eval_dagster.tasks.base import BaseTask, Formatter
from eval_dagster.tasks.doc import SamplingMethod
from eval_dagster.tasks.samples import build_samples


class Shown:
    """A chat template that shows every character."""

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        assert not images
        return "".join(f"<{message.role}>{message.content}</>" for message in messages)


def task_of(function: Callable[..., Any], **settings: Any) -> type[BaseTask[Any]]:
    given: dict[str, Any] = {"name": "sums", "prompt_function": function, "hf_repo": "me/sums", "hf_subset": "default"}
    config = LightevalTaskConfig(**{**given, "metrics": [Metrics.exact_match], "few_shots_select": "sequential", **settings})
    task = config.task_class("sums", __name__)
    check_task(task)
    return task


ROWS: list[Row] = [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": None}]


def render(task: type[BaseTask[Any]], index: int = 0, *, fewshot: int = 0, chat: bool = False) -> list[RenderedPrompt]:
    made, samples = task(num_fewshot=fewshot), build_samples({"validation": ROWS}, "default")
    formatter: Formatter = ChatTemplateFormatter(Shown()) if chat else ConcatFormatter()  # type: ignore[arg-type]
    return render_sample(Rendering(task=made, formatter=formatter, num_fewshot=fewshot), samples[index], fewshot_pool(made, samples))


def told(row: Row, name: str) -> Doc:
    return Doc(f"Add.\n{row['a']}+{row['b']}=", [f"  {row['a'] + (row['b'] or 0)}"], 0, instruction="Add.\n", task_name=name)


def untold(row: Row, name: str) -> Doc:
    return Doc(f"{row['a']}+{row['b']}= ", [f" {row['a'] + (row['b'] or 0)} "], 0)


@pytest.mark.parametrize(
    ("function", "fewshot", "chat", "prompt"),
    [
        (told, 0, False, "Add.\n\n\n1+2="),
        (told, 1, False, "Add.\n\n\n3+4= 7\n\n1+2="),
        (told, 0, True, "<user>Add.\n1+2=</>"),
        (told, 1, True, "<user>Add.\n3+4=</><assistant>  7</><user>1+2=</>"),
        (untold, 0, False, "1+2= "),
        (untold, 2, False, "3+4=  7\n\n5+None=  5\n\n1+2= "),
        (untold, 1, True, "<user>3+4= </><assistant> 7 </><user>1+2= </>"),
    ],
)
def test_prompts(function: Callable[..., Doc], fewshot: int, chat: bool, prompt: str) -> None:
    (rendered,) = render(task_of(function), fewshot=fewshot, chat=chat)
    assert rendered.request.prompt == prompt
    assert rendered.ground_truths == tuple(function(ROWS[0], "").get_golds())


def test_choices_are_asked_as_they_are() -> None:
    function = lambda row, _: Doc("", ["x", " y"], 1, unconditioned_query="Answer:")  # noqa: E731
    (rendered,) = render(task_of(function, metrics=[Metrics.loglikelihood_acc]))
    assert (rendered.request.prompt, rendered.request.choices, rendered.gold_indices) == ("", ("x", " y"), (1,))


def test_examples_are_written_as_examples() -> None:
    function = lambda row, _: Doc(f"{row['a']}", [f"{row['a']}{'!' if row['__few_shots'] else ''}"], 0)  # noqa: E731
    (rendered,) = render(task_of(function), fewshot=1)
    assert (rendered.request.prompt, rendered.ground_truths) == ("3 3!\n\n1", ("1",))


def test_a_prompt_function_may_change_its_row_and_draw_at_random() -> None:
    def function(row: Row, _: str) -> Doc:
        row["a"] = random.random()
        return Doc(f"{row['a']}", ["x"], 0)

    before = random.getstate()
    first, other = (render(task_of(function), index)[0].request.prompt for index in (0, 1))
    assert first != other
    assert random.getstate() == before
    random.seed(3)
    assert render(task_of(function))[0].request.prompt == first


def test_several_questions_of_a_row_are_scored_each_on_its_own() -> None:
    task = task_of(lambda row, _: [Doc("q", [str(row["a"])], 0), Doc("r", [str(row["b"])], 0)])
    (sample, *_) = build_samples({"validation": ROWS}, "default")
    values = []
    for prompt in render(task):
        response = ModelResponse(text=["2"], reasonings=[None], finish_reason=["stop"])
        views = AnsweredPrompt(task=task(), sample=sample, prompt=prompt).views(response)
        values += [metric().calculate(view) for metric in task.METRICS for view in views]
    assert values == [0.0, 1.0]


def test_lists_in_the_place_of_a_choice_and_no_choices() -> None:
    doc = Doc("", [["a", "b"], "c", ["d"]], [0, 2])  # type: ignore[list-item]
    assert (doc.choices, doc.get_golds()) == (["a", "b", "c", "d"], ["a", "b", "d"])
    empty = Doc("text", None, None)  # type: ignore[arg-type]
    assert (empty.choices, empty.get_golds()) == ([], [])


def test_a_metric_of_each_kind() -> None:
    own = SampleLevelMetric("own", False, SamplingMethod.GENERATIVE, lambda doc, model_response: len(model_response.text), max)
    metrics = [Metrics.loglikelihood_acc, Metrics.mcc, Metrics.bleu, Metrics.rouge_t5, own, "word_perplexity"]
    found = {metric.NAME: metric for metric in task_of(told, metrics=metrics).METRICS}
    assert list(found) == ["acc", "mcc", "bleu", "rouge1", "rouge2", "rougeL", "rougeLsum", "own", "word_perplexity"]
    kinds = {"acc": LoglikelihoodMetric, "mcc": ItemMetric, "bleu": CorpusMetric, "rouge1": RepeatedMetric, "own": ItemMetric}
    assert all(issubclass(found[name], kind) for name, kind in kinds.items())
    assert issubclass(found["word_perplexity"], PerplexityMetric)
    assert not found["own"].HIGHER_IS_BETTER
    assert found["acc"].IS_PROPORTION
    assert (found["rouge1"].BOUNDS, found["own"].BOUNDS) == ((0, 100), None), "rouge_t5 is in percent"


def test_bounds_of_an_aggregate_that_is_not_known_are_not_known() -> None:
    metrics = [Metrics.f1_score, Metrics.f1_score(sample_params={"aggregation_function": sum}), Metrics.pass_at_k(sample_params={"k": 1})]
    found = {metric.NAME: metric.BOUNDS for metric in task_of(told, metrics=metrics).METRICS}
    assert sorted(found.values(), key=str) == [(0, 1), (0, 1), None]


def test_each_category_of_metrics_is_asked_for_what_it_scores() -> None:
    def function(row: Row, _: str) -> Doc:
        return Doc("A text of five words", ["x", "y"], 1)

    task = task_of(function, metrics=[Metrics.loglikelihood_acc, Metrics.word_perplexity, Metrics.exact_match])
    prompts = render(task)
    kinds = {ResponseType.LOGLIKELIHOODS: "acc", ResponseType.COMPLETION: "em", ResponseType.PERPLEXITY: "word_perplexity"}
    assert [prompt.response_type for prompt in prompts] == list(kinds)
    for prompt in prompts:
        assert [metric.NAME for metric in metrics_for(task.METRICS, prompt.response_type)] == [kinds[prompt.response_type]]


def test_the_last_of_two_metrics_with_a_name_counts() -> None:
    own = SampleLevelMetric("em", False, SamplingMethod.GENERATIVE, lambda doc, model_response: 1.0, max)
    (metric,) = task_of(told, metrics=[Metrics.exact_match, own]).METRICS
    assert not metric.HIGHER_IS_BETTER


def test_settings_of_texts() -> None:
    task = task_of(told, generation_size=-1, metrics=[Metrics.pass_at_k(sample_params={"k": 2}), Metrics.maj_at_n(sample_params={"n": 4})])
    assert (task.MAX_TOKENS, task.NUM_SAMPLES) == (None, 4)
    assert task_of(told, generation_size=3, num_samples=[1, 6]).NUM_SAMPLES == 6
    assert task_of(told, evaluation_splits=["validation", "test"]).SAMPLE_SPLIT == "validation+test"


def test_templates_of_questions() -> None:
    row = {"q": "where is it ", "c": ["here", "there", "here"], "g": 1, "t": "a map"}
    parts = lambda row: {"question": row["q"], "choices": row["c"], "context": row["t"], "instruction": "Look."}  # noqa: E731
    doc = get_qa_prompt_function(Language.ENGLISH, parts)(row, "maps")
    assert doc is not None
    assert (doc.query, doc.choices, doc.gold_index) == ("Look.\nA map\nQuestion: Where is it\nAnswer:", [" Here", " There"], [0, 1])
    fields = {"question": "q", "choices": "c", "gold_idx": "g"}
    forms = {None: [" A", " B", " C"], "numbers": [" 1", " 2", " 3"], "hybrid": [" Here", " There", " Here"]}
    for name, choices in forms.items():
        form = MCFFormulation("Numbers") if name == "numbers" else HybridFormulation() if name else None
        doc = get_mcq_prompt_function(Language.ENGLISH, fields, form)(row, "maps")
        assert doc is not None
        assert (doc.choices, doc.get_golds()) == (choices, [choices[1]])
        assert doc.query.count("\n") == 4
    with pytest.raises(TaskDefinitionError, match="offered in English; the task file asks for Thai"):
        get_qa_prompt_function(Language.THAI, parts)


def test_names_for_the_other_engine_do_nothing() -> None:
    @decorator(metrics=[Ignored(1, a=2)])
    def kept() -> int:
        return 3

    assert kept() == decorator(kept)() == 3
    with pytest.raises(DataError, match="extract_target_from_pred of lighteval is not offered"):
        extract_target_from_pred("text")


def test_what_a_function_requires() -> None:
    assert requires("pytest")(told) is told
    with pytest.raises(RequirementError, match="told needs what is not installed: a_package_of_nobody, multilingual"):
        requires("a_package_of_nobody", "pytest", "multilingual")(told)(ROWS[0], "sums")
    with pytest.raises(TaskDefinitionError, match="extend_enum is called with Shown; expected Metrics"):
        extend_enum(Shown, "x", 1)


def test_files_beside_a_task_by_the_name_of_lightevals_folder(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("WORDS = ['a']\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/terms.py").write_text("TERMS = ['b']\n")
    (tmp_path / "quiz.py").write_text(
        "import lighteval.tasks.tasks.more.terms as terms\n"
        "from lighteval.tasks.tasks import words\n"
        "from lighteval.tasks.tasks.words import WORDS\n"
        "from lighteval.metrics.metrics import Metrics\n"
        "from lighteval.tasks.lighteval_task import LightevalTaskConfig\n"
        "assert words.WORDS is WORDS\n"
        "quiz = LightevalTaskConfig(name=WORDS[0] + terms.TERMS[0], prompt_function=lambda line, name: None, hf_repo='me/quiz',\n"
        "    hf_subset='', metrics=[Metrics.exact_match])\n"
    )
    assert load_task("quiz.py:quiz", {}, tmp_path).NAME == "ab"
    (tmp_path / "lost.py").write_text("from lighteval.tasks.tasks.nowhere import thing\n")
    with pytest.raises(TaskDefinitionError, match=r"lost\.py, line 1: .* no file nowhere\.py beside the task file"):
        load_task("lost.py:quiz", {}, tmp_path)
