"""τ²-bench: tasks in which the evaluated model serves a simulated user and calls the tools of a domain, with the official rewards.

The package inspect-evals brings tasks, tools, prompts and rewards. It is asked as a process in an environment of its own.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast
from uuid import uuid4

from eval_dagster.errors import DataError, MachineError, TaskDefinitionError
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.metrics.explanations import explain
from eval_dagster.peers.processes import ProcessRegistry
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.workers.messages import CallSent, RewardSent, SpokenSent, WorldCalled, WorldDescribed
from eval_dagster.records import Completion, Message, MetricContext, Role, Row, ToolCall, Turn
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.episodes import AskedRole, EpisodeSample, EpisodeTask, Reply, Roles, Toolbox, Tools
from eval_dagster.versions.hashes import code_version, stable_hash

_WORKER = "eval_dagster.peers.workers.tau2_worker"
_ENDS = ("###STOP###", "###OUT-OF-SCOPE###", "###TRANSFER###")
"""Marks of the simulated user that end the conversation."""
_ROUNDS = 100
"""Most messages of the simulated user to the agent."""
_USERS = "user."
"""The beginning of the names of the simulated user's tools."""
_UNPARSED = "$text"
"""The name of arguments that are no JSON object. The package parses them."""
_SPLIT = "base"


class ToolFailedError(Exception):
    """A tool of the package failed, or was called wrongly. Its message is the result of the call."""


def _about(sample: EpisodeSample) -> Mapping[str, str]:
    """The name of the task and the messages that the simulated user begins with."""
    assert isinstance(sample.context, MetricContext)
    return sample.context.model_dump()


class World(Toolbox):
    """The state of an episode in the process of the package: databases, and the tools that read and change them."""

    PROCESS: ClassVar[WorkerProcess]
    DOMAIN: ClassVar[str]

    def __init__(self, sample: EpisodeSample) -> None:
        self._task = _about(sample)["id"]
        self._key = uuid4().hex
        self._calls: list[CallSent] = []

    def call(self, name: str, arguments: dict[str, object]) -> str:
        """The result of a tool. Raises `ToolFailedError` as the package's tool does, and `MachineError` if the process ends twice."""
        by, own = ("user", name.removeprefix(_USERS)) if name.startswith(_USERS) else ("assistant", name)
        text = str(arguments[_UNPARSED]) if _UNPARSED in arguments else json.dumps(arguments)
        call: CallSent = {"by": by, "name": own, "arguments": text}
        found: WorldCalled = self._asked("call", called=call)
        self._calls.append(call)
        if found["error"] is not None:
            raise ToolFailedError(found["error"])
        return found["result"]

    def reward(self, agent: Sequence[SpokenSent], user: Sequence[SpokenSent]) -> RewardSent:
        """The reward of the package's evaluator for the state and both sides of the conversation."""
        found: RewardSent = self._asked("reward", agent=agent, user=user)
        return found

    def _asked(self, method: str, **arguments: object) -> Any:
        """The answer of the process. One that was started again gets the calls so far."""
        for is_last in (False, True):
            try:
                found = self.PROCESS.call(method, world=self._key, **arguments)
                if found is None:
                    self.PROCESS.call("open_world", world=self._key, name=self.DOMAIN, task=self._task, calls=self._calls)
                    found = self.PROCESS.call(method, world=self._key, **arguments)
                return found
            except MachineError:
                if is_last:
                    raise
        return None


class Reward(CompletionMetric):
    """The official reward of an episode: 1 if all that the task asks for is there at its end, else 0."""

    NAME = "reward"
    IS_PROPORTION = True

    def calculate(self, completion: Completion) -> float:
        """Return the reward that the package's evaluator gave."""
        found = json.loads(completion.completion_text)
        explain("answer", found["reason"])
        return float(found["reward"])


@dataclass(kw_only=True)
class _Side:
    """One side of the conversation: a model, what it has said and heard, and its tools."""

    role: AskedRole
    messages: list[Message]
    definitions: Sequence[str]
    tools: Tools
    prefix: str
    heard: int
    """How many messages it begins with."""
    asked: int = 0
    """How often the model was asked."""

    async def speaks(self, most: int) -> Reply | None:
        """Its next message, after the calls of its tools. None if it has been asked so many times."""
        while self.asked < most:
            self.asked += 1
            reply = await self.role.ask(self.messages, tools=self.definitions)
            self.messages.append(reply.message)
            if not reply.tool_calls:
                return reply
            for call in reply.tool_calls:
                self.messages.append(await self.tools.call(self._recorded(call)))
        return None

    def _recorded(self, call: ToolCall) -> ToolCall:
        """The call as it is recorded. Nobody can call a tool of the other side: the package says that there is none."""
        name = f"{self.prefix}{call.name}" if self.prefix or not call.name.startswith(_USERS) else f"assistant.{call.name}"
        text = json.dumps({_UNPARSED: call.arguments_text}) if call.arguments is None else call.arguments_text
        return replace(call, name=name, arguments_text=text)

    def said(self) -> Iterator[SpokenSent]:
        """Yield the messages beyond the first ones, without the results of tools."""
        by = "user" if self.prefix else "assistant"
        for message in self.messages[self.heard :]:
            if message.role is not Role.TOOL:
                calls = message.tool_calls if isinstance(message, Turn) else ()
                sent: list[CallSent] = [{"by": by, "name": each.name, "arguments": each.arguments_text} for each in calls]
                yield {"is_own": message.role is Role.ASSISTANT, "text": message.content, "calls": sent}


