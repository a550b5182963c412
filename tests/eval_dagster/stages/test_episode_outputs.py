"""Episodes as a stage: rows of responses, counts, relations, caching, and what a change asks again."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from running_stages import run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.records import read_attempts
from eval_dagster.project import Project
from eval_dagster.stages.episodes import EndedEpisode
from eval_dagster.stages.output_counts import Counts

TASK = '''
    import eval_dagster as ed


    class Basket:
        """A basket."""

        def __init__(self):
            self.items = []

        def put(self, item: str) -> int:
            """Put an item into the basket, and return how many there are."""
            self.items.append(item)
            return len(self.items)


    def price(item: str) -> float:
        """The price of an item."""
        return {"apple": 0.5}[item]


    class Calls(ed.CompletionMetric):
        NAME = "calls"

        def calculate(self, completion):
            return float(sum(len(getattr(message, "tool_calls", ())) for message in completion.messages))


    class Shop(ed.EpisodeTask):
        NAME = "Shop"
        DATASET_PATH = "shop"
        SAMPLE_SPLIT = "test"
        METRICS = (ed.ExactMatch, Calls)
        TOOLS = (Basket, price)

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(1, 5)]}

        def _get_instruction_text(self, item):
            return f"Put in apples: {item['n']}"

        def _get_ground_truth(self, item):
            return str(item["n"])
'''
MODEL = """
    import json
    from pathlib import Path

    import eval_dagster as ed


    def call(name, **arguments):
        return json.dumps({"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}})


    def shopper(request):
        with Path(__file__).with_name("asked.log").open("a") as file:
            file.write(request.request_id + "\\n")
        wanted = int(request.prompt.split("apples: ")[1].split()[0])
        if "price(" not in request.prompt:
            calls = (call("price", item="apple"), call("price", item="plum"))
            return ed.ModelResponse(text=("",), finish_reason=("stop",), tool_calls=(calls,))
        if request.prompt.count("put(") < wanted:
            return ed.ModelResponse(text=("more",), finish_reason=("stop",), tool_calls=((call("put", item="apple"),),))
        return request.prompt.split()[-1]


    def talker(request):
        return request.prompt.split()[-1]
"""
CONFIG = """
    models:
      shopper: {backend: scripted, function: "model.py:shopper"}
      talker: {backend: scripted, function: "model.py:talker"}
    evals:
      shop: {task: shop.py:Shop}
"""


class Shop:
    """The project of these tests."""

    def __init__(self, open_project: Callable[..., Project], write: Callable[[str, str], Path], folder: Path) -> None:
        self.open, self.write, self._log = open_project, write, folder / "asked.log"
        write("shop.py", TASK)
        write("model.py", MODEL)

    def run(self, config: str = CONFIG, model: str = "shopper") -> tuple[Project, dict[str, float], str]:
        """Run the eval. Returns the project, the counts of its answers and its failure."""
        project = self.open(config)
        results, failures = run_all(project, [("shop", model)])
        publish(project.lake)
        counts = {} if failures else dict(results["model_outputs", "shop"].file.info.counts)
        return project, counts, failures[0].message if failures else ""

    def asked(self) -> int:
        """Requests since the last call."""
        count = len(self._log.read_text().splitlines()) if self._log.exists() else 0
        self._log.unlink(missing_ok=True)
        return count


@pytest.fixture
def shop(open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path) -> Shop:
    return Shop(open_project, write, tmp_path)


@pytest.mark.long
def test_episodes_are_rows_and_relations(shop: Shop) -> None:
    project, counts, _ = shop.run()
    assert shop.asked() == 18
    assert (counts["requests"], counts["requests_computed"], counts["turns"], counts["turns_computed"]) == (4, 4, 18, 18)
    episodes = read_rows(project.lake, "select status, result, n_turns, n_tool_calls from episodes order by result")
    assert [tuple(row.values()) for row in episodes] == [("done", str(n), n + 2, n + 2) for n in range(1, 5)]
    calls = read_rows(project.lake, "select result, error, count(*) as n from tool_calls where name = 'price' group by all order by result")
    assert [tuple(row.values()) for row in calls] == [("0.5", None, 4), ("Error: 'plum'", "KeyError: 'plum'", 4)]
    puts = read_rows(project.lake, "select max(result) as most from tool_calls where name = 'put' group by sample_id order by most")
    assert [row["most"] for row in puts] == ["1", "2", "3", "4"], "each episode has a basket of its own"
    of_first = "from {} semi join (from episodes where result = '1') using (sample_id)"
    turns = read_rows(project.lake, f"select n_kept, new_messages, text {of_first.format('turns')} order by number")
    assert [row["n_kept"] for row in turns] == [0, 2, 5]
    [called] = [row["call_id"] for row in read_rows(project.lake, f"select call_id {of_first.format('tool_calls')} where number = 2")]
    assert json.loads(turns[1]["new_messages"])[1] == {"role": "tool", "content": "Error: 'plum'", "tool_call_id": called}
    values = read_rows(project.lake, "select value from scores where metric = 'calls' order by value")
    assert [row["value"] for row in values] == [3, 4, 5, 6]


@pytest.mark.long
def test_what_is_current_is_not_run_and_what_changed_asks_what_is_new(shop: Shop) -> None:
    shop.run()
    assert shop.asked() == 18
    shop.run()
    assert shop.asked() == 0
    shop.write("shop.py", TASK.replace("return len(self.items)", "return len(self.items) + 0"))
    _, counts, _ = shop.run()
    assert shop.asked() == 0, "a tool with other code and the same results"
    assert (counts["turns"], counts["turns_computed"], counts["requests_cached"]) == (18, 0, 4)
    shop.write("shop.py", TASK.replace("return len(self.items)", "return 10 * len(self.items)"))
    project, counts, _ = shop.run()
    assert shop.asked() == 10, "the turns after the first changed result"
    assert counts["turns_computed"] == 10
    assert [(each.sent, each.from_cache) for each in read_attempts(project.lake) if not each.cached] == [(18, 0), (0, 18), (10, 8)]
    results = read_rows(project.lake, "select result from episodes order by result")
    assert [row["result"] for row in results] == ["10", "20", "30", "40"]


@pytest.mark.long
def test_a_broken_rule_is_the_failure_of_its_eval(shop: Shop) -> None:
    broken = (
        TASK
        + """
        async def episode(self, sample, roles, tools):
            import time
            return await roles.subject.ask([*sample.messages, ed.Message(ed.Role.USER, str(time.perf_counter_ns()))])
"""
    )
    shop.write("shop.py", broken)
    _, _, failure = shop.run()
    assert "is not the same when it is replayed" in failure
    assert "tools.now()" in failure


@pytest.mark.long
def test_another_model_is_a_role(shop: Shop) -> None:
    judged = (
        TASK
        + """
        async def episode(self, sample, roles, tools):
            answer = await super().episode(sample, roles, tools)
            return await roles.judge.ask([ed.Message(ed.Role.USER, f"repeat {answer.text}")])
"""
    )
    shop.write("shop.py", judged)
    config = CONFIG.replace("task: shop.py:Shop", "task: shop.py:Shop, roles: {judge: talker}")
    project, counts, failure = shop.run(config)
    assert not failure
    roles = read_rows(project.lake, "select role, count(*) as n from turns group by all order by role")
    assert [tuple(row.values()) for row in roles] == [("judge", 4), ("subject", 18)]
    assert (counts["turns"], counts["turns_computed"]) == (22, 22)
    shop.asked()
    shop.write("shop.py", judged.replace("repeat {", "say {"))
    _, counts, _ = shop.run(config)
    assert shop.asked() == 0
    assert (counts["turns"], counts["turns_computed"]) == (22, 4), "the judge alone is asked anew"
    shop.write("model.py", MODEL.replace("def talker(request):\n        return", "def talker(request):\n        return 'x' +"))
    project, _, failure = shop.run(config)
    assert shop.asked() == 18, "the file of both models changed"
    assert [row["result"] for row in read_rows(project.lake, "select result from episodes order by result")] == ["x1", "x2", "x3", "x4"]


@pytest.mark.long
def test_what_two_evals_of_a_run_share_is_counted_once(shop: Shop) -> None:
    project = shop.open(CONFIG.replace("shop: {task: shop.py:Shop}", "{a: {task: shop.py:Shop}, b: {task: shop.py:Shop}}"))
    results, failures = run_all(project, [("a", "shopper"), ("b", "shopper")])
    assert not failures
    assert shop.asked() == 18
    counts = [results["model_outputs", name].file.info.counts for name in ("a", "b")]
    assert [(each["turns"], each["turns_computed"]) for each in counts] == [(18, 18), (18, 0)]


def test_the_answers_of_other_roles_cost() -> None:
    """An answer that an earlier run has paid for is part of the cost of the eval, and not of this run's."""
    paid, earlier = ({"attempts": 1, "cost": cost} for cost in (0.25, 0.5))
    whole: Any = {"error": None, "prompt_tokens": 1, "output_tokens": 1}
    response: Any = {"retryable": False, "finish_reason": ["stop"], "text_is_escaped": False}
    told: Any = {"of_roles": [("user", paid), ("user", earlier)], "asked_of_roles": [paid]}
    counts = Counts(has_price=False)
    ended = EndedEpisode(row=cast(Any, {}), answers=(), whole=whole, course="", episode="", **told)
    counts.add_episode(ended, response)
    assert counts.costs.counts() == {"cost": 0.75}
    assert counts.costs_of_run.counts() == {"cost": 0.25}
    assert (counts.turns, counts.turns_computed, counts.computed) == (2, 1, 1)


@pytest.mark.parametrize(
    ("roles", "task", "message"),
    [
        ("{judge: nobody}", "shop.py:Shop", "roles.judge: unknown model 'nobody'"),
        ("{subject: talker}", "shop.py:Shop", "subject is the evaluated model; expected another name"),
        ("{judge: talker}, num_samples: 3", "shop.py:Shop", "found num_samples 3; expected 1"),
        ("{judge: talker}", "arithmetic", "is not an EpisodeTask"),
    ],
)
def test_roles_that_cannot_be_are_found_before_a_run(
    open_project: Callable[..., Project], shop: Shop, roles: str, task: str, message: str
) -> None:
    assert shop
    project = open_project(CONFIG.replace("task: shop.py:Shop", f"task: {task}, roles: {roles}"))
    assert message in str(project.problems(["shop"], ["shopper"]))


@pytest.mark.long
def test_nobody_says_how_many_requests_an_episode_will_send(
    shop: Shop, cli_in: Callable[[Path], Callable[..., str]], tmp_path: Path
) -> None:
    shop.run()
    cli = cli_in(tmp_path)
    assert "A run would make nothing" in cli("run", "--dry-run", "--eval", "shop", "--model", "shopper")
    shop.write("shop.py", TASK.replace("len(self.items)", "10 * len(self.items)"))
    told = cli("run", "--dry-run", "--eval", "shop", "--model", "shopper")
    assert "requests would be sent for those that are known (1 are not)" in told
    assert "at most 50 requests; tools: Basket, price" in cli("show", "shop", "--model", "shopper")


@pytest.mark.long
def test_a_changed_setting_is_not_a_broken_rule(shop: Shop, tmp_path: Path) -> None:
    """The journal of a run that did not end well stays. Other settings ask anew."""
    failing = MODEL.replace(
        "    def shopper(request):\n",
        """    def shopper(request):
        if "apples: 2" in request.prompt and Path(__file__).with_name("down").exists():
            raise OSError("down")
""",
    )
    shop.write("model.py", failing)
    (tmp_path / "down").touch()
    project, counts, _ = shop.run()
    assert counts["retryable_errors"] == 1
    assert list((tmp_path / "home" / "episodes").rglob("*.journal"))
    shop.asked()
    (tmp_path / "down").unlink()
    project, counts, failure = shop.run(CONFIG.replace('shopper"}', 'shopper", generation: {max_tokens: 500}}'))
    assert not failure
    assert [row["status"] for row in read_rows(project.lake, "select status from episodes")] == ["done"] * 4
    assert counts["errors"] == 0
    assert not list((tmp_path / "home" / "episodes").rglob("*.journal"))


class _Chat(BaseHTTPRequestHandler):
    """A server that is as strict about the messages of tools as OpenAI's, and whose model shops."""

    protocol_version = "HTTP/1.1"
    bodies: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "m", "object": "model"}], "object": "list"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).bodies.append(body)
        open_calls: list[str] = []
        results = []
        for message in body["messages"]:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
                results.append(message["content"])
            elif open_calls:
                self._answer(400, {"error": {"message": f"tool_call_ids without a message: {open_calls}"}})
                return
            for call in message.get("tool_calls", ()):
                json.loads(call["function"]["arguments"])
                open_calls.append(call["id"])
        if "tools" not in body:  # a look at the model
            self._say("yes", [])
            return
        wanted = int(body["messages"][0]["content"].split()[-1])
        is_told = isinstance(body.get("tool_choice"), dict)
        given = [("put", '{"item": "apple"}')] if len(results) < 2 + wanted and not is_told else []
        if len(results) < 2:
            given = [("price", '{"item": "apple"}'), ("price", "{broken")]
        self._say(None if given else results[-1], given)

    def _say(self, text: str | None, given: list[tuple[str, str]]) -> None:
        calls = [
            {"id": f"s{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(given)
        ]
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        self._answer(200, {"id": str(uuid4()), "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def _chat_server() -> Iterator[str]:
    _Chat.bodies = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Chat)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.long
def test_a_server_is_sent_tools_calls_and_results(shop: Shop) -> None:
    with _chat_server() as url:
        config = f"""
    models:
      served: {{backend: openai, base_url: "{url}", model: m, prompt_format: chat}}
    evals:
      shop: {{task: shop.py:Shop}}
"""
        project, counts, failure = shop.run(config, "served")
    assert not failure
    rows = read_rows(project.lake, "select status, error, result, prompt_tokens, output_tokens from episodes order by result")
    assert [tuple(row.values()) for row in rows] == [("done", None, str(n), 10 * (n + 2), 5 * (n + 2)) for n in range(1, 5)]
    assert counts["turns"] == 18
    asked = [body for body in _Chat.bodies if "tools" in body]
    assert len(asked) == 18
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["put", "price"]
    broken = read_rows(project.lake, "select arguments, error from tool_calls where arguments = '{broken'")
    assert len(broken) == 4
    assert all("no JSON object" in row["error"] for row in broken)
    last = max((body["messages"] for body in asked), key=len)
    assert last[1]["tool_calls"][1]["function"]["arguments"] == "{}", "servers refuse what is no JSON"
    assert [message["role"] for message in last[:4]] == ["user", "assistant", "tool", "tool"]


@pytest.mark.long
def test_a_server_that_forces_no_call_is_an_error(shop: Shop, write: Callable[[str, str], Path]) -> None:
    """`tool_choice` is sent. An answer without a call is an error, as servers exist that leave it out without a word."""
    whole = f"""{TASK}
        async def episode(self, sample, roles, tools):
            messages = list(sample.messages)
            first = await roles.subject.ask(messages, tools=tools.definitions, tool_choice="required")
            messages += [first.message, *[await tools.call(each) for each in first.tool_calls]]
            messages += [ed.Message(ed.Role.USER, "5")]
            return await roles.subject.ask(messages, tools=tools.definitions, tool_choice="price")
"""
    write("shop.py", whole)
    with _chat_server() as url:
        config = f"""
    models:
      served: {{backend: openai, base_url: "{url}", model: m, prompt_format: chat, timeout_s: 10}}
    evals:
      shop: {{task: shop.py:Shop, limit: 1}}
"""
        project, _, failure = shop.run(config, "served")
    assert not failure
    sent = [body["tool_choice"] for body in _Chat.bodies if "tool_choice" in body]
    assert sent[0] == "required"
    assert sent[1] == {"type": "function", "function": {"name": "price"}}
    (row,) = read_rows(project.lake, "select status, error from episodes")
    assert row["status"] == "error"
    assert "calls no tool, where tool_choice demands price" in row["error"]
    assert len(sent) == 2, "another attempt would be paid for the same answer"
