"""Inside the sandbox: the process that runs the tests; the program runs in another process. It uses the standard library only.

A name that the tests use and do not define is looked up in the part of the program that the task wrote, then in Python's built-in names,
then in the program. The program's functions run in its process. They return copies of plain values, which are compared here, and proxies
of objects of the program's classes, which are equal to no plain value.
"""

import ast
import builtins
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

from eval_dagster.sandbox.peer import Peer
from eval_dagster.sandbox.values import is_harmless

_MODULE = "tests"


def main() -> NoReturn:
    """Run the tests, and report if they passed. Arguments are descriptors: the tests, the channel to the program, and the report."""
    source, channel, done = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a signal from the program would raise an exception in the tests
    with open(source, "rb") as file:  # noqa: PTH123 - a descriptor
        texts = json.load(file)
    peer = Peer(channel, root=None, permits=_permits, takes=is_harmless)
    try:
        run_tests(peer, **texts)
    except BaseException as problem:
        traceback.print_exception(type(problem), problem, problem.__traceback__ and problem.__traceback__.tb_next)
        passed = False
    else:
        passed = not peer.has_ended
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the program may have filled the shared pipe
            stream.flush()
    if passed:
        os.write(done, b"passed")
    os._exit(0 if passed else 1)


def run_tests(peer: Peer, *, tests: str, given: str, entry: str | None) -> None:
    """Execute tests of the program that a peer runs; its object 0 is the dictionary of its names. Raises if the tests do not pass.

    The last definition of `given`, the beginning of the program, is taken from the program, because the model finished it. So is the name
    `entry`, even if it is a built-in name.
    """
    module = ModuleType(_MODULE)
    sys.modules[_MODULE] = module
    code = compile(tests, "<tests>", "exec")
    beginning = _definitions(given)
    wanted = {name for part in (code, beginning) for name in _names(part)} - set(vars(builtins)) - set(vars(module))
    wanted |= {entry} if entry else set()
    found = dict(peer.ask("names", 0, sorted(wanted)))
    vars(module).update({name: found[name] for name in wanted & set(found)})  # the program may return more names
    exec(beginning, module.__dict__)  # noqa: S102 - code of the task
    exec(code, module.__dict__)  # noqa: S102


def _definitions(given: str) -> CodeType:
    """The code that the task gives, without its last definition; empty if it cannot be parsed."""
    try:
        statements = ast.parse(given).body
    except (SyntaxError, ValueError):
        statements = []
    if statements and isinstance(statements[-1], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        del statements[-1]
    return compile(ast.Module(statements, []), "<given>", "exec")


def _names(code: CodeType) -> set[str]:
    """All names that some code uses, including its functions and classes."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _permits(operation: str, target: Any, operands: list[Any]) -> bool:
    """Whether a program may apply an operation to an object of the tests: calls, iteration, and reads of public attributes."""
    if operation == "call":
        return isinstance(target, FunctionType | MethodType | type) or callable(target)
    if operation == "get":
        own = type(target).__module__ == _MODULE and not isinstance(target, type)
        return own and isinstance(operands[0], str) and not operands[0].startswith("_")
    return operation in ("iter", "next", "len", "bool", "str", "repr", "item", "is")


if __name__ == "__main__":
    main()
