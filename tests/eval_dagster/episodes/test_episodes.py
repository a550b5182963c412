"""Episodes are replayed from what was recorded: nothing is asked twice, no effect happens twice, and a broken rule is found."""

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from running_episodes import World, says

from eval_dagster import EpisodeTask, Message, ModelResponse, Role, ToolCall, effect
from eval_dagster.episodes.branches import calls_at
from eval_dagster.episodes.episode import Ask, EpisodeEnd
from eval_dagster.episodes.tools import tools_of
from eval_dagster.errors import DataError, MachineError, TaskDefinitionError
from eval_dagster.records import ServerReport
from eval_dagster.tasks.episodes import AnswerError, EpisodeSample, Reply, Roles, Toolbox, Tools
from eval_dagster.versions.hashes import stable_hash

SENT: list[str] = []
"""What the tools of this file did to the world."""


class Told(EpisodeTask[Any]):
    """A task with a name."""

    NAME = "Told"


class Counter:
    """A counter with a state."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int = 1) -> int:
        """Add a number."""
        self.value += number
        SENT.append("add")
        return self.value


class Counting(Told):
    """The model adds ones until the counter has the number of its question."""

    TOOLS = (Counter,)


def counting(ask: Ask) -> Reply:
    """A model that counts by calls of `add`."""
    wanted = int(ask.messages[0].content.split()[-1].strip("."))
    results = [message.content for message in ask.messages if message.role is Role.TOOL]
    return says(results[-1]) if len(results) == wanted else says("one more", add="{}")


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    SENT.clear()


def test_the_tools_are_called_until_the_model_calls_none(tmp_path: Path) -> None:
    world = World(tmp_path, counting)
    ends = world.run(Counting, 3)
    assert {name: end.reply and end.reply.text for name, end in ends.items()} == {"1": "1", "2": "2", "3": "3"}
    assert set(world.asked.values()) == {1}
    assert (world.batches[0], sum(world.batches)) == (3, 9), "all episodes that wait are asked together"
    assert len(world.batches) < 9, "quick tools do not part them"
    kinds = [(each.kind, each.name, each.number) for each in ends["2"].effects]
    assert kinds == [("ask", "subject", 0), ("tool", "add", 1), ("ask", "subject", 2), ("tool", "add", 3), ("ask", "subject", 4)]


@pytest.mark.parametrize("stop", range(1, 9))
def test_an_interrupted_run_goes_on_without_asking_again(tmp_path: Path, stop: int) -> None:
    whole = World(tmp_path / "whole", counting).run(Counting, 3)
    world = World(tmp_path / "cut", counting)
    world.stops_after = stop
    with pytest.raises(KeyboardInterrupt):
        world.run(Counting, 3)
    world.stops_after = None
    ends = world.run(Counting, 3)
    assert set(world.asked.values()) == {1}
    assert _course(ends) == _course(whole)


def _course(ends: Mapping[str, EpisodeEnd]) -> dict[str, object]:
    """What happened in episodes, without times."""
    return {
        name: (end.reply, [(each.place, each.number, each.name, each.key, each.value) for each in end.effects])
        for name, end in ends.items()
    }


def test_a_replay_calls_no_tool_with_a_state(tmp_path: Path) -> None:
    world = World(tmp_path, counting)
    world.run(Counting, 1)
    SENT.clear()
    world.run(Counting, 1)
    assert not SENT


def test_errors_of_calls_are_told_to_the_model(tmp_path: Path) -> None:
    def fail(place: str) -> str:
        """Fail."""
        raise KeyError(place)

    class Failing(Told):
        TOOLS = (fail,)

    def speak(ask: Ask) -> Reply:
        told = [message.content for message in ask.messages if message.role is Role.TOOL]
        given = ['{"place": "here"}', '{"place": 7}', "{}", '{"place": "x", "other": 1}', "no JSON"]
        if len(told) < len(given):
            return says("", fail=given[len(told)])
        return says("", unknown="{}") if len(told) == len(given) else says("|".join(told))

    [end] = World(tmp_path, speak).run(Failing).values()
    assert end.reply is not None
    seen = end.reply.text.split("|")
    assert seen[0] == "Error: 'here'"
    assert "place: Input should be a valid string" in seen[1]
    assert "place: Field required" in seen[2]
    assert "other: Extra inputs are not permitted" in seen[3]
    assert "no JSON object: no JSON" in seen[4]
    assert "there is no tool 'unknown'; the tools are: fail" in seen[5]
    errors = [each.value.error for each in end.effects if each.kind == "tool" and each.value]
    assert [str(error).partition(":")[0] for error in errors] == ["KeyError", *["WrongCall"] * 5]


def test_an_episode_ends_at_its_limit_of_turns_with_the_last_answer(tmp_path: Path) -> None:
    class Short(Counting):
        MAX_TURNS = 3

    [end] = World(tmp_path, lambda ask: says(f"{len(ask.messages)} messages", add="{}")).run(Short).values()
    assert (end.status, end.error) == ("turns", None)
    assert end.reply is not None
    assert end.reply.text == "5 messages"


def slow() -> str:
    """Take a while."""
    time.sleep(0.03)
    return "done"


@pytest.mark.parametrize(
    ("limit", "amount", "turns"),
    [("tokens", {"MAX_OUTPUT_TOKENS": 21}, 3), ("cost", {"MAX_COST": 0.039}, 4), ("seconds", {"MAX_TOOL_SECONDS": 0.05}, 2)],
)
def test_an_episode_ends_when_an_amount_is_spent(tmp_path: Path, limit: str, amount: dict[str, float], turns: int) -> None:
    """The first ask or call after the amount ends it. A replay ends at the same place, and asks nothing."""
    made: type[Counting] = type("Limited", (Counting,), {**amount, "TOOLS": (slow,)})

    def speak(ask: Ask) -> ModelResponse:
        report = ServerReport(output_tokens=10, cost=0.01)
        return ModelResponse(text=(f"{len(ask.messages)}",), finish_reason=("stop",), tool_calls=(("slow|{}",),), report=report)

    world = World(tmp_path, speak)
    [end] = world.run(made).values()
    assert (end.status, end.error) == (limit, None)
    assert end.reply is not None
    assert end.reply.text == str(2 * turns - 1)
    asked = world.asked.total()
    assert asked == turns
    [again] = world.run(made).values()
    assert (again.status, again.reply, world.asked.total()) == (end.status, end.reply, asked)


def test_a_limit_holds_at_the_same_place_whatever_branch_is_first(tmp_path: Path) -> None:
    """One branch calls a slow tool, the other asks on: a replay, in which all is quick, ends with the same answer and asks nothing."""

    class Branching(Told):
        MAX_OUTPUT_TOKENS = 25
        TOOLS = (slow,)

        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            async def branch(name: str) -> str:
                for number in range(5):
                    await roles.subject.ask([Message(Role.USER, f"{name} {number}")])
                    if name == "a":
                        await tools.call(ToolCall(call_id="", name="slow", arguments_text="{}"))
                return name

            return "".join(await asyncio.gather(branch("a"), branch("b")))

    def speak(ask: Ask) -> ModelResponse:
        return ModelResponse(text=(ask.messages[0].content,), finish_reason=("stop",), report=ServerReport(output_tokens=10))

    world = World(tmp_path, speak)
    [end] = world.run(Branching).values()
    assert (end.status, end.error) == ("tokens", None)
    asked = world.asked.total()
    [again] = world.run(Branching).values()
    assert (again.status, again.reply, world.asked.total()) == (end.status, end.reply, asked)
    assert [each.place for each in again.effects] == [each.place for each in end.effects]


def test_the_seconds_of_a_tool_are_those_of_its_call(tmp_path: Path) -> None:
    """The rebuilding of its object after a kill does not count."""
    own: list[float] = []

    class Slow:
        def wait(self) -> str:
            """Wait."""
            started = time.monotonic()
            time.sleep(0.02)
            own.append(time.monotonic() - started)
            return "done"

    class Waiting(Told):
        TOOLS = (Slow,)

    world = World(tmp_path, lambda ask: says("done") if len(ask.messages) > 15 else says("", wait="{}"))
    world.stops_after = 7
    with pytest.raises(KeyboardInterrupt):
        world.run(Waiting)
    world.stops_after = None
    [end] = world.run(Waiting).values()
    seconds = [float(str(each.details["seconds"])) for each in end.effects if each.kind == "tool"]
    assert (len(seconds), len(own)) == (8, 15)
    assert sum(seconds) < 1.4 * (sum(own[:7]) + own[-1])


def test_a_machine_that_fails_is_not_told_to_the_model(tmp_path: Path) -> None:
    async def broken() -> str:
        """Fail."""
        raise MachineError("no memory")

    class Unmade(Toolbox):
        def __init__(self, sample: EpisodeSample) -> None:
            raise MachineError("no process")

    for tool, name, message in ((broken, "broken", "no memory"), (Unmade, "any", "no process")):
        made: type[Told] = type("Failing", (Told,), {"TOOLS": (tool,)})
        [end] = World(tmp_path / name, lambda _, name=name: says("", **{name: "{}"})).run(made).values()
        assert (end.status, end.retryable) == ("error", True)
        assert message in str(end.error)


def test_a_model_without_an_answer_ends_its_episode_alone(tmp_path: Path) -> None:
    def speak(ask: Ask) -> Reply | ModelResponse:
        if "to 2" in ask.messages[0].content and len(ask.messages) > 1:
            return ModelResponse(error="ServerError: status 500", retryable=True)
        return counting(ask)

    ends = World(tmp_path, speak).run(Counting, 3)
    assert {name: end.status for name, end in ends.items()} == {"1": "done", "2": "error", "3": "done"}
    assert (ends["2"].error, ends["2"].retryable) == ("ServerError: status 500", True)


def test_an_episode_may_go_on_without_an_answer(tmp_path: Path) -> None:
    class Careful(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            try:
                await roles.subject.ask(sample.messages)
            except AnswerError as error:
                return f"no answer: {error}"
            return "an answer"

    [end] = World(tmp_path, lambda _: ModelResponse(error="RefusalError: no")).run(Careful).values()
    assert end.reply is not None
    assert (end.status, end.reply.text) == ("done", "no answer: RefusalError: no")


class Branching(Told):
    """Several branches, which wait for different times."""

    async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
        async def branch(number: int) -> str:
            await asyncio.sleep(random.random() / 100)
            one = await roles.subject.ask([Message(Role.USER, "draw")], temperature=1.0)
            await asyncio.sleep(random.random() / 100)
            two = await roles.subject.ask([Message(Role.USER, f"{number} {one.text}")])
            return two.text

        found = await asyncio.gather(*map(branch, range(5)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(number)) for number in range(5)]
        return " ".join([*found, *(task.result() for task in tasks)])


def test_branches_may_be_as_fast_as_they_like(tmp_path: Path) -> None:
    drawn = iter(range(1000))
    world = World(tmp_path, lambda ask: says(f"drawn {next(drawn)}" if ask.temperature else f"seen {ask.messages[0].content}"))
    [first] = world.run(Branching).values()
    assert first.status == "done", first.error
    assert len(set(world.asked)) == 20, "each branch draws its own answer"
    for _ in range(5):
        [again] = world.run(Branching).values()
        assert (again.status, again.reply) == ("done", first.reply)
    assert set(world.asked.values()) == {1}


def test_equal_sampled_requests_are_asked_each_and_equal_greedy_ones_once(tmp_path: Path) -> None:
    class Drawing(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            greedy = [await roles.subject.ask(sample.messages) for _ in range(3)]
            sampled = await asyncio.gather(*(roles.subject.ask(sample.messages, temperature=1.0) for _ in range(3)))
            return " ".join(each.text for each in (*greedy, *sampled))

    drawn = iter(range(1000))
    [end] = World(tmp_path, lambda _: says(str(next(drawn)))).run(Drawing).values()
    assert end.reply is not None
    assert end.reply.text == "0 0 0 1 2 3"


@pytest.mark.parametrize("source", ["time", "random"])
def test_a_rule_that_is_broken_is_found_by_the_first_episode(tmp_path: Path, source: str) -> None:
    class Broken(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> Reply:
            drawn = time.perf_counter_ns() if source == "time" else random.random()
            try:
                return await roles.subject.ask([*sample.messages, Message(Role.USER, f"It is {drawn}.")])
            except Exception:  # catches nothing that ends an episode
                return Reply(text="caught")

    with pytest.raises(DataError, match=r"not the same when it is replayed: .*message 2 was .*It is .*, and is .*It is ") as found:
        World(tmp_path, lambda _: says("yes")).run(Broken, 3)
    assert "tools.now()" in str(found.value)


def test_time_and_chance_of_an_episode_are_recorded(tmp_path: Path) -> None:
    class Timed(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> Reply:
            text = f"{tools.now().isoformat()} {tools.random().random()} {tools.random().random()}"
            return await roles.subject.ask([Message(Role.USER, text)])

    world = World(tmp_path, lambda ask: says(ask.messages[0].content))
    first = world.run(Timed, 2)
    again = world.run(Timed, 2)
    assert {name: end.reply for name, end in first.items()} == {name: end.reply for name, end in again.items()}
    texts = [end.reply.text.split()[1:] for end in first.values() if end.reply]
    assert len({number for text in texts for number in text}) == 4


def test_an_ask_cannot_be_cancelled(tmp_path: Path) -> None:
    class Impatient(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            try:
                async with asyncio.timeout(0.05):
                    await roles.subject.ask(sample.messages)
            except TimeoutError:
                return "too late"
            return "in time"

    def slow(_: Ask) -> Reply:
        time.sleep(0.3)
        return says("late")

    [end] = World(tmp_path, slow).run(Impatient).values()
    assert end.status == "error"
    assert "an ask was cancelled" in str(end.error)


class Killed(BaseException):
    """Stands for the end of a process while it sends."""


@effect
def send(text: str) -> str:
    """Send a text."""
    SENT.append(text)
    if text == "stop":
        raise Killed
    return f"sent {text}"


class Sending(Told):
    """The model sends what the question says."""

    TOOLS = (send,)


def sending(ask: Ask) -> Reply:
    """A model that sends once."""
    return says("done") if ask.messages[-1].role is Role.TOOL else says("", send='{"text": "hello"}')


def test_an_effect_happens_once(tmp_path: Path) -> None:
    world = World(tmp_path, sending)
    first, second = world.run(Sending), world.run(Sending)
    assert SENT == ["hello"]
    assert first["1"].reply == second["1"].reply


def test_an_effect_that_may_have_happened_is_not_repeated(tmp_path: Path) -> None:
    world = World(tmp_path, lambda ask: says("", send='{"text": "stop"}'))
    with pytest.raises(Killed):
        world.run(Sending)
    [end] = world.run(Sending).values()
    assert SENT == ["stop"]
    assert (end.status, end.retryable) == ("interrupted", False)
    assert "may have taken effect; it is not repeated" in str(end.error)


def test_a_tool_that_gives_another_result_is_found(tmp_path: Path) -> None:
    def draw() -> float:
        """Draw a number."""
        return random.random()

    class Drawn(Told):
        TOOLS = (draw,)

    with pytest.raises(DataError, match=r"the tool draw gave .* before, and gives .* now; mark it by `effect`"):
        World(tmp_path, lambda ask: says("done") if len(ask.messages) > 1 else says("", draw="{}")).run(Drawn)


def test_a_slow_tool_holds_up_its_own_episode_alone(tmp_path: Path) -> None:
    ended: list[str] = []

    def think(number: int) -> str:
        """Think."""
        time.sleep(1.0 if number == 1 else 0.0)
        ended.append(str(number))
        return "thought"

    class Thinking(Told):
        TOOLS = (think,)

        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> Reply:
            answer = await super().episode(sample, roles, tools)
            ended.append(f"end of {sample.sample_id}")
            assert isinstance(answer, Reply)
            return answer

    def speak(ask: Ask) -> Reply:
        number = ask.messages[0].content.split()[-1].strip(".")
        return says("done") if ask.messages[-1].role is Role.TOOL else says("", think=f'{{"number": {number}}}')

    World(tmp_path, speak).run(Thinking, 5)
    assert ended.index("end of 5") < ended.index("1")


def test_roles_are_models_of_their_own(tmp_path: Path) -> None:
    class Talk(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            question = await roles.user.ask(sample.messages)
            answer = await roles.subject.ask([Message(Role.USER, question.text)])
            verdict = await roles.judge.ask([Message(Role.USER, answer.text)])
            return verdict.text

    world = World(tmp_path, lambda ask: says(f"{ask.role}({ask.messages[0].content})"))
    [end] = world.run(Talk, roles=["user", "judge"]).values()
    assert end.reply is not None
    assert end.reply.text == "judge(subject(user(Count to 1.)))"
    [end] = World(tmp_path / "other", lambda _: says("x")).run(Talk, roles=["user"]).values()
    assert "the episode has no role 'judge'; it has: subject, user; name its model in evals.yaml" in str(end.error)


def test_calls_of_one_object_come_one_after_the_other(tmp_path: Path) -> None:
    class Slow(Counter):
        def add(self, number: int = 1) -> int:
            """Add a number, slowly."""
            before = self.value
            time.sleep(random.random() / 50)
            self.value = before + number
            return self.value

        async def later(self) -> int:
            """Add a number later."""
            before = self.value
            await asyncio.gather(asyncio.sleep(0.01), asyncio.sleep(0.02))
            self.value = before + 1
            return self.value

    class Gathering(Told):
        TOOLS = (Slow,)

        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            calls = [ToolCall(call_id=str(n), name="later" if n % 2 else "add", arguments_text="{}") for n in range(6)]
            results = await asyncio.gather(*(tools.call(call) for call in calls))
            await roles.subject.ask(sample.messages)
            made = await tools.instance(Slow)
            return f"{sorted(result.content for result in results)} {made.value}"

    world = World(tmp_path, lambda _: says("yes"))
    for _ in range(2):
        [end] = world.run(Gathering).values()
        assert end.reply is not None, end.error
        assert end.reply.text == "['1', '2', '3', '4', '5', '6'] 6"


def test_a_request_that_failed_for_a_while_is_asked_again_with_what_follows(tmp_path: Path) -> None:
    class Careful(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            try:
                verdict = (await roles.judge.ask(sample.messages)).text
            except AnswerError:
                verdict = "unknown"
            return (await roles.subject.ask([Message(Role.USER, verdict)])).text

    down = [True]

    def speak(ask: Ask) -> Reply | ModelResponse:
        if ask.role == "judge" and down:
            return ModelResponse(error="ServerError: status 500", retryable=True)
        return says(f"{ask.role} {ask.messages[0].content}")

    world = World(tmp_path, speak)
    [first] = world.run(Careful, roles=["judge"]).values()
    assert first.reply is not None
    assert (first.status, first.reply.text, first.retryable) == ("done", "subject unknown", True)
    down.clear()
    [second] = world.run(Careful, roles=["judge"]).values()
    assert second.reply is not None
    assert (second.status, second.reply.text, second.retryable) == ("done", "subject judge Count to 1.", False)


def test_an_effect_after_a_failure_is_not_repeated(tmp_path: Path) -> None:
    class Careful(Told):
        TOOLS = (send,)

        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            try:
                await roles.judge.ask(sample.messages)
            except AnswerError as error:
                sent = await tools.call(ToolCall(call_id="", name="send", arguments_text=f'{{"text": "{error}"}}'))
                return sent.content
            return "no failure"

    world = World(tmp_path, lambda _: ModelResponse(error="down", retryable=True))
    ends = [world.run(Careful, roles=["judge"])["1"] for _ in range(2)]
    assert [end.reply and end.reply.text for end in ends] == ["sent down", "sent down"]
    assert [end.retryable for end in ends] == [False, False]
    assert SENT == ["down"]


@pytest.mark.parametrize("is_caught", [False, True])
def test_an_episode_that_goes_round_in_circles_ends(tmp_path: Path, is_caught: bool) -> None:
    class Circling(Told):
        MAX_TURNS = 5

        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            while True:
                try:
                    await roles.judge.ask(sample.messages)
                except Exception:
                    if not is_caught:
                        raise

    world = World(tmp_path, lambda _: ModelResponse(error="RefusalError: no") if is_caught else says("yes"))
    [end] = world.run(Circling, roles=["judge"]).values()
    assert end.status == "error"
    assert "asks and calls more than 100 times" in str(end.error)


def test_a_tool_that_ends_the_process_ends_its_call(tmp_path: Path) -> None:
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    async def leave_later() -> str:
        """Leave later."""
        await asyncio.sleep(0)
        raise SystemExit(4)

    class Leaving(Told):
        TOOLS = (leave, leave_later)

    def speak(ask: Ask) -> Reply:
        told = [message.content for message in ask.messages if message.role is Role.TOOL]
        return says("|".join(told)) if told else says("", leave="{}", leave_later="{}")

    [end] = World(tmp_path, speak).run(Leaving).values()
    assert end.reply is not None
    assert end.reply.text == "Error: 3|Error: 4"


def test_the_error_of_a_branch_is_shown_rather_than_the_end_of_its_neighbours(tmp_path: Path) -> None:
    class Failing(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            async def fail() -> None:
                await asyncio.sleep(0.01)
                raise ValueError("mine")

            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                for number in range(3):
                    group.create_task(self.asked(roles, number))
            return "never"

        async def asked(self, roles: Roles, number: int) -> None:
            await roles.subject.ask([Message(Role.USER, str(number))])

    def slow(_: Ask) -> Reply:
        time.sleep(0.2)
        return says("late")

    [end] = World(tmp_path, slow).run(Failing).values()
    assert str(end.error).startswith("ValueError: mine")


def test_branches_have_conversations_of_their_own(tmp_path: Path) -> None:
    class Two(Told):
        async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> str:
            async def talk(name: str) -> str:
                messages: list[Message] = [Message(Role.USER, f"{name} hello")]
                for number in range(2):
                    answer = await roles.subject.ask(messages)
                    messages += [answer.message, Message(Role.USER, f"{name} more {number}")]
                return name

            return " ".join(await asyncio.gather(talk("A"), talk("B")))

    [end] = World(tmp_path, lambda ask: says(f"re {ask.messages[-1].content}")).run(Two).values()
    kept = [(each.details["kept"], each.details["new_messages"]) for each in end.effects]
    assert [number for number, _ in kept] == [0, 0, 0, 0], "each request follows one of the other branch"
    assert [message["content"] for message in kept[2][1]] == ["A hello", "re A hello", "A more 0"]  # type: ignore[index, attr-defined]


def test_definitions_of_tools_have_types_and_descriptions() -> None:
    def find(place: str, most: int = 3, kinds: list[str] | None = None) -> list[str]:
        """Find something.

        Args:
            place: Where.
            most: How many.
            kinds: Which.
        """
        return [place] * most

    [tool] = tools_of([find], "T").values()
    assert '"name": "find"' in tool.definition
    assert '"required": ["place"]' in tool.definition
    assert "How many." in tool.definition

    def untyped(place):  # type: ignore[no-untyped-def]
        """Nothing."""

    with pytest.raises(TaskDefinitionError, match=r"the tool untyped has the parameter place; expected .* type hints"):
        tools_of([untyped], "T")
    with pytest.raises(TaskDefinitionError, match="two tools of the name 'find'"):
        tools_of([find, find], "T")

    class Marked:
        @effect
        def send(self, text: str) -> str:
            """Send."""
            return text

        @staticmethod
        def helper(text: str) -> str:
            return text

    with pytest.raises(TaskDefinitionError, match="the method send of Marked is marked by `effect`; expected a function"):
        tools_of([Marked], "T")
    with pytest.raises(TaskDefinitionError, match="expected functions and classes"):
        tools_of([max], "T")

    def unknown(place: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
        """Nothing."""
        return ""

    with pytest.raises(TaskDefinitionError, match="a type hint of the tool unknown is not known"):
        tools_of([unknown], "T")


def test_arguments_keep_the_text_of_the_model() -> None:
    call = ToolCall(call_id="c", name="n", arguments_text='{"a": [1, 2.50]}')
    assert call.arguments == {"a": [1, 2.5]}
    for text in ("[1]", "nonsense", "3", '{"a":'):
        assert ToolCall(call_id="c", name="n", arguments_text=text).arguments is None
    assert ToolCall(call_id="c", name="n", arguments_text="").arguments == {}


def test_the_id_of_a_call_is_the_hash_of_its_place() -> None:
    made = calls_at("0.1:3", [ToolCall(call_id=name, name="add", arguments_text="{}") for name in ("a", "b")])
    assert [call.call_id for call in made] == [f"c{stable_hash(['0.1:3', position])[:8]}" for position in range(2)]
