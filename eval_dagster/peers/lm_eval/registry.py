"""The registry `lm_eval`, its benchmarks, and their versions."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import frozen, thawed
from eval_dagster.metrics.explanations import explain
from eval_dagster.peers.lm_eval import index
from eval_dagster.peers.lm_eval.configurations import Configuration, Leaf, code_files, file_of, functions_in, is_of_task, package_code
from eval_dagster.peers.lm_eval.index import Entry, Members, members, suite_evals
from eval_dagster.peers.lm_eval.questions import answered, asked_of, questions_of
from eval_dagster.peers.lm_eval.task_objects import dataset_splits, metric_functions, read_rows, set_examples, task_over
from eval_dagster.peers.processes.benchmark import ProcessBenchmark
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.processes.registry import ProcessRegistry
from eval_dagster.peers.workers.messages import Described, EvalListed
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.benchmark import (
    Answer,
    BenchmarkMetric,
    BenchmarkRows,
    DatasetSplit,
    Item,
    Listed,
    OpenSplit,
    RenderSettings,
)
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.versions.hashes import file_hash, package_versions, stable_hash

_VERSIONED = ("lm_eval", "datasets", "jinja2", "nltk", "numpy", "rouge_score", "sacrebleu", "scikit-learn")
"""Packages that decide what a task gives."""
_READ_BY_CODE = {".py", ".json", ".jsonl", ".txt", ".csv", ".tsv"}
_RESPONSE_TYPES = {
    "generate_until": ResponseType.COMPLETION,
    "loglikelihood_rolling": ResponseType.PERPLEXITY,
}
_NO_CHAT = ("plain", "identity")
_NO_FILTER = "none"
_MODULES = ("configurations", "index", "questions", "registry", "task_objects")
"""The modules of this package that decide what the worker gives."""


class LmEvalRegistry(ProcessRegistry):
    """The names of lm-eval, and YAML files of tasks of one's own: `lm_eval:arc_easy`, `lm_eval:path/to/task.yaml`.

    They run in this process, or all in the environment that evals.yaml names for lm-eval.
    """

    NAME = "lm_eval"
    WORKER = "eval_dagster.peers.lm_eval.worker"
    COMPANIONS = tuple(f"eval_dagster.peers.lm_eval.{name}" for name in _MODULES)
    DISTRIBUTION = "lm_eval"
    PACKAGES = ("lm_eval",)
    RELEASE = index.VERSION
    EXTRA_REQUIREMENTS = (f"lm_eval[math,ifeval]=={index.VERSION}", "pillow", "pydantic")

    def names(self) -> Mapping[str, Listed]:
        """All names of the installed package."""
        return own_names() if self._given is None else super().names()

    def benchmark(self, name: str, folder: Path) -> "LmEvalBenchmark | LmEvalProcessBenchmark":  # type: ignore[override]
        """The benchmark of a task, a group or a tag.

        Raises:
            TaskDefinitionError: There is none, it is refused, or its tasks have different metrics.
        """
        if self._given is None:
            return own_benchmark(name, folder)
        is_file = name.endswith((".yaml", ".yml"))
        environment, given = self.environment(), str((folder / name).resolve()) if is_file else name
        process = self._process(environment, environment.stamp(self.PACKAGES))

        def describe(asked: WorkerProcess) -> Described:
            try:
                found: Described = asked.call("describe", name=given)
            except DataError as error:
                raise TaskDefinitionError(str(error).removeprefix("lm_eval: TaskDefinitionError: ")) from error
            return found

        # A file of the user may change at any time.
        described = describe(process) if is_file else self._kept(f"describe {given}", describe)
        return LmEvalProcessBenchmark(given, described, process, self._modules())

    def suite(self, name: str, folder: Path) -> Mapping[str, EvalListed]:  # noqa: ARG002 - names of the package alone
        """The evals of a group, by name.

        Raises:
            TaskDefinitionError: The group does not exist, or has a setting that an eval cannot have.
        """
        if self._given is None:
            return own_suite(name)
        environment = self.environment()
        try:
            found: Mapping[str, EvalListed] = self._process(environment, environment.stamp(self.PACKAGES)).call("suite", name=name)
        except DataError as error:
            raise TaskDefinitionError(str(error)) from error
        return found


class LmEvalProcessBenchmark(ProcessBenchmark):
    """A benchmark of lm-eval in an environment of its own."""

    def score_all(
        self, subject: str, rows: BenchmarkRows, answered: Sequence[tuple[Row, Sequence[Answer]]]
    ) -> Sequence[Mapping[str, Item] | Exception]:
        """The values of several documents by one call."""
        found = super().score_all(subject, rows, answered)
        return [each if isinstance(each, Exception) else {name: thawed(item) for name, item in each.items()} for each in found]

    def _aggregate(self, metric: str, items: Sequence[Item]) -> float:
        return super()._aggregate(metric, [frozen(item) for item in items])


def own_names() -> Mapping[str, Listed]:
    """All names of the package that this process has."""
    return {name: Listed(kind=entry.kind) for name, entry in index.package_index().items()}


def own_benchmark(name: str, folder: Path) -> "LmEvalBenchmark":
    """A benchmark in this process: of a name of the package, or of a YAML file, whose group may name tasks of the same folder.

    Raises as `LmEvalRegistry.benchmark`.
    """
    index.require_lm_eval()
    if not name.endswith((".yaml", ".yml")):
        known = index.package_index()
        return LmEvalBenchmark(name, members(_entry(name, known), known, index.package_folder()))
    file = folder / name
    if not os.path.isfile(file):  # noqa: PTH113 - false for a name that no file can have
        raise TaskDefinitionError(f"there is no task file {file}; a path is relative to the folder of evals.yaml")
    own = index.scan(file.parent)
    entry = next((each for each in own.values() if each.file == file.name), None)
    if entry is None:
        raise TaskDefinitionError(f"{file} defines no task of lm-eval; expected a YAML file with a key `task` or `group`")
    known = {**index.package_index(), **own} if entry.kind == "group" else own
    return LmEvalBenchmark(entry.name, members(entry, known, file.parent))


def own_suite(name: str) -> Mapping[str, EvalListed]:
    """The evals of a group of the package that this process has. Raises as `LmEvalRegistry.suite`."""
    known, files = index.package_index(), index.package_folder()
    entry = _entry(name, known)

    def is_one_eval(each: Entry) -> bool:
        return len({_kind(leaf) for leaf in members(each, known, files).leaves}) == 1

    return suite_evals(entry, known, files, is_one_eval)


def _entry(name: str, known: Mapping[str, Entry]) -> Entry:
    if name not in known:
        raise TaskDefinitionError(
            f"lm-eval has no task, group or tag {name!r}{did_you_mean(name, known)}; `eval-dagster tasks --source lm_eval` lists them"
        )
    return known[name]


class LmEvalBenchmark:
    """A task of lm-eval, or a group or tag of tasks with the same metrics: its tasks are the subjects."""

    def __init__(self, name: str, of_name: Members) -> None:
        """Take the tasks of a name.

        Raises:
            TaskDefinitionError: There are none, or they differ in the kind of request or in how they score.
        """
        if not of_name.leaves:
            raise TaskDefinitionError(f"lm_eval:{name} has no tasks")
        self.name = name
        self.is_macro = of_name.is_macro
        self._leaves = {leaf.name: leaf for leaf in of_name.leaves}
        self._version: str | None = None
        self._code_files: dict[str, frozenset[str]] = {}
        self._over: dict[tuple[str, int], tuple[BenchmarkRows, Any]] = {}
        kinds: dict[str, list[str]] = {}
        for leaf in of_name.leaves if len(of_name.leaves) > 1 else ():
            kinds.setdefault(_kind(leaf), []).append(leaf.name)
        if len(kinds) > 1:
            shown = "; ".join(f"{len(names)} ({names[0]}, ...) with {kind}" for kind, names in kinds.items())
            raise TaskDefinitionError(
                f"lm_eval:{name} holds tasks of different kinds, which have no value in common ({shown}); "
                f"`eval-dagster import-suite lm_eval:{name}` makes a suite of them"
            )

    @property
    def subjects(self) -> Sequence[str]:
        """The names of the tasks."""
        return list(self._leaves)

    @cached_property
    def _first(self) -> Configuration:
        return next(iter(self._leaves.values())).load()

    @property
    def description(self) -> str:
        """The release of lm-eval, and whether this is a task or a group."""
        count = len(self._leaves)
        return f"lm-eval {index.VERSION}: {f'a group of {count} tasks' if count > 1 else 'a task'}"

    @property
    def response_type(self) -> ResponseType:
        """The response type of the first task."""
        given = self._first.output_type or getattr(self._first.task_class, "OUTPUT_TYPE", None) or "generate_until"
        return _RESPONSE_TYPES.get(given, ResponseType.LOGLIKELIHOODS)

    @property
    def num_fewshot(self) -> int:
        """The number of examples of the first task."""
        return self._first.num_fewshot or 0

    @cached_property
    def metrics(self) -> Sequence[BenchmarkMetric]:
        """The metrics of the first task: all have the same."""
        from lm_eval.api.metrics import mean, nanmean

        return [
            BenchmarkMetric(
                name=_metric_name(name),
                higher_is_better=better,
                aggregate=None if aggregation in (mean, nanmean) else partial(self._aggregate, aggregation),
            )
            for name, (aggregation, better) in metric_functions(self._first).items()
        ]

    def version(self) -> str:
        """Hash of the packages, the configurations and the code beside them."""
        if self._version is None:
            self._version = stable_hash([[name, task_version(leaf.load())] for name, leaf in self._leaves.items()])
        return self._version

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        """The splits of a task's dataset. Raises `TaskDefinitionError` if examples are wanted of a task that has none."""
        leaf = self._leaves[subject]
        if fewshot and leaf.unresolved().num_fewshot == 0:
            raise TaskDefinitionError(
                f"lm_eval:{subject} has `num_fewshot: 0` in its configuration, which lm-eval does not let a user change; "
                "set num_fewshot of the eval to 0, or leave it out"
            )
        return dataset_splits(leaf.load(), leaf.file.parent, fewshot=fewshot)

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        """The documents that lm-eval makes of the rows."""
        return read_rows(self._leaves[subject], open_split, fewshot=fewshot)

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample] | BaseException]:
        """The requests of lm-eval for each document, or the exception that was raised.

        One generator draws the examples of all documents in their order, as in lm-eval; or one for each document, if the settings say so.
        """
        task, has_chat = self._task(subject, rows), settings.formatter.name not in _NO_CHAT
        files = self._files(subject)
        with package_code(files):
            set_examples(task, num_fewshot=settings.num_fewshot, seed=settings.seed)
        for doc in rows.evaluated:
            asked: Sequence[TaskSample] | BaseException
            try:
                with package_code(files):
                    if settings.examples_per_sample:
                        task.set_fewshot_seed(int(stable_hash([settings.seed, str(doc)]), 16))
                    made = asked_of(task, doc, num_fewshot=settings.num_fewshot, formatter=settings.formatter, has_chat=has_chat)
                    asked = questions_of(subject, task, doc, made)
            except (Exception, SystemExit) as error:  # of the task's code: it may fail for one document
                asked = error
            yield asked

    def score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> Mapping[str, Item]:
        """The values of a document under each filter: `exact_match/strict-match`, or `acc` without a filter."""
        task = self._task(subject, rows)
        instances = answered(subject, row, answers)
        values: dict[str, Item] = {}
        for ensemble in task._filters:
            with package_code(self._files(subject)):
                ensemble.apply(instances)
                filtered = [each.filtered_resps[ensemble.name] for each in instances]
                found = task.process_results(row, filtered)
            part = "" if ensemble.name == _NO_FILTER else f"/{ensemble.name}"
            named = {f"{_metric_name(name)}{part}": value for name, value in found.items()}
            values |= named
            for instance, taken in zip(instances, filtered, strict=True):
                texts = taken if isinstance(taken, list) else [taken]
                if not all(isinstance(text, str) for text in texts) or set(texts) <= set(instance.resps):
                    continue
                for text in texts:  # the parts that the filter extracted
                    explain("answer", text, next(iter(named), None))
        return values

    def _files(self, subject: str) -> frozenset[str]:
        if subject not in self._code_files:
            self._code_files[subject] = code_files(self._leaves[subject].load())
        return self._code_files[subject]

    def _aggregate(self, aggregation: Callable[[Sequence[Item]], float], items: Sequence[Item]) -> float:
        with package_code(self._files(self.subjects[0])):
            return aggregation(items)

    def _task(self, subject: str, rows: BenchmarkRows) -> Any:
        key = (subject, id(rows))
        if key not in self._over:
            self._over = {each: known for each, known in self._over.items() if each[0] != subject}
            self._over[key] = (rows, task_over(self._leaves[subject], rows))
        return self._over[key][1]


