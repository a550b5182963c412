"""Tasks as lighteval writes them: a configuration that names a prompt function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.peers.lighteval.members import Metrics
from eval_dagster.peers.lighteval.metric import Metric
from eval_dagster.peers.lighteval.metric_classes import known_metric, metric_classes
from eval_dagster.peers.lighteval.task import DocMaker, LightevalTask
from eval_dagster.records import Row
from eval_dagster.tasks.base import FewshotStrategy
from eval_dagster.tasks.doc import DocFunction, with_task_name

_STRATEGIES: Mapping[str | None, FewshotStrategy] = {
    None: "balanced",
    "balanced": "balanced",
    "random": "random",
    "random_sampling": "random",
    "random_sampling_from_train": "random",
    "sequential": "first",
}


@dataclass
class LightevalTaskConfig:
    """A benchmark as lighteval 0.13 describes one: evals.yaml says `task: path/to/file.py:<variable>`, or gives the `name` of an element
    of the file's `TASKS_TABLE`.

    The seed is the eval's own. Some fields are accepted but not used: `solver`, `scorer`, `sample_fields`, `sample_to_fewshot` and
    `filter`, which are for another engine; `original_num_docs` and `effective_num_docs`, which lighteval sets itself; `version`, since the
    code's own version counts; `suite`, from older versions of lighteval.
    """

    name: str
    prompt_function: DocFunction
    """Takes a row and the task's name; gives a `Doc`, several, or None."""
    hf_repo: str
    """Hub id or folder, as `BaseTask.DATASET_PATH`."""
    hf_subset: str | None
    """The dataset's configuration."""
    metrics: Sequence[Metric | type[BaseMetric] | str]
    """Members of lighteval's `Metrics` or their names, metrics of the file's own, or metric classes of this project."""
    solver: Any = None
    scorer: Any = None
    sample_fields: Any = None
    sample_to_fewshot: Any = None
    filter: Any = None
    hf_revision: str | None = None
    """Full commit hash of the dataset."""
    hf_filter: Callable[[Row], bool] | None = None
    """Rows for which it is false are left out."""
    hf_avail_splits: Sequence[str] = ("train", "validation", "test")
    evaluation_splits: Sequence[str] = ("validation",)
    """Several are read one after the other."""
    few_shots_split: str | None = None
    """Default: the first available split that is not evaluated and whose name contains train, dev, valid or default."""
    few_shots_select: str | None = None
    """`balanced` (the default), `random`, `random_sampling`, `random_sampling_from_train` or `sequential`."""
    generation_size: int | None = None
    """Most tokens of a text, unless the `Doc` sets them; a number below 1 means without a limit."""
    generation_grammar: Any = None
    """The form of a text, unless the `Doc` sets it."""
    stop_sequence: Sequence[str] | None = None
    """End a text, unless the `Doc` sets them."""
    num_samples: Sequence[int] | int | None = None
    """Texts for each prompt: the largest of these numbers and of the numbers that the metrics need."""
    original_num_docs: int = -1
    effective_num_docs: int = -1
    must_remove_duplicate_docs: bool = False
    num_fewshots: int = 0
    """Examples before each question, unless the eval says otherwise."""
    version: int | str = 0
    suite: Any = None

    def task_class(self, class_name: str, module: str, metrics: type[Metrics] = Metrics) -> "type[LightevalTask]":
        """The task that this describes.

        Args:
            class_name: The name of the class.
            module: The module of the file that it was found in.
            metrics: `Metrics` as the file left it, for metrics by name.

        Raises:
            TaskDefinitionError: Something in it is wrong or cannot be done here.
        """
        if problems := self._problems():
            raise TaskDefinitionError(f"the LightevalTaskConfig {self.name!r} {'; it '.join(problems)}")
        with_task_name(self.prompt_function)  # refused here rather than at the first row
        known = [known_metric(metric, self.name, metrics) for metric in self.metrics]
        docs = DocMaker(name=self.name, function=self.prompt_function, filter=self.hf_filter)
        attributes: dict[str, Any] = {
            "DOCS": docs,
            "NAME": self.name,
            "DATASET_PATH": self.hf_repo,
            "DATASET_REVISION": self.hf_revision,
            "SAMPLE_SPLIT": "+".join(self.evaluation_splits),
            "FEWSHOT_SPLIT": self.few_shots_split or self._default_fewshot_split(),
            "NUM_FEWSHOT": self.num_fewshots,
            "FEWSHOT_STRATEGY": _STRATEGIES[self.few_shots_select],
            "SUBJECTS": [self.hf_subset or "default"],
            "METRICS": _metric_classes(known, docs, module),
            "STOP_SEQUENCES": tuple(self.stop_sequence or ()),
            "NUM_SAMPLES": self._num_samples(known),
            "GENERATION_GRAMMAR": self.generation_grammar,
            "__module__": module,
            "__qualname__": class_name,
            "MAX_TOKENS": self.generation_size if self.generation_size and self.generation_size > 0 else None,
            "__doc__": self.prompt_function.__doc__,
        }
        return type(class_name, (LightevalTask,), attributes)

    def _problems(self) -> list[str]:
        problems = []
        if not self.evaluation_splits or isinstance(self.evaluation_splits, str):
            problems.append(f"has the evaluation_splits {self.evaluation_splits!r}; expected a list of one split at least")
        if not self.metrics:
            problems.append("has no metrics; name one at least, since an eval shows its metrics: metrics=[Metrics.exact_match]")
        if self.few_shots_select not in _STRATEGIES:
            known = ", ".join(name for name in _STRATEGIES if name)
            problems.append(f"has the few_shots_select {self.few_shots_select!r}; expected one of: {known}")
        if self.must_remove_duplicate_docs:
            problems.append("has must_remove_duplicate_docs, which is not supported; remove the rows by hf_filter")
        return problems

    def _default_fewshot_split(self) -> str | None:
        others = [split for split in self.hf_avail_splits if split not in self.evaluation_splits]
        found = (split for word in ("train", "dev", "valid", "default") for split in others if word in split)
        return next(found, "+".join(self.evaluation_splits))

    def _num_samples(self, known: Sequence[Metric | type[BaseMetric]]) -> int:
        own = [self.num_samples] if isinstance(self.num_samples, int) else self.num_samples or []
        functions = [metric.sample_level_fn for metric in known if isinstance(metric, Metric)]
        return max([1, *own, *(int(function.num_samples()) for function in functions if hasattr(function, "num_samples"))])


def _metric_classes(known: Sequence[Metric | type[BaseMetric]], docs: DocMaker, module: str) -> list[type[BaseMetric]]:
    """A class for each name of a value. If several metrics have one name, the last counts, as in lighteval."""
    made = [metric_classes(metric, docs.docs_of, module) if isinstance(metric, Metric) else [metric] for metric in known]
    return list({each.NAME: each for classes in made for each in classes}.values())
