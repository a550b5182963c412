"""The episodes of BFCL, with a model and systems that follow a script: they are asked as the package asks."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from eval_dagster.errors import DataError
from eval_dagster.metrics.explanations import explained
from eval_dagster.peers.bfcl.tasks import SESSION, Entry, FunctionCallingTask, NonLiveScore, function_calling_task
from eval_dagster.records import Completion, Message, Role, ToolCall, Turn
from eval_dagster.tasks.episodes import EpisodeSample, Reply

USER = [{"role": "user", "content": "List the files."}]
HELD_OUT = [{"role": "user", "content": "There is a new function."}]


class Worker:
    """Stands for the process of the package."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, method: str, **arguments: Any) -> object:
        self.asked.append(method)
        if method in ("execute", "remember"):
            self.asked.append(" ".join(name for name, _ in arguments["calls"]))
            if "slow" in self.asked[-1]:
                raise DataError("a call took over 60 s")
            return {"result": "made", "prompt": "asked", "kept": ""} if method == "remember" else "made"
        if method == "verdict":
            is_right = arguments["result"] == [{"ls": "{}"}]
            return {"valid": True} if is_right else {"valid": False, "error_type": "wrong", "error": "[]", "fault": "call 1: no call"}
        return [
            {
                "id": "simple_0",
                "category": "simple_python",
                "steps": "0",
                "turns": json.dumps([USER]),
                "tools": "{}",
                "answer": "null",
                "sessions": "[]",
            }
        ]


def task(worker: Worker, combination: str = "micro") -> type[FunctionCallingTask]:
    described: Any = {
        "subjects": ["c"],
        "combination": combination,
        "description": "A test.",
        "runs_calls": True,
        "has_systems": True,
        "shares_entries": False,
        "version": 1,
    }
    return function_calling_task("bfcl:test", described, worker, "1")  # type: ignore[arg-type]


class Script:
    """A model that gives one answer after the other, and tools that repeat what they are called with."""

    def __init__(self, *answers: Sequence[tuple[str, str]] | str) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[list[Message], list[str]]] = []
        self.called: list[str] = []

    @property
    def subject(self) -> "Script":
        return self

    async def ask(self, messages: Iterable[Message], *, tools: Iterable[str] = ()) -> Reply:
        self.seen.append((list(messages), list(tools)))
        answer = self.answers.pop(0) if self.answers else "done"
        if isinstance(answer, str):
            return Reply(text=answer)
        return Reply(
            text="",
            tool_calls=[ToolCall(call_id=f"c{number}", name=name, arguments_text=text) for number, (name, text) in enumerate(answer)],
        )

    async def call(self, call: ToolCall) -> Turn:
        self.called.append(call.name)
        return Turn(Role.TOOL, f"{call.name} was called", (), call.call_id)


def result(script: Script, turns: Sequence[object], steps: int = 20, tools: Mapping[str, list[str]] | None = None) -> Any:
    context = Entry(id="e", category="c", steps=steps, turns=turns, tools=tools or {"0": ["ls"]})  # type: ignore[arg-type]
    sample = EpisodeSample(sample_id="s", messages=[], ground_truths=[], context=context, subject="c")
    made: Any = task(Worker())()
    return json.loads(asyncio.run(made.episode(sample, script, script)).text)


def test_an_entry_of_one_turn_is_asked_once() -> None:
    calls = Script([("ls", "{}"), ("cd", '{"folder": "a"}')])
    assert result(calls, [USER], steps=0) == [{"ls": "{}"}, {"cd": '{"folder": "a"}'}]
    assert calls.called == []  # nothing is executed
    assert [tools for _, tools in calls.seen] == [["ls"]]
    assert result(Script("I cannot."), [USER], steps=0) == "I cannot."


def test_a_turn_ends_at_the_first_answer_without_a_call_and_a_function_comes_later() -> None:
    script = Script([("ls", "{}")], [("cd", "{}"), ("ls", "{}")], "The files are there.", "I cannot.", [("sort", "{}")])
    found = result(script, [USER, USER, HELD_OUT], tools={"0": ["ls"], "2": ["ls", "sort"]})
    first = [[{"ls": "{}"}], [{"cd": "{}"}, {"ls": "{}"}], "The files are there."]
    assert found == [first, ["I cannot."], [[{"sort": "{}"}], "done"]]
    assert [tools for _, tools in script.seen] == [["ls"]] * 4 + [["ls", "sort"]] * 2
    roles = [str(each.role.value) for each in script.seen[-1][0]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant", *["user", "assistant"] * 2, "tool"]


@pytest.mark.parametrize("text", ["{", "[1]", '"a"', ""])
def test_arguments_that_cannot_be_read_end_a_turn(text: str) -> None:
    script = Script([("ls", "{}"), ("cd", text)])
    assert result(script, [USER, USER]) == [[[{"ls": "{}"}, {"cd": text}]], ["done"]]
    assert script.called == []
    last = script.seen[-1][0]
    # Each call has a result, as servers demand.
    assert [each.content for each in last if each.role is Role.TOOL] == ["Error: the arguments are no JSON object"] * 2


def test_too_many_steps_end_the_entry() -> None:
    script = Script(*[[("ls", "{}")] for _ in range(100)])
    found = result(script, [USER, USER])
    # The package counts a step after its calls, and goes on as long as there are no more than 20.
    assert [len(turn) for turn in found] == [21]


@pytest.mark.parametrize("has_session", [False, True])
def test_a_call_that_fails_is_not_made_again(has_session: bool) -> None:
    worker = Worker()
    context = Entry(id="e", category="c", steps=20, turns=[USER], tools={})
    sample = EpisodeSample(sample_id="s", messages=[], ground_truths=[], context=context, subject="c")
    [made] = task(worker).TOOLS
    systems: Any = made(sample)  # type: ignore[call-arg, operator]
    if has_session:
        assert systems.call(SESSION, {"id": "first"}) == "asked"
    worker.asked.clear()
    assert systems.call("ls", {}) == "made"
    with pytest.raises(DataError):
        systems.call("slow", {})
    assert systems.call("cd", {}) == "made"
    assert worker.asked[1::2] == ["ls", "ls slow", "ls cd"]


def test_the_score_of_one_turn_is_the_mean_of_its_parts() -> None:
    right = {"simple_python": (3, 4), "simple_java": (1, 2), "simple_javascript": (0, 1), "multiple": (1, 1), "parallel": (1, 4)}
    items = [[name, float(number < good)] for name, (good, of) in right.items() for number in range(of)]
    simple = (3 / 4 + 1 / 2 + 0) / 3
    assert NonLiveScore.aggregate(items) == pytest.approx((simple + 1 + 1 / 4) / 3)


def test_a_wrong_answer_is_explained_and_judged_once_for_two_metrics() -> None:
    worker = Worker()
    made = task(worker, "non_live")
    score, verdict = [metric() for metric in made.METRICS]
    row = {"category": "simple_python", "id": "simple_0"}
    with explained() as words:
        wrong = Completion(completion_text='"text"', row=row)
        assert (score.calculate(wrong), verdict.calculate(wrong)) == (["simple_python", 0.0], 0.0)
    assert words == {None: {"answer": ["call 1: no call"], "program_output": ["wrong: []"]}}
    assert verdict.calculate(Completion(completion_text='[{"ls": "{}"}]', row=row)) == 1
    assert worker.asked == ["verdict"] * 2
