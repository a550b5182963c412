"""Runs code that a model wrote, where it can harm nothing.

The code runs in a process of its own that sees no network, no other process, and of the machine's files only Python and the system's
libraries, read-only; it may write to an empty folder in memory that ends with it. It has no privileges and an empty environment, and
its time, memory, output, files and processes are limited. Linux namespaces and a filter of system calls do this; the namespaces are made by
bubblewrap where that works, else by the kernel's own calls; where neither can, nothing runs. Code sees the standard library alone, so that
a result does not depend on what else is installed: folders of installed packages look empty. The kernel is shared: who expects attacks on
it runs evals in a virtual machine.

Tests of a program run in another process than the program, which asks it for the functions that it tests. So no program can change the
tests, read what they expect, or write the result.
"""

from eval_dagster.sandbox.policy import ALLOW_KEY, SandboxPolicy, execution_allowed, sandbox_policy
from eval_dagster.sandbox.running import Isolation, available_isolation, probe, run_python
from eval_dagster.sandbox.watch import SandboxResult

__all__ = [
    "ALLOW_KEY",
    "Isolation",
    "SandboxPolicy",
    "SandboxResult",
    "available_isolation",
    "execution_allowed",
    "probe",
    "run_python",
    "sandbox_policy",
]