class Tau2Task(EpisodeTask[str]):
    """Conversations of a customer service agent with a simulated user (Barres et al. 2025, arXiv:2506.07982)."""

    SAMPLE_SPLIT = _SPLIT
    METRICS = (Reward,)
    ROLES = ("user",)
    MAX_TURNS = 1_000
    ID_FIELD = "id"
    SOURCE = "inspect-evals, MIT"
    WORLD: ClassVar[type[World]]
    POLICY: ClassVar[str]
    """The system message of the evaluated model."""
    OF_ROLE: ClassVar[Mapping[str, Sequence[str]]]
    """The definitions of the tools of `assistant` and `user`."""

    def _load_dataset(self, subject: str) -> Mapping[str, Sequence[Row]]:  # noqa: ARG002 - there is one
        return {_SPLIT: list(self.WORLD.PROCESS.stream("rows", name=self.WORLD.DOMAIN))}

    def _get_instruction_text(self, item: Row) -> str:
        # For people. Tasks of telecom that differ by the state of the phone alone are different questions.
        return "\n\n".join(filter(None, (item["system"], item["state"])))

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["expected"])

    def _get_context(self, item: Row) -> Mapping[str, str]:
        return {name: item[name] for name in ("id", "system", "opening")}

    async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
        """Let the user and the agent speak in turn until the user ends it.

        Returns:
            JSON with the reward, its reason, the end and the number of rounds.
        """
        about = _about(sample)
        begun = [Message(Role.SYSTEM, about["system"]), Message(Role.USER, about["opening"])]
        user = _Side(role=roles.user, messages=begun, definitions=self.OF_ROLE["user"], tools=tools, prefix=_USERS, heard=len(begun))
        policy = Message(Role.SYSTEM, self.POLICY)
        agent = _Side(role=roles.subject, messages=[policy], definitions=self.OF_ROLE["assistant"], tools=tools, prefix="", heard=1)
        end, rounds = "rounds", 0
        while rounds < _ROUNDS:
            rounds += 1
            said = await user.speaks(self.MAX_TURNS)
            if said is None or any(each in said.text for each in _ENDS):
                end = "requests" if said is None else next(each.strip("#") for each in _ENDS if each in said.text)
                break
            agent.messages.append(Message(Role.USER, said.text))
            answer = await agent.speaks(self.MAX_TURNS)
            if answer is None:
                end = "requests"
                break
            user.messages.append(Message(Role.USER, answer.text))
        world: World = await tools.instance(self.WORLD)
        found = await asyncio.to_thread(world.reward, list(agent.said()), list(user.said()))
        return json.dumps({**found, "end": end, "rounds": rounds})


class Tau2Registry(ProcessRegistry):
    """The domains of τ²-bench: `tau2:airline`, `tau2:retail` and `tau2:telecom`."""

    NAME = "tau2"
    WORKER = _WORKER
    COMPANIONS = ("eval_dagster.peers.workers.recent",)
    DISTRIBUTION = "inspect-evals"
    PACKAGES = ("inspect_evals/tau2",)
    RELEASE = "0.28.0"
    EXTRA_REQUIREMENTS = ("inspect-ai==0.3.285", "toml", "pyyaml")
    IS_BARE = True

    def benchmark(self, name: str, folder: Path) -> type[BaseTask[Any]]:  # type: ignore[override]  # noqa: ARG002 - it reads no files
        """The task of a domain.

        Raises:
            TaskDefinitionError: The domain is unknown.
            RequirementError: The environment is missing.
        """
        environment = self.environment()
        process = self._process(environment, environment.stamp(self.PACKAGES))
        try:
            described = cast(WorldDescribed, self._kept(f"describe {name}", lambda asked: asked.call("describe", name=name)))
        except DataError as error:
            raise TaskDefinitionError(str(error)) from error
        world = type(World.__name__, (World,), {**_like(World), "PROCESS": process, "DOMAIN": name})
        attributes = {
            **_like(Tau2Task),
            "NAME": f"tau2:{name}",
            "DATASET_PATH": f"tau2:{name}",
            "VERSION": stable_hash([dict(described), code_version(*self._modules(), World, _Side, Reward)]),
            "TOOLS": (world,),
            "WORLD": world,
            "POLICY": described["policy"],
            "OF_ROLE": {role: tuple(tools.values()) for role, tools in described["tools"].items()},
        }
        return type(Tau2Task.__name__, (Tau2Task,), attributes)


def _like(of: type[Any]) -> Mapping[str, object]:
    """The attributes by which a class made of another one has its code."""
    return {"__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__}
