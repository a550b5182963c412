"""τ²-bench of inspect-evals: its tasks, tools and rewards. It runs in the environment that has the package, without Inspect's run loop.

A world is the state of one episode: the databases that its tools read and change. It is lost with the process, so the caller keeps its
calls.
"""

from __future__ import annotations

import asyncio
import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from inspect_ai.agent import AgentState
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, ModelName, ModelOutput, execute_tools
from inspect_ai.model._call_tools import parse_tool_call
from inspect_ai.scorer import CORRECT, Scorer, Target
from inspect_ai.solver import Solver, TaskState
from inspect_ai.tool import ToolDef, ToolInfo
from inspect_ai.util import store_as
from inspect_ai.util._store import Store, init_subtask_store, suspend_store_events
from inspect_evals.tau2.airline.data_model import FlightDB
from inspect_evals.tau2.common import agents
from inspect_evals.tau2.common.metadata import Tau2MetaData
from inspect_evals.tau2.retail.data_model import RetailDB
from inspect_evals.tau2.telecom.data_model import TelecomDB
from inspect_evals.tau2.telecom.user_data_model import TelecomUserDB
from inspect_evals.tau2.utils import get_dict_hash
from recent import Recent

if TYPE_CHECKING:
    from eval_dagster.peers.workers.messages import CallSent, RewardSent, SpokenSent, WorldCalled, WorldDescribed

T = TypeVar("T")
DOMAINS = {"airline": "AirlineAgent", "retail": "RetailAgent", "telecom": "TelecomAgent"}
"""By domain, the name under which the package keeps the state of the agent."""


class _Shared(dict[Any, Any]):
    """A table that shares its entries with the loaded database until they are looked up, and has copies of them from then on.

    The tools change only entries that they look up. So an episode takes the memory and the time of what it touches.
    """

    def __init__(self, loaded: Mapping[Any, Any]) -> None:
        super().__init__(loaded)
        self.loaded = loaded

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if value is self.loaded.get(key):
            value = copy.deepcopy(value)
            super().__setitem__(key, value)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def touched(self) -> Mapping[Any, Any]:
        """The entries that this table does not share any more. They may still be equal to the loaded ones."""
        return {key: value for key, value in super().items() if value is not self.loaded.get(key)}


def _keep_loaded(of: type[Any]) -> None:
    """Let a database be read from its file once in this process; each load shares its tables. Leaves no temporary file."""
    load: Callable[[str], Any] = of.load

    @cache
    def loaded(path: str) -> Any:
        return _without_files(lambda: load(path))

    def shared(path: str) -> Any:
        found = loaded(path)
        if of in (TelecomDB, TelecomUserDB):  # small, and its tables are lists
            return copy.deepcopy(found)
        return found.model_copy(update={name: _Shared(table) for name, table in found if isinstance(table, dict)})

    of.load = staticmethod(shared)
    of.get_hash = _hash_of_changes


def _hash_of_changes(database: Any) -> str:
    """A hash that is equal for databases from one file if and only if the package's hashes are.

    The package hashes the JSON of all entries, which takes half a second. This hashes the changed ones.
    """
    found: dict[str, object] = {}
    for name, table in database:
        if not isinstance(table, _Shared):
            found[name] = database.model_dump(include={name})
            continue
        touched = table.touched()
        now, before = (
            database.model_copy(update={name: entries}).model_dump(include={name})[name]
            for entries in (touched, {key: table.loaded[key] for key in touched if key in table.loaded})
        )
        changed = {key: value for key, value in now.items() if key not in before or get_dict_hash(value) != get_dict_hash(before[key])}
        found[name] = [changed, sorted(key for key in table.loaded if key not in table)]
    return str(get_dict_hash(found))


