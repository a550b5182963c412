"""The tasks of BFCL. The model is asked here, with its tools; entries, systems and verdicts come from the package."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, ClassVar, cast

from pydantic import BaseModel

from eval_dagster.metrics.base import BaseMetric, Item, ItemMetric
from eval_dagster.metrics.explanations import explain
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.workers.bfcl_messages import CategoriesDescribed, Combination, MemorySent, VerdictSent
from eval_dagster.records import Completion, Message, MetricContext, Role, Row, ToolCall, Turn
from eval_dagster.tasks.episodes import EpisodeSample, EpisodeTask, Reply, Roles, Toolbox, Tools

SESSION = "(session)"
"""The name under which an episode begins a session with a memory. The model cannot call it."""
_UNREADABLE = "Error: the arguments are no JSON object"
_SIMPLE = "simple_"
_MOST_REQUESTS = 5000
"""More than the steps of all turns of any entry."""


class Systems(Toolbox):
    """The systems of an entry, such as a file system or a memory. They live in the process of the package.

    It makes them anew for each call and calls all calls so far, so that no entry sees another one's.
    """

    PROCESS: ClassVar[WorkerProcess]

    def __init__(self, sample: EpisodeSample) -> None:
        self._about = _entry_of(sample)
        self._calls: list[tuple[str, Mapping[str, object]]] = []
        self._session = ""
        self._kept: str | None = None

    def call(self, name: str, arguments: dict[str, object]) -> str:
        """The result of a call, or the system prompt of the session that `SESSION` begins."""
        if name == SESSION:
            return self._begin(str(arguments["id"]))
        calls = [*self._calls, (name, arguments)]
        if self._session:
            found = self._remembered(calls)["result"]
        else:
            found = self.PROCESS.call("execute", category=self._about.category, entry=self._about.id, calls=calls)
        self._calls = calls  # one that failed is not called again
        return found

    def _begin(self, session: str) -> str:
        if self._session:
            self._kept = self._remembered(self._calls)["kept"]
        self._session, self._calls = session, []
        return self._remembered(self._calls)["prompt"]

    def _remembered(self, calls: Sequence[tuple[str, Mapping[str, object]]]) -> MemorySent:
        found: MemorySent = self.PROCESS.call("remember", category=self._about.category, entry=self._session, kept=self._kept, calls=calls)
        return found


class Session(BaseModel):
    """A conversation before the questions, with facts for the model's memory."""

    id: str
    turns: list[list[dict[str, str]]]


class Entry(MetricContext):
    """An entry, as its episode needs it."""

    id: str
    category: str
    steps: int
    """Most steps of a turn; 0 where the model is asked once."""
    turns: list[list[dict[str, str]]]
    """The messages of each turn: role and content."""
    tools: dict[str, list[str]]
    """The definitions of all tools that the model has from a turn on."""
    sessions: Sequence[Session] = ()
    """The sessions before a question about them."""


class FunctionCallingTask(EpisodeTask[str]):
    """Whether a model calls the right functions (Patil et al. 2025, The Berkeley Function Calling Leaderboard, ICML)."""

    DATASET_PATH = "bfcl"
    SAMPLE_SPLIT = "test"
    PROCESS: ClassVar[WorkerProcess]

    def _load_dataset(self, subject: str) -> Mapping[str, Sequence[Row]]:
        return {self.SAMPLE_SPLIT: self.PROCESS.call("rows", category=subject)}

    def _get_messages(self, item: Row) -> list[Message]:
        return _messages(json.loads(item["turns"])[0])

    def _get_instruction_text(self, item: Row) -> str:
        return "\n".join(each["content"] for each in json.loads(item["turns"])[0])

    def _get_ground_truth(self, item: Row) -> str | None:
        # Entries of several turns begin alike, and go on in other ways: their first message has not one right answer.
        return None if item["answer"] == "null" or len(json.loads(item["turns"])) > 1 else str(item["answer"])

    def _get_context(self, item: Row) -> Entry:
        return Entry(
            id=item["id"],
            category=item["category"],
            steps=int(item["steps"]),
            turns=json.loads(item["turns"]),
            tools=json.loads(item["tools"]),
            sessions=json.loads(item["sessions"]),
        )

    async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> Reply:
        """Ask as the package does. The reply has the result as JSON, in the form of the package's files of results."""
        about = _entry_of(sample)
        if not about.steps:
            answer = await roles.subject.ask(_messages(about.turns[0]), tools=about.tools["0"])
            return _reply(_step(answer), answer)
        for session in about.sessions:
            await _conversation(about, await _with_memory(session.id, session.turns, tools), roles, tools)
        turns = await _with_memory(about.id, about.turns, tools) if about.sessions else about.turns
        return _reply(*await _conversation(about, turns, roles, tools))


