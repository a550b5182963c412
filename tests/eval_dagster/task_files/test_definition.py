import re
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, CompletionMetric, MetricResult
from eval_dagster.metrics.completion import ExactMatch, ExactNumber
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.peers.eval_framework.task import EvalFrameworkTask
from eval_dagster.records import Completion, Loglikelihood, ResponseType, Row, TaskSample
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.doc import Doc, DocTask
from eval_dagster.tasks.style import MCStyle


class Complete(BaseTask[str]):
    NAME = "Complete"
    DATASET_PATH = "complete"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch, ExactNumber)
    SUBJECTS = ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return ""

    def _get_ground_truth(self, item: Row) -> str:
        return ""


class Namesake(CompletionMetric):
    NAME = ExactMatch.NAME


class Parted(CompletionMetric):
    NAME = "rouge/l"


class Nameless(CompletionMetric):
    pass


class Unbounded(CompletionMetric):
    NAME = "unbounded"
    BOUNDS = (1.0, 0.0)


class Kindless(BaseMetric):
    NAME = "kindless"


def with_attributes(**attributes: Any) -> type[BaseTask[Any]]:
    return type("Changed", (Complete,), {**attributes, "__module__": __name__})


def test_a_field_that_names_the_subject_is_not_ignored() -> None:
    """eval-framework reads a configuration for each subject, and no field."""
    attributes = {**vars(Complete), "SUBJECT_FIELD": "team", "__module__": __name__}
    foreign = type("Foreign", (EvalFrameworkTask,), attributes)
    with pytest.raises(TaskDefinitionError, match=r"has the SUBJECT_FIELD 'team', which eval-framework does not have: .* would be ignored"):
        check_task(foreign)
    check_task(type("Own", (EvalFrameworkTask,), {**attributes, "_load_dataset": lambda _, subject: {"test": [subject]}}))
    check_task(with_attributes(SUBJECT_FIELD="team"))


@pytest.mark.parametrize("headline", [None, ExactMatch, ExactNumber])
def test_a_complete_task_is_accepted(headline: type[BaseMetric] | None) -> None:
    check_task(with_attributes(HEADLINE_METRIC=headline))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"NUM_FEWSHOT": -1}, "has the NUM_FEWSHOT -1; expected a whole number of examples, 0 or more"),
        ({"NUM_FEWSHOT": "5"}, "has the NUM_FEWSHOT '5'; expected a whole number"),
        ({"NUM_FEWSHOT": 5}, "has the NUM_FEWSHOT 5 and no FEWSHOT_SPLIT; name the split"),
        (
            {"RESPONSE_TYPE": "completion"},
            "has the RESPONSE_TYPE 'completion'; expected ResponseType.COMPLETION, ResponseType.LOGLIKELIHOODS or ResponseType.PERPLEXITY "
            "(from eval_dagster.records import ResponseType)",
        ),
        ({"RESPONSE_TYPE": None}, "has the RESPONSE_TYPE None; expected ResponseType.COMPLETION, ResponseType.LOGLIKELIHOODS or"),
        (
            {"METRICS": [ExactMatch, AccuracyLoglikelihood]},
            "has the metric AccuracyLoglikelihood, which cannot score the response type ResponseType.COMPLETION; "
            "expected a subclass of CompletionMetric",
        ),
        (
            {"RESPONSE_TYPE": ResponseType.LOGLIKELIHOODS, "_get_possible_completions": lambda self, item: ["a"]},
            "has the metric ExactMatch, which cannot score the response type ResponseType.LOGLIKELIHOODS; "
            "expected a subclass of LoglikelihoodMetric; it has the metric ExactNumber",
        ),
        (
            {"RESPONSE_TYPE": ResponseType.PERPLEXITY, "METRICS": [AccuracyLoglikelihood]},
            "has the metric AccuracyLoglikelihood, which cannot score the response type ResponseType.PERPLEXITY; "
            "expected a subclass of PerplexityMetric",
        ),
        ({"TASK_STYLER": MCStyle}, "has the TASK_STYLER <class 'eval_dagster.tasks.style.MCStyle'>; expected a styler, MCStyle() say"),
        (
            {"METRICS": [Unbounded]},
            "has the metric Unbounded with the BOUNDS (1.0, 0.0); expected the least and the largest value, such as (0.0, 1.0), or None",
        ),
        ({"METRICS": [Kindless]}, "has the metric Kindless, which cannot score the response type ResponseType.COMPLETION"),
        ({"METRICS": ["exact_match"]}, "has 'exact_match' among its METRICS; expected subclasses of CompletionMetric"),
        ({"METRICS": [int]}, "has int among its METRICS; expected subclasses of CompletionMetric"),
        ({"METRICS": [ExactMatch()]}, "expected subclasses of CompletionMetric (classes, not instances)"),
        ({"METRICS": [ExactMatch, Namesake]}, "has two metrics with the NAME 'exact_match': ExactMatch and Namesake"),
        ({"METRICS": [ExactMatch, ExactMatch]}, "has two metrics with the NAME 'exact_match': ExactMatch and ExactMatch"),
        ({"METRICS": [Parted]}, "has the metric Parted with the NAME 'rouge/l'; expected a text without '/'"),
        ({"METRICS": [Nameless]}, "has the metric Nameless with the NAME None; expected a text"),
        (
            {"METRICS": [ExactMatch], "HEADLINE_METRIC": ExactNumber},
            "has the HEADLINE_METRIC ExactNumber, which is not among its METRICS",
        ),
        ({"HEADLINE_AGGREGATION": "mean"}, "has the HEADLINE_AGGREGATION 'mean'; expected 'micro' or 'macro'"),
        ({"HEADLINE_METRIC": "exact_match"}, "has the HEADLINE_METRIC exact_match, which is not among its METRICS"),
        ({"METRICS": ExactMatch}, "has the METRICS <class 'eval_dagster.metrics.completion.ExactMatch'>; expected a list"),
        ({"METRICS": [], "SUBJECTS": []}, "has an empty METRICS; name at least one; it has an empty SUBJECTS"),
        ({"SUBJECTS": "main"}, "has the SUBJECTS 'main'; expected a list"),
        ({"DATA_FILES": "rows.csv"}, "has the DATA_FILES 'rows.csv'; expected a list"),
        ({"STOP_SEQUENCES": "Question:"}, "has the STOP_SEQUENCES 'Question:'; expected a list"),
    ],
)
def test_what_is_wrong_with_a_task_class_is_named(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=rf"^task class Changed \(.*test_definition\) .*{re.escape(message)}"):
        check_task(with_attributes(**attributes))


