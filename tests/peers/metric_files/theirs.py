"""What the metrics of eval-framework make of the cases; runs in its own environment: `python theirs.py CASES OUTPUT`."""

import importlib
import inspect
import json
import os
import pkgutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eval_framework.metrics
import eval_framework.metrics.completion.code_assertion as assertion
import eval_framework.metrics.completion.multipl_e_assertion as multipl_e
import eval_framework.metrics.llm.llm_judge_sql as sql
import eval_framework.tasks.utils as utils
import metric_responses as responses
from eval_framework.metrics.base import BaseMetric
from eval_framework.shared import types
from llm_sandbox.exceptions import SandboxTimeoutError
from template_formatting.formatter import Message, Role

PROGRAM_S = 5
"""Most seconds of a program."""


def modules() -> dict[str, Any]:
    """All modules of metrics by name."""
    prefix = f"{eval_framework.metrics.__name__}."
    found = pkgutil.walk_packages(eval_framework.metrics.__path__, prefix)
    return {each.name.removeprefix(prefix): importlib.import_module(each.name) for each in found if not each.ispkg}


def classes(module: Any) -> dict[str, str]:
    """The metrics of a module that can be calculated: class and `NAME`."""
    made = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    return {each.__name__: each.NAME for each in made if issubclass(each, BaseMetric) and hasattr(each, "NAME")}


def patch() -> None:
    """Run programs here instead of in containers."""
    import theirs_programs

    def run(code: str, *_: Any, timeout: int = PROGRAM_S, **__: Any) -> str:
        try:
            return theirs_programs.run_local(code, timeout=min(timeout, PROGRAM_S))
        except theirs_programs.TimeoutExpired as problem:
            raise SandboxTimeoutError(str(problem)) from problem

    utils.run_python_code = assertion.run_python_code = run
    multipl_e.MultiPLECodeAssertion._execute = staticmethod(theirs_programs.execute)
    sql._MYSQL_PORT = sql._POSTGRES_PORT = 1  # no database server is started


def main(cases: str, output: str) -> None:
    """Calculate all cases."""
    patch()
    known = modules()
    names = responses.Names(
        find=lambda module: types if module == "shared" else known[module],
        completion=types.Completion,
        loglikelihood=types.Loglikelihood,
        error=types.Error,
        compression=types.ConcatCompression,
        message=lambda role, content: Message(role=Role(role), content=content),
        function=lambda name: utils.CallableSerializer.encode(getattr(utils, name)),
        reply=lambda **fields: types.RawCompletion(prompt_sequence_positions=None, completion_sequence_positions=None, **fields),
    )
    found = []
    for case in json.loads(Path(cases).read_text()):
        metric = getattr(known[case["module"]], case["class"])
        made = responses.Instances(metric, case, names)
        found.append([responses.calculated(made, each, names) for each in case["responses"]])
    about = SimpleNamespace(modules=list(known), classes={name: made for name, module in known.items() if (made := classes(module))})
    Path(output).write_text(json.dumps({"values": found, **vars(about)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
