"""What this project makes of the invented rows, for the files of a folder, and how it differs from what eval-framework makes."""

import json
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from invented import SAMPLES, SUBJECTS, loglikelihood, mark, rows_of, texts

from eval_dagster.datasets.origin import OrderedRows
from eval_dagster.errors import RequirementError
from eval_dagster.metrics.base import RowMetric
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.prompts.rendering import Rendering, render_sample
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import DatasetSource, ModelResponse, ResponseType, Row, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.scores import score_response
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.benchmark import OrderedTask, shots_of
from eval_dagster.tasks.samples import build_samples

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", Path(__file__).resolve().parents[4] / "shared"))
"""Where real rows may be."""
LOST_SPACE = ("COPA", "COPAEvalHarness", "COPA_IDK", "COPA_IDKEvalHarness")
"""Classes whose plain prompts lose the space before the choices in eval-framework."""


class _Invented:
    """The invented rows of a dataset."""

    def __init__(self, path: str) -> None:
        self.path = path

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        pass

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        rows = rows_of(self.path, None if subject == "default" else subject)
        return {split: rows[split] for split in splits}

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        return []

    def source(self) -> DatasetSource:
        return DatasetSource(path=self.path, revision=None)


def loaded(module: str, name: str, folder: Path) -> type[OrderedTask[Any]]:
    """A class of a file. What reads a dataset by itself reads the invented rows."""
    task: Any = load_task(f"{module}.py:{name}", {}, folder)
    assert issubclass(task, OrderedTask)
    if not task.reads_dataset():

        def load(self: Any, **kwargs: Any) -> Any:
            rows = rows_of(kwargs.get("path", self.DATASET_PATH), kwargs.get("name"))
            return {split: rows[split] for split in (self.SAMPLE_SPLIT, self.FEWSHOT_SPLIT)}

        task._load_hf_dataset = load
        functions = getattr(task._load_dataset, "__globals__", {})
        if "_load_social_i_qa" in functions:
            functions["_load_social_i_qa"] = lambda: rows_of("allenai/social_i_qa", None)
    return task


def rendered(task_class: type[OrderedTask[Any]], shots: int, formatter: Any) -> list[tuple[Sample, RenderedPrompt]]:
    """The first prompts of the first subjects."""
    actual = shots_of(task_class, shots)
    task = task_class(num_fewshot=actual)
    origin = OrderedRows(task_class, task, lambda path, *_: _Invented(path))
    samples: list[Sample] = []
    wanted = [task_class.SAMPLE_SPLIT, *([task_class.FEWSHOT_SPLIT, task_class.STATE_SPLIT] if actual and task_class.FEWSHOT_SPLIT else [])]
    for subject in list(task_class.SUBJECTS)[:SUBJECTS]:
        rows = origin.read(subject, list(dict.fromkeys(str(split) for split in wanted)))
        samples += build_samples(rows, subject)
    task.prepare(samples)
    rendering = Rendering(task=task, formatter=formatter, num_fewshot=actual)
    found: list[tuple[Sample, RenderedPrompt]] = []
    counts: dict[str, int] = defaultdict(int)
    for sample in samples:
        if sample.split == task.SAMPLE_SPLIT and counts[sample.subject] < SAMPLES:
            for prompt in render_sample(rendering, sample, None):
                if counts[sample.subject] < SAMPLES:
                    found.append((sample, prompt))
                    counts[sample.subject] += 1
    return found


def message_differences(name: str, task_class: type[OrderedTask[Any]], shots: int, wanted: Mapping[str, Any]) -> list[str]:
    """How the prompts differ."""
    try:
        found = rendered(task_class, shots, ConcatFormatter())
        llama = rendered(task_class, shots, Llama3Formatter())
    except Exception as error:
        return [] if "error" in wanted else [f"raised {type(error).__name__}: {error}"]
    if "error" in wanted:
        return ["eval-framework refuses it"]
    if len(found) != len(wanted["samples"]):
        return [f"{len(found)} samples, not {len(wanted['samples'])}"]
    differences = []
    for (_, prompt), (_, headed), theirs in zip(found, llama, wanted["samples"], strict=True):
        ours = {
            "messages": [[message.role.value, message.content] for message in prompt.messages],
            "plain": prompt.request.prompt.rstrip(" ") if name in LOST_SPACE else prompt.request.prompt,
            "llama3": headed.request.prompt,
            "choices": None if prompt.request.choices is None else list(prompt.request.choices),
            "ground_truth": prompt.ground_truth,
        }
        for part, value in ours.items():
            is_asked = not (part == "choices" and value is None) and not (part == "ground_truth" and theirs[part] in (None, [], ""))
            if is_asked and mark(value) != theirs[part]:
                differences.append(f"{part} of {theirs['id']}: {value!r} is not {theirs[part]!r}")
    return differences