COUNT = "expected a whole number of at least 1"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"MAX_TOKENS": -1}, f"has the MAX_TOKENS -1; {COUNT}, or None"),
        ({"MAX_TOKENS": 0}, f"has the MAX_TOKENS 0; {COUNT}"),
        ({"MAX_TOKENS": True}, f"has the MAX_TOKENS True; {COUNT}"),
        ({"MAX_TOKENS": "16"}, f"has the MAX_TOKENS '16'; {COUNT}"),
        ({"NUM_SAMPLES": 0}, f"has the NUM_SAMPLES 0; {COUNT}"),
        ({"NUM_SAMPLES": None}, f"has the NUM_SAMPLES None; {COUNT}"),
        ({"STOP_SEQUENCES": ["a", ""]}, "has '' among its STOP_SEQUENCES; expected texts that are not empty"),
        ({"STOP_SEQUENCES": [None]}, "has None among its STOP_SEQUENCES; expected texts"),
        ({"DATA_FILES": [5]}, "has 5 among its DATA_FILES; expected texts"),
        ({"NAME": None}, "has the NAME None; expected a text that is not blank"),
        ({"NAME": " "}, "has the NAME ' '; expected a text that is not blank"),
        ({"DATASET_PATH": None}, "has the DATASET_PATH None; expected a text"),
        ({"SAMPLE_SPLIT": ""}, "has the SAMPLE_SPLIT ''; expected a text that is not blank"),
        ({"SUBJECT_FIELD": ""}, "has the SUBJECT_FIELD ''; expected a text, or None"),
        ({"CLUSTER_FIELD": 5}, "has the CLUSTER_FIELD 5; expected a text, or None"),
        ({"ID_FIELD": ["a"]}, "has the ID_FIELD ['a']; expected a text, or None"),
        ({"FEWSHOT_STRATEGY": "best"}, "has the FEWSHOT_STRATEGY 'best'; expected one of random, first, balanced"),
        ({"FEWSHOT_SPLIT": 5}, "has the FEWSHOT_SPLIT 5; expected the name of a split, or None"),
        ({"SUBJECTS": ["a", "b", "a"]}, "has the subject 'a' twice among its SUBJECTS; expected each once"),
    ],
)
def test_an_attribute_that_means_nothing_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=rf"^task class Changed \(.*test_definition\) .*{re.escape(message)}"):
        check_task(with_attributes(**attributes))


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"HIGHER_IS_BETTER": "no"}, "with the HIGHER_IS_BETTER 'no'; expected True or False"),
        ({"HIGHER_IS_BETTER": None}, "with the HIGHER_IS_BETTER None; expected True or False"),
        ({"IS_PROPORTION": 1}, "with the IS_PROPORTION 1; expected True or False"),
        ({"EXECUTES_CODE": "false"}, "with the EXECUTES_CODE 'false'; expected True or False"),
        ({"COMPARES_TEXTS": "no"}, "with the COMPARES_TEXTS 'no'; expected True or False"),
        ({"PACKAGES": "sacrebleu"}, "with the PACKAGES 'sacrebleu'; expected a tuple of names"),
        ({"COMPANIONS": [None]}, "with the COMPANIONS [None]; expected a tuple of names"),
        ({"BEST": "1"}, "with the BEST '1'; expected a number, or None"),
        ({"BEST": float("nan")}, "with the BEST nan; expected a number, or None"),
        ({"NAME": " "}, "with the NAME ' '; expected a text"),
    ],
)
def test_a_trait_of_a_metric_that_means_nothing_is_refused(traits: dict[str, Any], message: str) -> None:
    metric = type("Odd", (ExactMatch,), traits)
    with pytest.raises(TaskDefinitionError, match=re.escape(f"has the metric Odd {message}")):
        check_task(with_attributes(METRICS=[metric]))