def _entry_of(sample: EpisodeSample) -> Entry:
    return Entry.model_validate(dict(cast(MetricContext, sample.context)))


async def _with_memory(session: str, turns: Sequence[Sequence[Mapping[str, str]]], tools: Tools) -> list[list[Mapping[str, str]]]:
    """The turns of a session, after a system prompt with what the model has in its memory."""
    begun = await tools.call(ToolCall(call_id=session, name=SESSION, arguments_text=json.dumps({"id": session})))
    first, *others = turns
    own = [each["content"] for each in first if each["role"] == Role.SYSTEM.value]
    prompt = {"role": Role.SYSTEM.value, "content": "\n\n".join([begun.content, *own])}
    return [[prompt, *(each for each in first if each["role"] != Role.SYSTEM.value)], *map(list, others)]


async def _conversation(
    about: Entry, turns: Sequence[Sequence[Mapping[str, str]]], roles: Roles, tools: Tools
) -> tuple[list[list[object]], Reply]:
    """The steps of each turn in the package's form, and the last answer."""
    messages: list[Message] = []
    result: list[list[object]] = []
    offered: Sequence[str] = ()
    for number, turn in enumerate(turns):
        offered = about.tools.get(str(number), offered)
        messages += _messages(turn)
        steps: list[object] = []
        result.append(steps)
        while len(steps) <= about.steps:
            answer = await roles.subject.ask(messages, tools=offered)
            messages.append(answer.message)
            steps.append(_step(answer))
            if not answer.tool_calls:
                break
            if not all(map(_is_readable, answer.tool_calls)):  # servers expect a result for each call
                messages += [Turn(Role.TOOL, _UNREADABLE, (), each.call_id) for each in answer.tool_calls]
                break
            messages += [await tools.call(each) for each in answer.tool_calls]
        else:
            break  # too many steps: the package ends the whole conversation
    return result, answer


def _messages(turn: Sequence[Mapping[str, str]]) -> list[Message]:
    return [Message(Role(each["role"]), each["content"]) for each in turn]


def _step(answer: Reply) -> object:
    return [{call.name: call.arguments_text} for call in answer.tool_calls] if answer.tool_calls else answer.text


def _is_readable(call: ToolCall) -> bool:
    """Whether the package can read the arguments of a call. It takes an empty text for a mistake."""
    return bool(call.arguments_text) and call.arguments is not None and call.name != SESSION


def _reply(result: object, last: Reply) -> Reply:
    return Reply(text=json.dumps(result, ensure_ascii=False), finish_reason=last.finish_reason, reasoning=last.reasoning)


class Checker:
    """The package's checker. It keeps the last verdict, since a group has two metrics of the same one."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._last: tuple[tuple[str, str, str], VerdictSent] | None = None

    def verdict(self, response: Completion) -> VerdictSent:
        """The verdict on a response: `valid`, and for a wrong one `error_type`, `error` and `fault`."""
        row = response.row
        key = (row["category"], row["id"], response.completion_text)
        if self._last is None or self._last[0] != key:
            found: VerdictSent = self._process.call("verdict", category=key[0], entry=key[1], result=json.loads(key[2]))
            self._last = (key, found)
        return self._last[1]


class Verdict(BaseMetric[Completion]):
    """Whether the package's checker takes an answer for right. The explanation of a wrong one names its first wrong call."""

    NAME = "accuracy"
    IS_PROPORTION = True
    BEST = None
    CHECKER: ClassVar[Checker]

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        found = self.CHECKER.verdict(response)
        if not found["valid"]:
            explain("answer", found["fault"] or None)
            explain("program_output", f"{found['error_type']}: {found['error']}")
        return float(found["valid"])


