"""lighteval's own prompts and metric values of given rows and answers. Runs under the Python that has lighteval installed.

Reads a JSON list of cases from standard input and writes a JSON list of results, see `_result`.
"""

import importlib
import json
import sys
from typing import Any

from lighteval.metrics import apply_metric
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.prompt_manager import PromptManager


class Template:
    """A chat template that shows every character of its messages."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}</{message['role']}>" for message in messages) + "<assistant>"


def main() -> None:
    """Answer the cases."""
    out, sys.stdout = sys.stdout, sys.stderr
    json.dump([_result(case) for case in json.load(sys.stdin)], out)


def _result(case: dict[str, Any]) -> dict[str, Any]:
    """Prompts by the position of their row, and the value of every metric."""
    module = importlib.import_module(f"lighteval.tasks.tasks.{case['module']}")
    config = next(each for each in module.TASKS_TABLE if each.name == case["name"])
    config.num_fewshots, config.few_shots_select = case["num_fewshot"], "sequential"
    task = LightevalTask(config)
    task.dataset = {
        split: [dict(row) for row in rows if not config.hf_filter or config.hf_filter(row)] for split, rows in case["rows"].items()
    }
    if case["num_fewshot"]:
        task.fewshot_split = case["fewshot_split"]
    docs = task.get_docs()
    template = PromptManager(use_chat_template=True, tokenizer=Template())
    prompts = {
        doc.id: {
            "plain": PromptManager().prepare_prompt(doc),
            "chat": template.prepare_prompt(doc),
            "choices": doc.choices,
            "golds": [] if doc.choices is None else doc.get_golds(),
        }
        for doc in docs
    }
    return {"prompts": prompts, "values": _values(task, docs, case["answers"]), "num_samples": max(task.num_samples)}


def _values(task: LightevalTask, docs: list[Any], answers: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The corpus value of every metric that the answers are for."""
    values = {}
    for category in task.sampling_methods:
        metrics = [metric for metric in task.metrics if metric.category is category and not _is_left_out(metric)]
        responses = [_response(answers[doc.id][category.value]) for doc in docs] if metrics else []
        rows = apply_metric(docs=docs, responses=responses, metrics=metrics) if metrics else []
        for metric in metrics:
            for name, aggregate in metric.get_corpus_aggregations().items():
                values[name] = float(aggregate([row[name] for row in rows]))
    return values


def _is_left_out(metric: Any) -> bool:
    """Metrics by models that are not here."""
    names = {"summac", "summarization_coverage", "BERTScore-P", "bleurt"}
    return bool(names & set([metric.metric_name] if isinstance(metric.metric_name, str) else metric.metric_name))


def _response(answer: dict[str, Any]) -> ModelResponse:
    tokens = [[0] * len(each) for each in answer.get("token_logprobs", ())]
    return ModelResponse(text=answer.get("texts", []), logprobs=answer.get("logprobs", []), output_tokens=tokens)


if __name__ == "__main__":
    main()
