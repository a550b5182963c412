"""eval-framework by itself on rows of stdin: prompts, messages and values as JSON on stdout. It runs in the environment that has it."""

import json
import os
import sys

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from eval_framework.shared.types import Completion, Loglikelihood  # noqa: E402
from eval_framework.tasks.base import ResponseType  # noqa: E402
from eval_framework.tasks.registry import Registry  # noqa: E402
from eval_framework.tasks.task_names import register_all_tasks  # noqa: E402
from scripted_answers import loglikelihood, text  # noqa: E402
from template_formatting.formatter import ConcatFormatter, Llama3Formatter  # noqa: E402

TASKS = Registry()
register_all_tasks(TASKS)


class Data(list):
    def filter(self, keeps):
        return Data(row for row in self if keeps(row))


class DataByName(dict):
    def filter(self, keeps):
        return DataByName({name: rows.filter(keeps) for name, rows in self.items()})


class Model:
    def generate(self, **_):
        raise NotImplementedError


def answered(task, sample, prompt):
    shared = {"id": sample.id, "subject": sample.subject, "ground_truth": sample.ground_truth, "prompt": prompt}
    shared["prompt_sequence_positions"] = None
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        values = {choice: loglikelihood(prompt, choice) for choice in sample.possible_completions}
        return Loglikelihood(**shared, loglikelihoods=values, loglikelihoods_sequence_positions={})
    golds = [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or ())
    raw = text(prompt, golds)
    return Completion(
        **shared,
        completion=task.post_process_generated_completion(raw, sample),
        raw_completion=raw,
        raw_completion_sequence_positions=None,
        messages=sample.messages,
        context=sample.context,
    )


def evaluate(name, subject, splits, shots, style):
    task = TASKS[name].create(num_fewshot=shots, custom_subjects=None, custom_hf_revision=None)
    task.SUBJECTS = [next(each for each in task.SUBJECTS if str(each) == subject)]
    task._load_hf_dataset = lambda **_: DataByName({split: Data(map(dict, rows)) for split, rows in splits.items()})
    formatter = {"plain": ConcatFormatter, "llama3": Llama3Formatter}[style]()
    metrics = [metric() for metric in task.get_metrics()]
    prompts, values = [], []
    for sample in task.iterate_samples(None):
        prompts.append(formatter.format(sample.messages, output_mode="string"))
        response = answered(task, sample, prompts[-1])
        results = [result for metric in metrics for result in metric.calculate(response)]
        values.append({result.metric_name: result.value for result in results})
    return {"prompts": prompts, "values": values}


json.dump([evaluate(**call) for call in json.load(sys.stdin)], out)
out.flush()