def score_differences(task_class: type[OrderedTask[Any]], wanted: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    """How many values of each metric are equal, and how others differ. Errors on both sides are no difference, and no value.

    eval-framework gives the value of a row with its last question.
    """
    task = task_class()
    equal: dict[str, int] = defaultdict(int)
    differences: list[str] = []
    views: dict[tuple[str, int], list[Any]] = defaultdict(list)
    asked = list(zip(rendered(task_class, 0, ConcatFormatter()), wanted["samples"], strict=True))
    for place, ((sample, prompt), theirs) in enumerate(asked):
        is_last = place + 1 == len(asked) or asked[place + 1][0][0] is not sample
        for number, expected in enumerate(theirs["scores"]):
            for metric, ours in _scored(task, sample, prompt, theirs, number, views[sample.sample_id, number], is_last).items():
                values = {metric: expected} if isinstance(expected, str) else _by_name(metric, expected[metric])
                if _alike(ours, values):
                    equal[metric] += not isinstance(ours, str)
                else:
                    differences.append(f"{metric} of sample {theirs['id']}, answer {number}: {ours} is not {values}")
    return dict(equal), differences


def _scored(
    task: Any, sample: Sample, prompt: RenderedPrompt, theirs: Mapping[str, Any], answer: int, of_row: list[Any], is_last: bool
) -> dict[str, Any]:
    """The values of an answer by metric. Its views are added to those of the row."""
    if prompt.response_type is ResponseType.LOGLIKELIHOODS:
        values = [loglikelihood(theirs["plain"], choice) for choice in prompt.request.choices or ()]
        response = ModelResponse(logprobs=values)
    else:
        text = texts(dict(sample.row), prompt.ground_truth, theirs["id"])[answer]
        response = ModelResponse(text=[text], finish_reason=["stop"], reasonings=[None])
    try:
        views = AnsweredPrompt(task=task, sample=sample, prompt=prompt).views(response)
    except Exception as error:
        return {metric.NAME: type(error).__name__ for metric in task.METRICS}
    of_row += views
    found: dict[str, Any] = {}
    for metric in task.METRICS:
        if issubclass(metric, RowMetric) and not is_last:
            found[metric.NAME] = "no value"
            continue
        try:
            scores = score_response([metric], of_row if issubclass(metric, RowMetric) else views, None)
        except RequirementError as error:
            found[metric.NAME] = f"RequirementError: {error}"
            continue
        found[metric.NAME] = scores[0].error if scores[0].error else {score.metric: score.value for score in scores}
    return found


def _by_name(metric: str, results: Any) -> Any:
    """The values of a metric as this project names them; those of one name as their mean."""
    if isinstance(results, str) or not results or any(value is None for _, value in results):
        return "no value"
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in results:
        found[name if name == metric or name.startswith(f"{metric}/") else f"{metric}/{name}"].append(float(value))
    return {name: fmean(values) for name, values in found.items()}


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str) and not ours.startswith("RequirementError")
    return ours.keys() == theirs.keys() and all(math.isclose(ours[name], theirs[name], abs_tol=1e-9) for name in ours)


def copied(benchmarks: Path, folder: Path) -> Path:
    """A copy of the benchmark files."""
    return Path(shutil.copytree(benchmarks, folder / "benchmarks"))


def main(theirs: str, folder: str) -> None:
    """Print how many prompts were compared, and the first differences of each class, as JSON."""
    compared, differences = 0, []
    for name, by_shots in json.loads(Path(theirs).read_text()).items():
        for shots, wanted in by_shots.items():
            compared += len(wanted.get("samples", ()))
            found = message_differences(name, loaded(wanted["module"], name, Path(folder)), int(shots), wanted)
            differences += [f"{name}, {shots} shots: {each}" for each in found[:2]]
    print(json.dumps([compared, differences]))  # noqa: T201 - the other process reads it
