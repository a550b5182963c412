"""The metrics of copies of eval-framework's files, loaded as a user's, and what they make of the cases."""

import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import metric_responses as responses

from eval_dagster.metrics.base import BaseMetric, Error, full_name, is_higher_better
from eval_dagster.peers.eval_framework import code, contexts
from eval_dagster.peers.eval_framework.responses import Completion, ConcatCompression, Loglikelihood
from eval_dagster.peers.raw_answers import RawCompletion
from eval_dagster.records import Message, Role
from eval_dagster.stages.scores import score_response
from eval_dagster.task_files.loading import load_task

NO_VALUE = "no value"
TASK = """
from {file} import {metric}

from eval_framework.tasks.base import NO_SUBJECT, BaseTask, ResponseType


class Asked(BaseTask[str]):
    NAME = "Asked"
    DATASET_PATH = "somebody/questions"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = [NO_SUBJECT]
    RESPONSE_TYPE = ResponseType.{kind}
    METRICS = [{metric}]

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return item["answer"]

    def _get_possible_completions(self, item):
        return item["choices"]
"""
STUBS = {
    "mysql/connector/__init__.py": "from mysql.connector import pooling\n",
    "mysql/connector/abstracts.py": "class MySQLConnectionAbstract: ...\n",
    "mysql/connector/pooling.py": "class PooledMySQLConnection: ...\n",
    "mysql/__init__.py": "",
    "psycopg2/__init__.py": "from psycopg2 import extensions\n",
    "psycopg2/extensions.py": "class connection: ...\n",
}
"""The parts of the clients of MySQL and PostgreSQL that a file names when it is imported."""


def copied(metrics: Path, module: str, folder: Path) -> Path:
    """A folder with a copy of a file, of the graders of a judge, and of what stands for the clients of databases."""
    target = folder / module.replace(".", "_")
    target.mkdir(parents=True)
    shutil.copy(metrics / f"{module.replace('.', '/')}.py", target)
    if module.startswith("llm."):
        for grader in (metrics / "llm" / "graders").glob("*_grader.py"):
            shutil.copy(grader, target)
    if module == "llm.llm_judge_sql":
        for name, text in STUBS.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)
    return target


def loaded(case: Mapping[str, Any], folder: Path) -> type[BaseMetric[Any]]:
    """The metric of a case, by a task whose file is beside the metric's."""
    kind = "LOGLIKELIHOODS" if "loglikelihoods" in case["responses"][0] else "COMPLETION"
    file = case["module"].rpartition(".")[2]
    (folder / "asked.py").write_text(TASK.format(file=file, metric=case["class"], kind=kind))
    (metric,) = load_task("asked.py:Asked", {}, folder).METRICS
    if file == "llm_judge_sql":
        module: Any = sys.modules[metric.__module__]
        module._MYSQL_PORT = module._POSTGRES_PORT = 1  # no database server is started
    return metric


def names_of(metric: type) -> responses.Names:
    """This project's classes, and those of the file of a metric."""
    file = sys.modules[metric.__module__]
    return responses.Names(
        find=lambda module: contexts if module == "shared" else file,
        completion=Completion,
        loglikelihood=Loglikelihood,
        error=Error,
        compression=ConcatCompression,
        message=lambda role, content: Message(Role(role), content),
        function=lambda name: code.CallableSerializer.encode(getattr(code, name)),
        reply=RawCompletion,
    )


def skipped(case: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
    """Whether a package that a response needs is not installed."""
    return any(package and find_spec(package) is None for package in (case.get("needs"), response.get("needs")))


def differences(case: Mapping[str, Any], metric: type[BaseMetric[Any]], wanted: Sequence[Any]) -> tuple[int, list[str]]:
    """How many responses have equal results, and how others differ."""
    names, equal, found = names_of(metric), 0, []
    made = responses.Instances(metric, case, names)
    for place, (response, theirs) in enumerate(zip(case["responses"], wanted, strict=True)):
        if skipped(case, response):
            continue
        ours = responses.calculated(made, response, names)
        problems = [*_result_problems(ours, theirs), *_score_problems(case, metric, response, names, theirs)]
        equal += not problems
        found += [f"{case['module']}:{case['class']} {case['arguments']} response {place}: {problem}" for problem in problems]
    return equal, found


def _result_problems(ours: Any, theirs: Any) -> list[str]:
    """How the results of `calculate` differ."""
    if isinstance(theirs, dict):
        return [] if isinstance(ours, dict) or all(each["value"] is None for each in ours) else [f"{ours} is not {theirs}"]
    if isinstance(ours, dict):
        return [f"{ours} is not {theirs}"]
    merged = _merged(theirs)
    if len(ours) != len(merged):
        return [f"{ours} is not {merged}"]
    return [f"{mine} is not {other}" for mine, other in zip(ours, merged, strict=True) if not _alike(mine, other)]


def _merged(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results with those of one name as their mean, without those that have neither value nor error beside others."""
    if any(each["value"] is not None for each in results):
        results = [each for each in results if each["value"] is not None or each["error"]]
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results:
        by_name[each["name"]].append(each)
    return [same[0] | {"value": fmean(each["value"] for each in same)} if len(same) > 1 else same[0] for same in by_name.values()]


def _alike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two results are equal. The package writes the class of its own record for an error that a judge's file caught."""
    if theirs["error"] and theirs["error"][0] == "Error" and ours["error"]:
        theirs = theirs | {"error": ours["error"]}
    rest = [{key: value for key, value in each.items() if key != "value"} for each in (ours, theirs)]
    values = [ours["value"], theirs["value"]]
    is_number = all(isinstance(value, float) for value in values)
    return rest[0] == rest[1] and (math.isclose(*values, abs_tol=1e-9) if is_number else values[0] == values[1])


def _score_problems(
    case: Mapping[str, Any], metric: type[BaseMetric[Any]], response: Mapping[str, Any], names: responses.Names, theirs: Any
) -> list[str]:
    """How the scores of the pipeline differ."""
    if case.get("shared") or "error" in response or response.get("once"):
        return []  # a metric is made anew for each sample, and sees no response with an error; `once` says that a response takes long
    arguments = responses.arguments_of(case, response, names)

    def init(self: Any) -> None:
        metric.__init__(self, **arguments)

    made = type(metric.__name__, (metric,), {"__init__": init}) if arguments else metric
    try:
        view = responses.response_of(response, names)
    except Exception as problem:
        return [] if isinstance(theirs, dict) else [f"there is no response: {problem!r}"]
    scores = score_response([made], [view], None)
    ours = NO_VALUE if any(score.error for score in scores) else {score.metric: score.value for score in scores}
    expected = expected_scores(metric.NAME, theirs)
    if isinstance(ours, str) or isinstance(expected, str):
        return [] if ours == expected else [f"the scores {scores} are not {expected}"]
    better = {full_name(metric.NAME, each["name"]): each["higher_is_better"] for each in theirs}
    is_same = ours.keys() == expected.keys() and all(math.isclose(ours[name], expected[name], abs_tol=1e-9) for name in ours)
    turned = [name for name in ours if is_higher_better(metric, name) != better[name]]
    return ([] if is_same else [f"the scores {ours} are not {expected}"]) + [f"the direction of {name} is another" for name in turned]


def expected_scores(metric_name: str, theirs: Any) -> dict[str, float] | str:
    """The scores that the package's results mean."""
    if isinstance(theirs, dict) or not theirs or any(each["error"] or isinstance(each["value"], str) for each in theirs):
        return NO_VALUE
    values = {full_name(metric_name, each["name"]): each["value"] for each in _merged(theirs)}
    return NO_VALUE if None in values.values() else values
