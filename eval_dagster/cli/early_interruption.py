"""Ctrl-C while the command still imports what it needs."""

import os
from typing import NoReturn

from eval_dagster import users_code

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


def leave_at_once(*_: object) -> NoReturn:
    """End the process: there is nothing to keep, and a library would print a traceback or go on without what it could not import."""
    os.write(2, b"interrupted\n")
    users_code.ended(INTERRUPTED)
    os._exit(INTERRUPTED)
