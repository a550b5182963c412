"""lighteval by itself on rows of stdin: documents, values and aggregates as JSON on stdout. It runs in the environment of lighteval."""

import copy
import importlib
import json
import os
import random
import re
import sys

out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import numpy as np  # noqa: E402
from lighteval.metrics import apply_metric  # noqa: E402
from lighteval.metrics.utils.metric_utils import MetricGrouping  # noqa: E402
from lighteval.models.model_output import ModelResponse  # noqa: E402
from lighteval.tasks.lighteval_task import LightevalTask  # noqa: E402
from lighteval.tasks.prompt_manager import PromptManager  # noqa: E402
from lighteval.tasks.requests import SamplingMethod  # noqa: E402
from scripted_answers import is_greedy, loglikelihood, texts  # noqa: E402


def number(value):
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def name_of(metric):
    """A metric's name without the addresses of functions, which differ in each process."""
    return re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", metric).replace("/", ".")


def response(prompt, doc, method):
    if method is SamplingMethod.GENERATIVE:
        return ModelResponse(input=prompt, text=texts(prompt, [str(gold) for gold in doc.get_golds()], doc.num_samples))
    if method is SamplingMethod.PERPLEXITY:
        return ModelResponse(input=prompt, logprobs=[loglikelihood(prompt, "")])
    return ModelResponse(
        input=prompt,
        logprobs=[loglikelihood(prompt, choice) for choice in doc.choices],
        argmax_logits_eq_gold=[is_greedy(prompt, choice) for choice in doc.choices],
    )


def documents(module, name, splits, shots):
    """The documents, drawn with the seed of lighteval's pipeline."""
    config = copy.copy(next(each for each in importlib.import_module(module).TASKS_TABLE if each.name == name))
    config.num_fewshots = shots
    config.__post_init__()
    data = {split: [dict(row) for row in rows if config.hf_filter is None or config.hf_filter(row)] for split, rows in splits.items()}
    random.seed(1234)
    np.random.seed(1234)
    if name in GIVEN:
        data = {split: [{"document": each} for row in rows for each in called(config, row)] for split, rows in data.items()}
        config.prompt_function = lambda row, _name: row["document"]
    task = LightevalTask(config)
    task.dataset = data
    return task, task.get_docs()


GIVEN = ("aa_omniscience", "babi_qa", "coqa")
"""Tasks whose prompt function LightevalTask cannot call, or whose lists of documents it cannot take. They are given to it one by one."""


def called(config, row):
    if config.name == "aa_omniscience":
        return [config.prompt_function(row)]
    return config.prompt_function(row, config.name)


def shown(doc, prompt, methods, is_chat):
    found = {"prompt": prompt}
    if SamplingMethod.LOGPROBS in methods:
        golds = doc.gold_index if isinstance(doc.gold_index, list | tuple) else [doc.gold_index]
        found |= {"choices": doc.choices, "gold_indices": [int(each) for each in golds]}
    if SamplingMethod.GENERATIVE in methods:
        stops = [] if is_chat else [text for text in doc.stop_sequences or () if text]
        size = doc.generation_size if (doc.generation_size or 0) > 0 else None
        golds = None if doc.choices is None else [str(gold) for gold in doc.get_golds()]
        found |= {"ground_truth": golds, "max_tokens": size, "stop_sequences": stops, "num_samples": doc.num_samples}
    return found


def scored(task, docs, prompts):
    """Values by document and aggregates of each metric; the metrics that lighteval itself cannot compute here."""
    values, aggregated, failed = [{} for _ in docs], {}, {}
    for metric in task.metrics:
        names = metric.metric_name if isinstance(metric, MetricGrouping) else [metric.metric_name]
        try:
            found = [apply_metric([response(p, d, metric.category)], [d], [metric])[0] for p, d in zip(prompts, docs, strict=True)]
            made = {
                name_of(key): float(function([each[key] for each in found])) for key, function in metric.get_corpus_aggregations().items()
            }
        except Exception as error:
            failed |= {name_of(each): f"{type(error).__name__}: {error}" for each in names}
            continue
        aggregated |= made
        for known, each in zip(values, found, strict=True):
            known |= {name_of(key): number(value) for key, value in each.items()}
    return {"values": values, "aggregated": aggregated, "failed": failed}


def evaluate(module, name, splits, shots, is_chat):
    try:
        task, docs = documents(module, name, splits, shots)
        manager = PromptManager(use_chat_template=is_chat)
        prompts = [json.dumps(manager.prepare_prompt_api(doc)) if is_chat else manager.prepare_prompt(doc) for doc in docs]
        methods = {metric.category for metric in task.metrics}
        found = [shown(doc, prompt, methods, is_chat) for doc, prompt in zip(docs, prompts, strict=True)]
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    return {"documents": found, "examples": task.fewshot_split is not None, **scored(task, docs, prompts)}


json.dump([evaluate(**call) for call in json.load(sys.stdin)], out)
out.flush()