class NonLiveScore(ItemMetric[Completion]):
    """The package's score of the calls of one turn: the mean of simple, multiple, parallel and both.

    Simple is the mean of its languages.
    """

    NAME = "non_live_score"
    BOUNDS = (0.0, 1.0)
    BEST = None
    CHECKER: ClassVar[Checker]

    def calculate(self, response: Completion) -> Item:
        """Return the category and the verdict."""
        return [response.row["category"], float(self.CHECKER.verdict(response)["valid"])]

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the mean of the parts that there are."""
        parts: dict[str, list[float]] = defaultdict(list)
        for category, accuracy in _accuracies(items).items():
            parts[_SIMPLE if category.startswith(_SIMPLE) else category].append(accuracy)
        return fmean(fmean(each) for each in parts.values())


class _OfFormats(ItemMetric[Completion]):
    """A score of how far the accuracies of the formats of a prompt differ, in points, rounded as in the package."""

    HIGHER_IS_BETTER = False
    BEST = None
    CHECKER: ClassVar[Checker]

    def calculate(self, response: Completion) -> Item:
        """Return the format and the verdict."""
        return [response.row["category"], float(self.CHECKER.verdict(response)["valid"])]


class MaxDelta(_OfFormats):
    """The best format's accuracy less the worst one's."""

    NAME = "accuracy_max_delta"
    BOUNDS = (0.0, 100.0)

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the difference; 0 for one format."""
        accuracies = _accuracies(items).values()
        return round((max(accuracies) - min(accuracies)) * 100, 2)


class Deviation(_OfFormats):
    """The standard deviation of the accuracies of all formats, as of a sample of formats."""

    NAME = "accuracy_std"
    BOUNDS = (0.0, 100.0)

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the deviation; 0 for one format."""
        accuracies = _accuracies(items).values()
        return round(stdev(accuracies) * 100, 2) if len(accuracies) > 1 else 0.0


def _accuracies(items: Sequence[Item]) -> dict[str, float]:
    """The shares of right answers by category or format."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in items:
        found[name].append(value)
    return {name: fmean(values) for name, values in found.items()}


_SCORES: Mapping[Combination, Sequence[type[BaseMetric[Any]]]] = {
    "micro": (Verdict,),
    "macro": (Verdict,),
    "non_live": (NonLiveScore, Verdict),
    "formats": (MaxDelta, Deviation, Verdict),
}
"""The metrics of a task by how its categories become one score. The first is the headline."""


def function_calling_task(name: str, described: CategoriesDescribed, process: WorkerProcess, version: str) -> type[FunctionCallingTask]:
    """The task class of a category or a group.

    Args:
        name: Shown to people.
        described: What the worker's `describe` gives.
        process: The worker.
        version: Hash of all that decides rows, results of tools and verdicts, beside the code here.
    """
    checker, combination = Checker(process), described["combination"]
    metrics = [_own(each, version=version, checker=checker, executes_code=described["runs_calls"]) for each in _SCORES[combination]]
    systems = type(Systems.__name__, (Systems,), {"PROCESS": process, **_place(Systems)})
    attributes: dict[str, object] = {
        "NAME": name,
        "VERSION": version,
        "PROCESS": process,
        "SUBJECTS": list(described["subjects"]),
        "METRICS": metrics,
        "HEADLINE_AGGREGATION": "macro" if combination == "macro" else "micro",
        "CLUSTER_FIELD": "origin" if described["shares_entries"] else None,
        "TOOLS": (systems,) if described["has_systems"] else (),
        "MAX_TURNS": _MOST_REQUESTS if described["has_systems"] else 1,
        "__doc__": described["description"],
        **_place(FunctionCallingTask),
    }
    return type(FunctionCallingTask.__name__, (FunctionCallingTask,), attributes)


def _own(metric: type[BaseMetric[Any]], *, version: str, checker: Checker, executes_code: bool) -> type[BaseMetric[Any]]:
    values = {"VERSION": version, "CHECKER": checker, "EXECUTES_CODE": executes_code, "__doc__": metric.__doc__, **_place(metric)}
    return type(metric.__name__, (metric,), values)


def _place(of: type) -> dict[str, str]:
    """The place of a class, where the version of a class that is made of it finds the code."""
    return {"__module__": of.__module__, "__qualname__": of.__qualname__}
