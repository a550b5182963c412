"""Inside the sandbox: the process that runs the code. It uses the standard library only."""

import os
import site
import sys
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from eval_dagster.sandbox.peer import Peer


def main() -> NoReturn:
    """Run the code, then answer the calls of its tests; without tests, return the secret that proves that the code ended regularly.

    Arguments are the module's name and descriptors: the code and the channel to the tests, or the code, the secret and its destination.
    """
    name, code, *descriptors = sys.argv[1], *map(int, sys.argv[2:])
    with open(code, "rb") as file:  # noqa: PTH123 - a descriptor
        source = file.read()
    module = _run(name, source)
    _flush()
    if len(descriptors) == 1:
        peer = Peer(*descriptors, root=module.__dict__, permits=lambda *_: True, takes=lambda *_: True)
        peer.serve()
        _flush()
    else:
        secret, done = descriptors
        os.write(done, os.read(secret, 64))
    os._exit(0)


def _run(name: str, source: bytes) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    site.setquit()  # `exit` and `quit`; the module that usually adds them would also look for installed packages
    sys.argv = [""]
    try:
        exec(compile(source, "<program>", "exec"), module.__dict__)  # noqa: S102 - what the sandbox is for
    except Exception as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__ and problem.__traceback__.tb_next)
        sys.exit(1)
    return module


def _flush() -> None:
    for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
        with suppress(Exception):  # the program may have closed or replaced it
            getattr(sys, stream).flush()


if __name__ == "__main__":
    main()