def test_choices_are_needed_for_loglikelihoods_alone() -> None:
    with pytest.raises(TaskDefinitionError, match=r"lacks _get_possible_completions\(\); set the attributes and override the hooks"):
        check_task(with_attributes(RESPONSE_TYPE=ResponseType.LOGLIKELIHOODS))


class Shouted(BaseMetric[Completion]):
    """A metric as eval-framework's tasks bring them."""

    NAME = "Shouted"

    def calculate(self, response: Completion) -> list[MetricResult]:
        return [MetricResult(metric_name=self.NAME, value=float(response.completion_text.isupper()), higher_is_better=True)]


class Sure(BaseMetric[Loglikelihood]):
    NAME = "Sure"


def test_a_metric_is_of_the_kind_that_it_names_in_brackets() -> None:
    check_task(with_attributes(METRICS=[Shouted]))
    with pytest.raises(TaskDefinitionError, match=r"has the metric Sure, which cannot score the response type ResponseType\.COMPLETION"):
        check_task(with_attributes(METRICS=[Sure]))


def test_a_perplexity_needs_no_gold_answer() -> None:
    class Text(BaseTask[str]):
        NAME = DATASET_PATH = SAMPLE_SPLIT = "text"
        RESPONSE_TYPE = ResponseType.PERPLEXITY
        METRICS = (BitsPerByteLoglikelihood,)
        SUBJECTS = ("all",)

        def _get_instruction_text(self, item: Row) -> str:
            return str(item["text"])

    check_task(Text)
    (sample,) = Text()._create_samples({"text": "abc"}, 0, "all")
    assert (sample.ground_truth, sample.messages[0].content) == (None, "abc")


class Styled(BaseTask[str]):
    NAME = DATASET_PATH = SAMPLE_SPLIT = "styled"
    SUBJECTS = ("all",)
    TASK_STYLER = MCStyle()


def test_a_styler_needs_the_question_its_choices_and_the_correct_one() -> None:
    message = r"class Styled .* lacks _get_raw_question\(\), _get_choices\(\), _get_correct_index\(\); set the attributes"
    with pytest.raises(TaskDefinitionError, match=message):
        check_task(Styled)
    given = {name: lambda self, item: None for name in ("_get_choices", "_get_correct_index")}
    with pytest.raises(TaskDefinitionError, match=r"lacks _get_raw_question\(\); set"):
        check_task(type("Half", (Styled,), given))
    check_task(type("Own", (Styled,), {**given, "_get_instruction_text": lambda self, item: "?"}))


class AsksItself(Complete):
    METRICS = (ExactMatch, AccuracyLoglikelihood, Shouted)

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        return []


class Docs(DocTask):
    NAME = DATASET_PATH = SAMPLE_SPLIT = "docs"
    METRICS = (ExactMatch, AccuracyLoglikelihood, BitsPerByteLoglikelihood, Shouted, Sure)
    SUBJECTS = ("all",)

    def doc(self, row: Row) -> Doc:
        return Doc("?", [], 0)


@pytest.mark.parametrize("task", [AsksItself, Docs])
def test_a_task_that_makes_its_samples_may_have_metrics_of_all_kinds(task: type[BaseTask[Any]]) -> None:
    check_task(task)
    message = "has the metric Kindless, which cannot score any response; expected a subclass of CompletionMetric or LoglikelihoodMetric"
    with pytest.raises(TaskDefinitionError, match=message):
        check_task(type("Changed", (task,), {"METRICS": [Kindless]}))


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["x"], r"has 'x' among its METRICS"),
        (ExactMatch, "has the METRICS <class .*; expected a list"),
        ([], "has an empty METRICS"),
    ],
)
def test_wrong_metrics_of_a_doc_task_are_named(metrics: Any, message: str) -> None:
    with pytest.raises(TaskDefinitionError, match=message):
        check_task(type("Changed", (Docs,), {"METRICS": metrics}))


def test_a_doc_task_needs_what_makes_its_docs() -> None:
    with pytest.raises(TaskDefinitionError, match=r"lacks DATASET_PATH, doc\(\); set the attributes and override .* \(see DocTask\)"):
        check_task(type("Empty", (DocTask,), {"NAME": "e", "SAMPLE_SPLIT": "test", "SUBJECTS": ["a"], "METRICS": [ExactMatch]}))
