"""Makes the responses of cases and describes what a metric gives. Both environments import this file; it needs Python alone."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Described = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Names:
    """The classes and functions of one of the packages."""

    find: Callable[[str], Any]
    """The module of a name."""
    completion: Any
    loglikelihood: Any
    error: Any
    compression: Any
    message: Callable[[str, str], Any]
    function: Callable[[str], str]
    """The text that a function of `eval_framework.tasks.utils` is written as."""
    reply: Any


class Judge:
    """Gives one text to every conversation; fails without one. The prompt of its reply is the conversation as JSON."""

    def __init__(self, text: str | None, names: Names) -> None:
        self.text = text
        self.names = names

    def generate_from_messages(self, messages: list[Any], *_: Any, **__: Any) -> list[Any]:
        """One reply for each conversation."""
        if self.text is None:
            raise TimeoutError("the judge gave no answer")
        shown = [json.dumps([[each.role.value, each.content] for each in conversation], ensure_ascii=False) for conversation in messages]
        return [self.names.reply(prompt=prompt, completion=self.text) for prompt in shown]


def response_of(case: Described, names: Names) -> Any:
    """The response of a case."""
    given = {"id": 0, "subject": "", "prompt": "", "prompt_sequence_positions": None, **case}
    for key in ("judge", "needs", "once"):
        given.pop(key, None)
    if "error" in given:
        given["error"] = names.error(**given["error"])
    if "concat_compression" in given:
        given["concat_compression"] = names.compression(*given["concat_compression"])
    if "loglikelihoods" in given:
        return names.loglikelihood(**given, loglikelihoods_sequence_positions={})
    contexts = given.get("context")
    given["context"] = (
        [_context(each, names) for each in contexts] if isinstance(contexts, list) else contexts and _context(contexts, names)
    )
    given["messages"] = [names.message(*each) for each in given["messages"]]
    return names.completion(**given, raw_completion_sequence_positions=None)


def _context(given: Described, names: Names) -> Any:
    module, _, name = given["class"].partition(":")
    fields = {key: names.function(value["function"]) if _is_function(value) else value for key, value in given["fields"].items()}
    return getattr(names.find(module), name)(**fields)


def _is_function(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"function"}


def arguments_of(case: Described, response: Described, names: Names) -> Described:
    """The arguments of a metric. A judge answers as the response says."""
    return case["arguments"] | ({"llm_judge": Judge(response.get("judge"), names)} if case["module"].startswith("llm.") else {})


class Instances:
    """Makes the instance of a metric for each response, or one for all where the case says `shared`."""

    def __init__(self, metric: Any, case: Described, names: Names) -> None:
        self._metric, self._case, self._names = metric, case, names
        self._shared: Any = None

    def of(self, response: Described) -> Any:
        """The instance for a response."""
        made = self._shared or self._metric(**arguments_of(self._case, response, self._names))
        self._shared = made if self._case.get("shared") else None
        return made


def calculated(made: Instances, response: Described, names: Names) -> Any:
    """The results of a metric, or the exception."""
    try:
        return [described(each) for each in made.of(response).calculate(response_of(response, names))]
    except Exception as error:
        return {"raised": type(error).__name__, "message": str(error)}


def described(result: Any) -> Described:
    """The fields of a result. What a program writes is left out, since it has paths and times."""
    value, error = result.value, result.error
    return {
        "name": result.metric_name,
        "value": str(value) if value is not None and not math.isfinite(value) else value if value is None else float(value),
        "higher_is_better": result.higher_is_better,
        "judge_prompt": result.llm_judge_prompt,
        "judge_response": result.llm_judge_response,
        "error": error if error is None or isinstance(error, str) else [error.error_class, error.message],
    }