def _without_files(made: Callable[[], T]) -> T:
    """Return the value of a function. The package leaves uncompressed copies of its files in the folder for temporary files."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="tau2-") as folder:
        tempfile.tempdir = folder
        try:
            return made()
        finally:
            tempfile.tempdir = before


for _database in (FlightDB, RetailDB, TelecomDB, TelecomUserDB):
    _keep_loaded(_database)


class _Domain:
    """A domain of the benchmark."""

    def __init__(self, name: str) -> None:
        self.instance = DOMAINS[name]
        tools = import_module(f"inspect_evals.tau2.{name}.tools")
        of_agent = tools.all_telecom_agent_tools if name == "telecom" else getattr(tools, f"all_{name}_tools")
        users = import_module("inspect_evals.tau2.telecom.user_tools").all_telecom_user_tools if name == "telecom" else ()
        self.tools = {"assistant": [ToolDef(make()) for make in of_agent], "user": [ToolDef(make()) for make in users]}
        scorers = import_module(f"inspect_evals.tau2.{name}.scorer")
        self.scorer: Scorer = getattr(scorers, f"{name}_scorer")()
        self.initializer: Solver | None = (
            import_module("inspect_evals.tau2.telecom.solver").telecom_initializer() if name == "telecom" else None
        )
        dataset: ModuleType = import_module(f"inspect_evals.tau2.{name}.dataset")
        self.samples: Mapping[str, Sample] = {str(each.id): each for each in _without_files(lambda: dataset.read_dataset(self.instance))}
        self.infos = {role: [_info(each) for each in several] for role, several in self.tools.items()}
        self.policy = _policy(import_module(f"inspect_evals.tau2.{name}.agents").get_user_agent(self.instance), self.instance)


def _info(tool: ToolDef) -> ToolInfo:
    return ToolInfo(name=tool.name, description=tool.description, parameters=tool.parameters)


def _policy(agent: Any, instance: str) -> str:
    """The system message of the agent that is evaluated. The package makes it when its loop begins, so that is begun and left."""
    get_model, generate_loop = agents.get_model, agents.generate_loop

    async def stopped(*_given: Any, **_named: Any) -> ModelOutput:
        return ModelOutput.from_content("none", "###STOP###")

    agents.get_model, agents.generate_loop = lambda **_named: None, stopped
    try:
        init_subtask_store(Store())
        asyncio.run(agent(AgentState(messages=[])))
    finally:
        agents.get_model, agents.generate_loop = get_model, generate_loop

    # The loop ran in a context of its own, whose store is the one that was set here.
    found = store_as(agents.StoredAgentState, instance).messages[0]
    assert isinstance(found, ChatMessageSystem)
    return str(found.text)


_domain = cache(_Domain)


class _World:
    """The state of an episode."""

    def __init__(self, domain: str, task: str) -> None:
        self.domain, self.sample = _domain(domain), _domain(domain).samples[task]
        self.store = Store()
        if self.domain.initializer is not None:
            init_subtask_store(self.store)
            asyncio.run(self.domain.initializer(self.state([]), _not_generated))

    def state(self, messages: Sequence[ChatMessage]) -> TaskState:
        """The user's side of the conversation, as the package's functions get it."""
        assert isinstance(self.sample.input, list)
        return TaskState(
            model=ModelName("none/none"),
            sample_id=self.sample.id or "",
            epoch=1,
            input=self.sample.input,
            messages=[*self.sample.input, *messages],
            metadata=self.sample.metadata,
        )

    def call(self, call: CallSent) -> WorldCalled:
        """Call a tool, as Inspect does. Its result is text, and so is its error."""
        init_subtask_store(self.store)
        asked = ChatMessageAssistant(content="", tool_calls=_calls(self.domain, call["by"], [call]))

        async def called() -> Sequence[ChatMessage]:
            with suspend_store_events():  # else each call copies the databases twice
                done: Sequence[ChatMessage] = (await execute_tools([asked], self.domain.tools[call["by"]])).messages
            return done

        (message,) = asyncio.run(called())
        error = getattr(message, "error", None)
        return {"result": message.text, "error": None if error is None else error.message}

    def reward(self, agent: Sequence[SpokenSent], user: Sequence[SpokenSent]) -> RewardSent:
        """The value of the package's evaluator for the conversation and the state."""
        init_subtask_store(self.store)
        store_as(agents.StoredAgentState, self.domain.instance).messages = list(_conversation(self.domain, "assistant", agent))
        state = self.state(list(_conversation(self.domain, "user", user)))
        score: Any = asyncio.run(self.domain.scorer(state, Target(self.sample.target)))
        return {"reward": float(score.value == CORRECT), "reason": score.explanation or ""}


async def _not_generated(state: TaskState, *_given: Any, **_named: Any) -> TaskState:
    return state


def _calls(domain: _Domain, by: str, calls: Iterable[CallSent]) -> list[Any]:
    return [parse_tool_call(f"c{number}", each["name"], each["arguments"], domain.infos[by]) for number, each in enumerate(calls)]


def _conversation(domain: _Domain, by: str, said: Sequence[SpokenSent]) -> Iterator[ChatMessage]:
    for each in said:
        if each["is_own"]:
            yield ChatMessageAssistant(content=each["text"], tool_calls=_calls(domain, by, each["calls"]) or None)
        else:
            yield ChatMessageUser(content=each["text"])


_MOST_WORLDS = 4096
"""Most episodes whose worlds are kept: twice as many as run at once. An episode that fails does not end its world."""
_worlds: Recent[_World] = Recent(_MOST_WORLDS)


def names() -> dict[str, str]:
    """The domains."""
    return dict.fromkeys(DOMAINS, "task")


def describe(name: str) -> WorldDescribed:
    """The policy of a domain's agent, and its tools and the user's as JSON in the form of OpenAI."""
    if name not in DOMAINS:
        raise ValueError(f"there is no domain {name!r}; there are: {', '.join(DOMAINS)}")
    domain = _domain(name)
    return {
        "policy": domain.policy,
        "tools": {role: {each.name: json.dumps(_definition(each)) for each in infos} for role, infos in domain.infos.items()},
        "version": {package: version(package) for package in ("inspect-ai", "inspect-evals", "pydantic")},
    }


def _definition(tool: ToolInfo) -> dict[str, object]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the tasks of a domain: name, the first two messages of the simulated user, what happens before, and what is expected."""
    for sample in _domain(name).samples.values():
        assert not isinstance(sample.input, str)
        system, opening = sample.input
        task = Tau2MetaData.model_validate(sample.metadata).task
        actions = (task.evaluation_criteria and task.evaluation_criteria.actions) or []
        before = (task.initial_state and task.initial_state.initialization_actions) or []
        yield {
            "id": task.id,
            "system": system.text,
            "opening": opening.text,
            "state": "\n".join(f"{each.func_name}({json.dumps(each.arguments)})" for each in before),
            "expected": "\n".join(f"{each.name}({json.dumps(each.arguments)})" for each in actions),
        }


def open_world(world: str, name: str, task: str, calls: Sequence[CallSent]) -> None:
    """Make the state of an episode, after the calls that it has made."""
    made = _World(name, task)
    for call in calls:
        made.call(call)
    _worlds.put(world, made)


def call(world: str, called: CallSent) -> WorldCalled | None:
    """Call a tool in a world; None if this process does not have it."""
    found = _worlds.get(world)
    return None if found is None else found.call(called)


def reward(world: str, agent: Sequence[SpokenSent], user: Sequence[SpokenSent]) -> RewardSent | None:
    """The reward of an episode, which ends its world; None if this process does not have it."""
    found = _worlds.pop(world)
    return None if found is None else found.reward(agent, user)
