"""The rewards of inspect-evals itself for scripted conversations: its own loop, tools and evaluator. Runs in the environment that has it.

Writes JSON: for each task of a domain and each variant what both sides say, with the calls of their tools, and the reward.
"""

import asyncio
import copy
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from inspect_ai.agent import AgentState
from inspect_ai.model import ChatMessageAssistant, GenerateConfig, Model, ModelAPI, ModelName, ModelOutput, ModelUsage, modelapi
from inspect_ai.scorer import Target
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolCall
from inspect_ai.util._store import Store, init_subtask_store, suspend_store_events
from inspect_evals.tau2.airline.data_model import FlightDB
from inspect_evals.tau2.common import agents
from inspect_evals.tau2.common.metadata import Tau2MetaData
from inspect_evals.tau2.retail.data_model import RetailDB
from inspect_evals.tau2.utils import TAU2_DATA_DIR

AGENTS = {"airline": "AirlineAgent", "retail": "RetailAgent", "telecom": "TelecomAgent"}
VARIANTS = ("expected", "dropped", "wrong", "extra", "silent")


@modelapi(name="script")
class Script(ModelAPI):
    """A model that says what is written down, one message a request, and notes what it reads."""

    def __init__(self, model_name: str, said: list[dict[str, Any]], **_given: Any) -> None:
        super().__init__(model_name)
        self.said = iter(said)
        self.read: list[list[list[str]]] = []

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:  # noqa: A002
        self.read.append([[each.role, f"Error: {each.error.message}" if getattr(each, "error", None) else each.text] for each in input])
        each = next(self.said)
        calls = [ToolCall(id=str(number), function=name, arguments=arguments) for number, (name, arguments) in enumerate(each["calls"])]
        output = ModelOutput.from_message(ChatMessageAssistant(content=each["text"], tool_calls=calls or None))
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output


def keep_loaded(domain: str) -> None:
    """Load the database of a domain twice, since that takes seconds. A case loads it twice, in a process of its own that inherits both."""
    for database in {"airline": [FlightDB], "retail": [RetailDB]}.get(domain, []):
        path = str(TAU2_DATA_DIR / "domains" / domain / "db.json.gz")
        spare = [database.load(path), database.load(path)]
        database.load = staticmethod(lambda _path, spare=spare: spare.pop())


def in_child(made: Callable[[], Any]) -> Any:
    """What a function returns in a process that inherits what is loaded."""
    process = multiprocessing.get_context("fork")
    ours, theirs = process.Pipe()
    child = process.Process(target=lambda: theirs.send(made()))
    child.start()
    theirs.close()
    found = ours.recv()
    child.join()
    return found


def changed(variant: str, domain: str, actions: list[Any]) -> list[Any]:
    """The calls of a variant, each with who makes it."""
    calls = [[each.requestor, each.name, copy.deepcopy(each.arguments)] for each in actions]
    if variant == "dropped":
        return calls[:-1]
    if variant == "wrong":
        fits = [call for call in calls if any(isinstance(value, str) for value in call[2].values())]
        writing = [call for call in fits if not call[1].startswith(("get_", "find_", "list_", "search_", "calculate", "transfer_"))]
        if not fits:
            return [*calls, *calls[-1:]]
        arguments = (writing or fits)[-1][2]
        name = next(key for key, value in arguments.items() if isinstance(value, str))
        arguments[name] += "9"
    if variant == "extra":
        calls.append(EXTRA[domain]())
    return calls


def address() -> list[Any]:
    fields = ("address1", "address2", "city", "state", "country", "zip")
    return ["assistant", "modify_user_address", {"user_id": "yusuf_rossi_9620", **dict.fromkeys(fields, "elsewhere")}]


EXTRA: dict[str, Callable[[], list[Any]]] = {
    "airline": lambda: ["assistant", "send_certificate", {"user_id": "mia_li_3668", "amount": 100}],
    "retail": address,
    "telecom": lambda: ["user", "toggle_airplane_mode", {}],
}


def script(variant: str, domain: str, task: Any) -> dict[str, list[dict[str, Any]]]:
    """What both sides say: the user begins, and each makes its calls in the order in which they are expected."""
    criteria = task.evaluation_criteria
    said: dict[str, list[dict[str, Any]]] = {"user": [], "assistant": []}

    def turn(by: str, calls: list[Any], text: str) -> None:
        said[by] += [{"text": "", "calls": [[name, arguments]]} for _, name, arguments in calls]
        said[by].append({"text": text, "calls": []})

    groups = [(by, list(calls)) for by, calls in groupby(changed(variant, domain, criteria.actions or []), key=lambda call: call[0])]
    if groups and groups[0][0] == "assistant":
        groups.insert(0, ("user", []))
    if len(groups) % 2:
        groups.append(("assistant", []))
    info = [] if variant == "silent" else criteria.communicate_info or []
    for number, (by, calls) in enumerate(groups or [("user", []), ("assistant", [])]):
        turn(by, calls, "Please help." if by == "user" else f"Done: {', '.join(info)}." if number + 1 >= len(groups) else "Go on.")
    turn("user", [], "Thanks. ###STOP###")
    return said


def case(domain: str, sample: Any, variant: str) -> dict[str, Any]:
    """A conversation and its reward."""
    scorer = getattr(import_module(f"inspect_evals.tau2.{domain}.scorer"), f"{domain}_scorer")()
    agent = import_module(f"inspect_evals.tau2.{domain}.agents").get_user_agent(AGENTS[domain])
    said = script(variant, domain, Tau2MetaData.model_validate(sample.metadata).task)
    scripts = {by: Script(by, said=several) for by, several in said.items()}
    agents.get_model = lambda role="assistant", config=None: Model(scripts[role], config or GenerateConfig())
    lost: list[str] = []  # its loop prints an exception, and goes on with the next round
    agents.print = lost.append

    async def run() -> Any:
        init_subtask_store(Store())
        state = TaskState(ModelName("none/none"), sample.id, 1, sample.input, list(sample.input), metadata=sample.metadata)
        with suspend_store_events():
            if domain == "telecom":
                state = await import_module("inspect_evals.tau2.telecom.solver").telecom_initializer()(state, None)
            ended = await agent(AgentState(messages=state.messages))
        state.messages = ended.messages
        return await scorer(state, Target(sample.target))

    score = asyncio.run(run())
    read = {by: each.read[-1] for by, each in scripts.items()}
    found = {"id": str(sample.id), "variant": variant, "said": said, "read": read, "lost": lost}
    return {**found, "reward": float(score.value == "C"), "reason": score.explanation}


def cases(domain: str, most: int) -> Iterator[dict[str, Any]]:
    dataset = import_module(f"inspect_evals.tau2.{domain}.dataset").read_dataset(AGENTS[domain])
    keep_loaded(domain)
    for sample in list(dataset)[:most]:
        for variant in VARIANTS:
            yield in_child(partial(case, domain, sample, variant))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({each: list(cases(each, int(sys.argv[2]))) for each in sys.argv[3:]}))
