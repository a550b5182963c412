"""The objects of the tools of an episode."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from eval_dagster.episodes.branches import apart
from eval_dagster.episodes.recording import Effect, EpisodeChangedError, Place, in_order
from eval_dagster.episodes.tool_threads import CallTimeError
from eval_dagster.episodes.tools import Outcome, Tool, arguments_of, failed, succeeded, tool_named
from eval_dagster.errors import MachineError
from eval_dagster.records import ToolCall
from eval_dagster.tasks.episodes import EpisodeSample, Toolbox


class Callers(Protocol):
    """How tools are called."""

    tools: Mapping[str, Tool]

    most_call_s: float | None
    """Seconds that a call may take."""

    def in_thread(self, function: Callable[[], Any], most_s: float | None) -> Awaitable[Any]:
        """The value of a function that is called in a thread. Raises `CallTimeError` after `most_s` seconds."""
        ...


class Owner(Protocol):
    """The episode that has the objects."""

    recorded: dict[Place, Effect]
    sample: EpisodeSample

    @property
    def of(self) -> Callers:
        """Calls its tools."""
        ...

    def fail(self, error: Exception) -> BaseException:
        """End the episode. Returns what is to be raised."""
        ...


class State:
    """The objects of the stateful tools of an episode. They are rebuilt by the recorded calls when they are needed."""

    def __init__(self, episode: Owner) -> None:
        self._episode = episode
        self._objects: dict[type[Any], Any] = {}
        self._locks: dict[type[Any] | None, asyncio.Lock] = {}

    def lock(self, tool: Tool) -> AbstractAsyncContextManager[None]:
        """Let the calls of an object come one after the other, in the order of their numbers."""
        return nullcontext() if tool.owner is None else self._locks.setdefault(tool.owner, asyncio.Lock())

    async def instance(self, of: type[Any]) -> Any:
        """The object of a class, with all recorded calls."""
        if of not in self._objects:
            sample = self._episode.sample
            most_s = self._episode.of.most_call_s
            try:
                made = await self._by_machine(lambda: of(sample) if issubclass(of, Toolbox) else of(), most_s)
            except CallTimeError:
                late = TimeoutError(f"{of.__name__} was not made within {most_s:g} s, the most that code_timeout in evals.yaml allows")
                raise self._episode.fail(late) from None
            for effect in in_order(self._episode.recorded.values()):
                tool = tool_named(self._episode.of.tools, effect.name) if effect.kind == "tool" else None
                if tool is None or tool.owner is not of or effect.value is None:
                    continue
                call = ToolCall(call_id="", name=effect.name, arguments_text=effect.key)
                arguments = arguments_of(self._episode.of.tools, call)
                if not isinstance(arguments, Outcome):
                    again, _ = await self._timed(tool, arguments, made, most_s)
                    if again != effect.value and getattr(of, "IS_REPEATABLE", True):
                        raise self._episode.fail(EpisodeChangedError(f"{changed(tool, effect.value, again)}, after the same calls"))
            self._objects[of] = made
        return self._objects[of]

    async def live(self, tool: Tool, arguments: Mapping[str, object], most_s: float | None) -> tuple[Outcome, float]:
        """Call a tool. Gives its outcome, and the seconds that it took without those in which it waited for a thread.

        Raises:
            CallTimeError: It took longer than `most_s` seconds.
        """
        return await self._timed(tool, arguments, None if tool.owner is None else await self.instance(tool.owner), most_s)

    async def _timed(self, tool: Tool, arguments: Mapping[str, object], owner: Any, most_s: float | None) -> tuple[Outcome, float]:
        own = () if tool.owner is None else (owner,)
        if not tool.is_async:
            found: tuple[Outcome, float] = await self._by_machine(lambda: _called(lambda: tool.function(*own, **arguments)), most_s)
            return found
        try:
            async with asyncio.timeout(most_s):
                return await apart(_awaited(tool.function(*own, **arguments)))
        except TimeoutError:  # its own would be its outcome
            raise CallTimeError from None
        except MachineError as error:
            raise self._episode.fail(error) from error

    async def _by_machine(self, function: Callable[[], Any], most_s: float | None) -> Any:
        """Call a function in a thread. A failure of the machine ends the episode, and a tool has no result by it."""
        try:
            return await self._episode.of.in_thread(function, most_s)
        except MachineError as error:
            raise self._episode.fail(error) from error


def changed(tool: Tool, before: Outcome, now: Outcome) -> str:
    """How a result of a tool differs from the recorded one."""
    return f"the tool {tool.name} gave {before.result[:200]!r} before, and gives {now.result[:200]!r} now"


async def _awaited(called: Awaitable[Any]) -> tuple[Outcome, float]:
    started = time.monotonic()
    try:
        found = succeeded(await called)
    except MachineError:
        raise
    except (Exception, SystemExit) as error:
        found = failed(error)
    return found, time.monotonic() - started


def _called(function: Callable[[], Any]) -> tuple[Outcome, float]:
    started = time.monotonic()
    try:
        found = succeeded(function())
    except MachineError:
        raise
    except (Exception, SystemExit) as error:
        found = failed(error)
    return found, time.monotonic() - started
