"""The branches of an episode: the tasks of asyncio that it starts. Each place of an episode is named by its branch."""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from eval_dagster.episodes.recording import Place
from eval_dagster.records import ToolCall
from eval_dagster.versions.hashes import text_hash

T = TypeVar("T")
ROOT = "0"
"""The path of the branch in which an episode begins."""


class _Branch:
    """A branch of an episode: a task of asyncio. Its places are counted in it, so that the order of branches does not matter."""

    def __init__(self, tasks: "set[asyncio.Task[Any]]", path: str = ROOT) -> None:
        self.tasks = tasks
        self._path = path
        self._children = 0
        self._places = 0

    def place(self) -> Place:
        """The next place."""
        self._places += 1
        return f"{self._path}:{self._places - 1}"

    def child(self) -> "_Branch":
        """The next branch of this one."""
        self._children += 1
        return _Branch(self.tasks, f"{self._path}.{self._children - 1}")


_branch: contextvars.ContextVar[_Branch | None] = contextvars.ContextVar("branch", default=None)


def begin_branches(tasks: "set[asyncio.Task[Any]]") -> None:
    """Begin the branches of an episode in the current task. `tasks` gets the tasks that it starts, until they end."""
    _branch.set(_Branch(tasks))


def branching(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context | None = None, **options: Any
) -> "asyncio.Task[Any]":
    """Make a task of asyncio. One that is made within an episode is a branch of it."""
    branch = _branch.get()
    own = context or contextvars.copy_context()
    if branch is None:
        return asyncio.Task(coroutine, loop=loop, context=own, **options)
    own.run(_branch.set, branch.child())
    task = asyncio.Task(coroutine, loop=loop, context=own, **options)
    branch.tasks.add(task)
    task.add_done_callback(branch.tasks.discard)
    return task


def calls_at(place: Place, calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of an answer, with the ids that they have in an episode: of the place of its request, and of their positions."""
    return tuple(
        # The `stable_hash` of place and position.
        ToolCall(call_id="c" + text_hash(f'["{place}",{position}]')[:8], name=call.name, arguments_text=call.arguments_text)
        for position, call in enumerate(calls)
    )


async def apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine whose tasks are not branches of an episode."""
    context = contextvars.copy_context()
    context.run(_branch.set, None)
    return await context.run(asyncio.get_running_loop().create_task, coroutine)


def next_place() -> Place:
    """The next place of the current branch."""
    branch = _branch.get()
    if branch is None:
        raise RuntimeError("an episode asks its models and calls its tools in its own code; expected no ask or call within a tool")
    return branch.place()
