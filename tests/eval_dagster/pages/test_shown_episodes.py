"""Episodes on the pages of samples: the first wrong call is marked."""

import textwrap
from pathlib import Path

import pytest
from page_contents import content_of
from starlette.testclient import TestClient

from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.server.application import application
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.results.episodes import Step, marked
from eval_dagster.stages.partition import STAGES, StageFailure

FILE = '''
    import json

    import eval_dagster as ed


    def price(item: str) -> float:
        """The price of an item."""
        return {"apple": 0.5}[item]


    class Right(ed.CompletionMetric):
        NAME = "right"

        def calculate(self, completion):
            ed.explain("answer", "call 2: price(plum)")
            return 0.0


    class Shop(ed.EpisodeTask):
        """A question about prices."""

        NAME = "Shop"
        DATASET_PATH = "shop"
        SAMPLE_SPLIT = "test"
        METRICS = (Right,)
        TOOLS = (price,)

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(2)]}

        def _get_instruction_text(self, item):
            return f"What do an apple and a plum cost in shop {item['n']}?"

        def _get_ground_truth(self, item):
            return "1"


    class Read(Shop):
        """The same, without a tool that is called."""

        async def episode(self, sample, roles, tools):
            answer = await roles.subject.ask(sample.messages, tools=tools.definitions)
            return json.dumps([call.name for call in answer.tool_calls])


    def call(name, **arguments):
        return json.dumps({"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}})


    def shopper(request):
        if "price(" not in request.prompt:
            calls = (call("price", item="apple"), call("price", item="plum"))
            return ed.ModelResponse(text=("",), finish_reason=("stop",), tool_calls=(calls,))
        return "I do not know."
'''
CONFIG = """
    models:
      shopper: {backend: scripted, function: "shop.py:shopper"}
    evals:
      shop: {task: shop.py:Shop}
      read: {task: shop.py:Read}
"""


@pytest.mark.parametrize("name", [pytest.param("shop", marks=pytest.mark.long), "read"])
def test_a_call_that_a_metric_names_is_marked(tmp_path: Path, name: str) -> None:
    """Called by the task, or only read."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(FILE))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    outcomes = list(evaluate(project, [(name, "shopper")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert not [each for each in outcomes if isinstance(each, StageFailure)]
    publish(project.lake)
    page = next(path for each in outcomes for path in getattr(each, "files", {}).values())
    for each in content_of(page.read_bytes())["samples"]:
        marks = [(who, *more) for who, _, *more in each["now"]["steps"] if more]
        assert marks == [('price({"item": "plum"})', "the first wrong call")]
    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    (sample, *_) = read_rows(project.lake, "select sample_id from episodes order by sample_id")
    shown = client.get(f"/sample?eval={name}&model=shopper&sample={sample['sample_id']}").text
    before, _ = shown.split('<span class="pill bad">the first wrong call</span>')
    assert before.endswith("</code> ")
    assert "plum" in before[-60:]


@pytest.mark.parametrize(
    ("text", "marked_at"),
    [
        ("call 1: a", 1),
        ("call 3: c", 5),
        ("turn 2, call 1: c", 5),
        ("turn 1, call 2: b", 2),
        ("turn 2, call 2: d", None),
        ("no call", None),
        (None, None),
        ("after call 1: 2 calls were expected", None),
    ],
)
def test_an_explanation_names_a_call_of_all_or_of_a_turn(text: str | None, marked_at: int | None) -> None:
    steps = [
        Step(who="user", text="one"),
        Step(who="a({})", text="", is_call=True),
        Step(who="b({})", text="", is_call=True),
        Step(who="model", text="done"),
        Step(who="user", text="two"),
        Step(who="c({})", text="", is_call=True),
    ]
    assert [position for position, each in enumerate(marked(steps, [text, "call 2: later"][:1])) if each.is_wrong] == (
        [] if marked_at is None else [marked_at]
    )
