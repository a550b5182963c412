"""lighteval by itself on rows of stdin: prompts, values and aggregates as JSON on stdout. It runs in the environment of lighteval."""

import importlib
import json
import os
import sys
from dataclasses import replace

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from lighteval.metrics import apply_metric  # noqa: E402
from lighteval.models.model_output import ModelResponse  # noqa: E402
from lighteval.tasks.lighteval_task import LightevalTask  # noqa: E402
from lighteval.tasks.prompt_manager import PromptManager  # noqa: E402
from lighteval.tasks.requests import SamplingMethod  # noqa: E402
from scripted_answers import is_greedy, loglikelihood, text  # noqa: E402


def shown(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def response(prompt, doc, method):
    if method is SamplingMethod.GENERATIVE:
        return ModelResponse(input=prompt, text=[text(prompt, [str(gold) for gold in doc.get_golds()])])
    if method is SamplingMethod.PERPLEXITY:
        return ModelResponse(input=prompt, logprobs=[loglikelihood(prompt, "")])
    return ModelResponse(
        input=prompt,
        logprobs=[loglikelihood(prompt, choice) for choice in doc.choices],
        argmax_logits_eq_gold=[is_greedy(prompt, choice) for choice in doc.choices],
    )


def evaluate(module, name, splits, shots, is_chat):
    table = importlib.import_module(module).TASKS_TABLE
    task = LightevalTask(replace(next(each for each in table if each.name == name), num_fewshots=shots))
    task.dataset = {split: [dict(row) for row in rows] for split, rows in splits.items()}
    manager = PromptManager(use_chat_template=is_chat)
    prompts, values = [], []
    for doc in task.get_docs():
        prompt = json.dumps(manager.prepare_prompt_api(doc)) if is_chat else manager.prepare_prompt(doc)
        prompts.append(prompt)
        found = {}
        for metric in task.metrics:
            found |= apply_metric([response(prompt, doc, metric.category)], [doc], [metric])[0]
        values.append(found)
    aggregated = {key: float(function([each[key] for each in values])) for key, function in task.aggregation().items()}
    return {"prompts": prompts, "aggregated": aggregated, "values": [{key: shown(value) for key, value in each.items()} for each in values]}


json.dump([evaluate(**call) for call in json.load(sys.stdin)], out)
out.flush()
