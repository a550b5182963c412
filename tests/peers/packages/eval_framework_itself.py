"""A release of eval-framework before 0.11 by itself: prompts and values of invented rows. It runs in the environment that has it.

It reads calls as JSON from stdin, and writes their results to stdout; of `names`, the registered names and the modules of other classes.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
from pathlib import Path

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "every_name")]

import datasets  # noqa: E402
import langdetect  # noqa: E402
from stand_in import rows_of  # noqa: E402


def load(path, name=None, **_):
    return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in rows_of(path, name).items()})


langdetect.DetectorFactory.seed = 0  # without a seed, the release gives other values in each run
datasets.load_dataset = load
datasets.disable_progress_bars()

import containers  # noqa: E402
import eval_framework.metrics.completion.multipl_e_assertion as multipl_e  # noqa: E402
import eval_framework.tasks.benchmarks as benchmarks  # noqa: E402
from eval_framework.shared.types import Completion, Loglikelihood  # noqa: E402
from eval_framework.tasks.base import BaseTask, ResponseType  # noqa: E402
from eval_framework.tasks.registry import Registry  # noqa: E402
from eval_framework.tasks.task_names import register_all_tasks  # noqa: E402
from scripted_answers import loglikelihood, text_or_program  # noqa: E402
from template_formatting.formatter import ConcatFormatter, Llama3Formatter  # noqa: E402

multipl_e._get_javatuples_jar = lambda: containers.JAR
TASKS = Registry()
register_all_tasks(TASKS)


def other_classes():
    """The modules of the classes of benchmarks that are not registered, by name."""
    found = {}
    for module in pkgutil.walk_packages(benchmarks.__path__, f"{benchmarks.__name__}."):
        for name, own in vars(importlib.import_module(module.name)).items():
            is_own = inspect.isclass(own) and issubclass(own, BaseTask) and own.__module__ == module.name
            if is_own and hasattr(own, "DATASET_PATH") and not name.startswith("_") and name not in TASKS:
                found[name] = module.name
                own.REVISION_LOCKFILE = None  # they pin no revision, or one that the release does not have
    return found


def answered(task, sample, prompt):
    shared = {"id": sample.id, "subject": sample.subject, "ground_truth": sample.ground_truth, "prompt": prompt}
    shared["prompt_sequence_positions"] = None
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        values = {choice: loglikelihood(prompt, choice) for choice in sample.possible_completions}
        return Loglikelihood(**shared, loglikelihoods=values, loglikelihoods_sequence_positions={})
    golds = [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or ())
    raw = text_or_program(prompt, golds)
    return Completion(
        **shared,
        completion=task.post_process_generated_completion(raw, sample),
        raw_completion=raw,
        raw_completion_sequence_positions=None,
        messages=sample.messages,
        context=sample.context,
    )


def values_of(metrics, response):
    """By name, the values of a sample: numbers, or one text for an error."""
    found = {}
    for metric in metrics:
        try:
            results = metric.calculate(response)
        except Exception as error:
            found[metric.NAME] = f"{type(error).__name__}: {error}"
            continue
        for result in results:
            if result.error is not None:
                found[result.metric_name] = f"{result.error.error_class}: {result.error.message}"
            else:
                found.setdefault(result.metric_name, []).append(result.value)
    return found


def evaluate(name, shots, style, scores):
    if name in TASKS:
        task = TASKS[name].create(num_fewshot=shots, custom_subjects=None, custom_hf_revision=None)
    else:
        task = getattr(importlib.import_module(OTHERS[name]), name)(num_fewshot=shots)
    task.SUBJECTS = list(task.SUBJECTS)[:1]
    task._load_hf_dataset = load
    formatter = {"plain": ConcatFormatter, "llama3": Llama3Formatter}[style]()
    metrics = [metric() for metric in task.get_metrics()]
    prompts, values = [], []
    for sample in task.iterate_samples(None):
        prompts.append(formatter.format(sample.messages, output_mode="string"))
        if scores:
            values.append(values_of(metrics, answered(task, sample, prompts[-1])))
    return {"prompts": prompts, "values": values, "stops": sorted(set(task.stop_sequences or ())), "max_tokens": task.max_tokens}


def outcome(**call):
    try:
        return evaluate(**call)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


OTHERS = other_classes()
calls = json.load(sys.stdin)
json.dump({"names": list(TASKS), "classes": OTHERS} if calls == "names" else [outcome(**call) for call in calls], out)
out.flush()
os._exit(0)