def _kind(leaf: Leaf) -> str:
    """The kind of request, the metrics and the number of examples of a task, in words."""
    config = leaf.unresolved()
    metrics = sorted(str(each.metric) for each in config.metric_list)
    return f"{config.output_type or 'generate_until'}, {', '.join(metrics) or 'the usual metrics'}, {config.num_fewshot or 0} examples"


def _metric_name(name: str) -> str:
    """A slash in a metric's name would look like the name of a filter."""
    return name.replace("/", ".")


def task_version(config: Configuration) -> str:
    """Hash of a configuration with its functions, and of each file in their folders: helpers, and data that some of them read."""
    sources: set[str] = set()
    for function in functions_in(config.document):
        own = file_of(function)
        if not is_of_task(own):
            own = str(getattr(sys.modules.get(str(getattr(function, "__module__", ""))), "__file__", None) or "")
        if own.endswith(".py"):
            sources.add(own)
    hashes: dict[str, str] = {}
    for source in sorted(sources):
        beside = [path for path in Path(source).parent.iterdir() if path.suffix in _READ_BY_CODE] if is_of_task(source) else [Path(source)]
        for path in sorted(each for each in beside if each.is_file()):
            digest = file_hash(path)
            # Two folders may have files of one name.
            name = path.name if hashes.setdefault(path.name, digest) == digest else f"{path.parent.name}/{path.name}"
            hashes[name] = digest
    return stable_hash([package_versions(_VERSIONED), _plain(config.document), hashes])


def _plain(value: Any) -> Any:
    """A configuration without the parts that differ between machines: functions by name, no paths of the package."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key != "config_source"}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if callable(value):
        return f"{value.__module__.rpartition('/')[2]}.{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, str):
        return value.rpartition("site-packages/")[2]
    return value if value is None or isinstance(value, bool | int | float) else repr(value)
