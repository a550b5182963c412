"""Writes cases: a metric with its arguments and the responses that it scores."""

from typing import Any

Case = dict[str, Any]
ERROR = {"error_class": "RuntimeError", "message": "the model failed", "traceback": ""}


def asked(question: str) -> list[list[str]]:
    """A conversation of one question."""
    return [["user", question]]


def context(name: str, **fields: Any) -> Case:
    """A context by its module and class, `completion.ifeval:IFEvalMetricContext` for instance."""
    return {"class": name, "fields": fields}


def text(completion: str, truth: Any = None, *, raw: str | None = None, **others: Any) -> Case:
    """A generated text. `raw` is the text before the task's post-processing."""
    found = {"completion": completion, "raw_completion": completion if raw is None else raw, "ground_truth": truth}
    return {"messages": asked("What is it?"), **found, **others}


def choices(loglikelihoods: dict[str, float], truth: Any, **others: Any) -> Case:
    """The log-probabilities of choices."""
    return {"loglikelihoods": loglikelihoods, "ground_truth": truth, **others}


def metric(module: str, names: str, responses: list[Case], **arguments: Any) -> list[Case]:
    """A case for each of some metrics: these responses, and of the first one its error and, of a text, the empty one."""
    first = responses[0]
    more = [first | {"error": ERROR}, *([first | {"completion": "", "raw_completion": ""}] if "completion" in first else [])]
    return [{"module": module, "class": name, "arguments": arguments, "responses": [*responses, *more]} for name in names.split()]
