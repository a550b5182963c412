"""Runs programs that a model wrote, isolated from the machine.

bubblewrap gives each program namespaces of its own: no network, no other processes, and of the machine's files only Python's standard
library and the system's libraries, read-only. The program can write to an empty folder in memory. A filter of system calls closes what
namespaces leave open. The program has no privileges and an empty environment; its time, memory, output, files and processes are limited.
Folders of installed packages look empty, so that a result does not depend on them. If bubblewrap is missing or cannot make its walls,
nothing runs. The kernel is shared: if you expect attacks on it, run evals in a virtual machine.

The tests of a program run in another process than the program, and call its functions there. So no program can change the tests, read what
they expect, or write the result.
"""

from eval_dagster.sandbox.records import (
    ALLOW_KEY,
    Limits,
    Program,
    SandboxPolicy,
    SandboxResult,
    Toolchain,
    execution_allowed,
    sandbox_policy,
)
from eval_dagster.sandbox.running import probe, require_sandbox, run_python, walled

__all__ = [
    "ALLOW_KEY",
    "Limits",
    "Program",
    "SandboxPolicy",
    "SandboxResult",
    "Toolchain",
    "execution_allowed",
    "probe",
    "require_sandbox",
    "run_python",
    "sandbox_policy",
    "walled",
]
