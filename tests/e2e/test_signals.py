"""Each signal of a suite in each situation: what a person, a machine or a query is told. The table in the documentation is made here.

`EVAL_DAGSTER_SIGNALS=write` writes the table anew.
"""

import os
import re
import shutil
import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import dagster as dg
import duckdb
import pytest
from commands import run_command
from documents import DOCS
from hook_server import Hook, hook_server
from servers.stub import stub_server
from starlette.testclient import TestClient
from ui_servers import until

from eval_dagster.cli.servers.view_server import missing_nights
from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.files import Lake
from eval_dagster.pages.server.application import application
from eval_dagster.pages.server.nights import Watched

pytestmark = pytest.mark.e2e

PAGE = DOCS / "reference" / "signals.md"
SIGNALS = ("exit status", "gate job", "blocking check", "view", "report", "JUnit", "Markdown", "notice", "relation")
MODELS = ("a", "b")
EVALS = ("sums", "words")
N_ROWS = 40
CONFIG = """
    models:
      a: {backend: scripted, function: "a.py:answer"}
      b: {backend: scripted, function: "b.py:answer"}
    evals:
      sums: {task: "sums.py:Sums"}
      words: {task: "words.py:Words"}
    suites:
      nightly: {evals: [sums, words], models: [a, b], notify: [SIGNALS_HOOK], cron: "0 2 * * *"}
"""
TASK = '''
    from eval_dagster import BaseTask, ExactMatch, ResponseType


    class {name}(BaseTask[str]):
        """Questions whose answer is their number."""

        NAME = "{name}"
        DATASET_PATH = "./{folder}"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("all",)

        def _get_instruction_text(self, item):
            return f"{name} {{item['question']}}:"

        def _get_ground_truth(self, item):
            return str(item["answer"])
'''
MODEL = """
    import re

    def answer(request):
        number = int(re.search(r"(\\d+):", request.prompt)[1])
        {before}
        return str(number) if number % 10 else "none"
"""


class Checkout:
    """A project with a suite of two evals and two models, which are right in nine of ten questions."""

    def __init__(self, folder: Path, hook: Hook, server: str) -> None:
        self.folder, self.hook, self.server = folder, hook, server
        folder.parent.mkdir(parents=True, exist_ok=True)

    @property
    def home(self) -> Path:
        return self.folder / ".eval_dagster"

    def write(self) -> None:
        self.folder.mkdir()
        (self.folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
        for name in MODELS:
            self.write_model(name)
        for name in EVALS:
            (self.folder / f"{name}.py").write_text(textwrap.dedent(TASK.format(name=name.capitalize(), folder=name)))
            self.write_rows(name, 0)

    def write_model(self, name: str, before: str = "pass") -> None:
        (self.folder / f"{name}.py").write_text(textwrap.dedent(MODEL.format(before=before)))

    def write_rows(self, name: str, start: int) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        rows = "".join(f"{number},{number}\n" for number in range(start, start + N_ROWS))
        (self.folder / name / "test.csv").write_text(f"question,answer\n{rows}")

    def change(self, old: str, new: str) -> None:
        """Replace a text in evals.yaml."""
        config = self.folder / "evals.yaml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "EVAL_DAGSTER_"))}
        environment |= {"EVAL_DAGSTER_CONFIG": str(self.folder / "evals.yaml"), "SIGNALS_HOOK": self.hook.address}
        return run_command(*arguments, folder=self.folder, environment=environment)

    def evaluate(self) -> dict[str, str]:
        """Evaluate and judge the suite; the words of each signal."""
        files = {name: self.folder / f"gate.{name}" for name in ("xml", "md")}
        for file in files.values():
            file.unlink(missing_ok=True)
        told = len(self.hook.notices)
        done = self.command("run", "--suite", "nightly", "--junit", str(files["xml"]), "--markdown", str(files["md"]))
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        notices = [notice["title"] for notice in self.hook.notices[told:]]
        return {
            "exit status": str(done.returncode),
            **self.dagster(),
            "view": self.viewed(),
            "report": _headline((self.home / "reports" / "nightly" / "latest.html").read_text()),
            "JUnit": _junit(files["xml"]),
            "Markdown": files["md"].read_text().splitlines()[0].removeprefix("## ").replace("nightly: ", "").split(":")[0].split(";")[0],
            "notice": "; ".join(notices).replace("nightly: ", "") or "none",
            "relation": self.verdicts(),
        }

    def dagster(self) -> dict[str, str]:
        """The gate's last run, and its check on `regressions`, as Dagster shows them."""
        with dg.DagsterInstance.from_config(str(self.home / "dagster")) as instance:
            [record, *_] = instance.get_run_records(dg.RunsFilter(job_name="gate_nightly"), limit=1)
            [check] = [
                event.dagster_event.asset_check_evaluation_data
                for event in instance.all_logs(record.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
                if event.dagster_event
            ]
        return {
            "gate job": record.dagster_run.status.value.lower(),
            "blocking check": "passed" if check.passed else f"failed ({check.severity.value.lower()})",
        }

    def viewed(self, watched: Watched | None = None) -> str:
        """The outcome of the last night on the start page of `view`."""
        with TestClient(application(CatalogReader(Lake(self.home)), watch=lambda: watched or Watched())) as client:
            page = client.get("/").text
        return _headline(page)

    def missed(self) -> str:
        """The notices of missing nights in the relation `notices`."""
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            rows = catalog.execute("select kind, count(*) from notices where suite = 'nightly' group by kind order by kind").fetchall()
        return ", ".join(f"{count} {kind} in `notices`" for kind, count in rows)

    def verdicts(self) -> str:
        with duckdb.connect(str(self.home / "evals.duckdb"), read_only=True) as catalog:
            rows = catalog.execute("select verdict from regressions where suite = 'nightly' order by eval, model, metric").fetchall()
        return ", ".join(f"{count} {verdict}" for verdict, count in Counter(str(verdict) for (verdict,) in rows).items())


def _headline(page: str) -> str:
    """The tone and the first words of a page's verdict."""
    found = re.search(r'<p class="line (\w+)">\W*(.*?)</p>', page, re.DOTALL)
    assert found, page[:2000]
    return f"{found[1]}: {re.split('[:;(]', found[2])[0].strip()}"


def _junit(file: Path) -> str:
    root = ElementTree.parse(file).getroot()
    cases = list(root.iter("testcase"))
    counts = Counter(
        "failed" if each.find("failure") is not None else "skipped" if each.find("skipped") is not None else "passed" for each in cases
    )
    return ", ".join(f"{counts[what]} {what}" for what in ("failed", "skipped", "passed") if counts[what])


def _worse(checkout: Checkout) -> None:
    checkout.write_model("a", "if number > 10: return 'none'")


def _accepted(checkout: Checkout) -> None:
    _worse(checkout)
    assert checkout.command("run", "--suite", "nightly").returncode == 1
    done = checkout.command("accept", "nightly", "--why", "a smaller model")
    assert done.returncode == 0, done.stderr


def _accepted_gap(checkout: Checkout) -> None:
    _one_model_missing(checkout)
    assert checkout.command("run", "--suite", "nightly").returncode == 1
    done = checkout.command("accept", "nightly", "--model", "b", "--why", "its weights are being moved")
    assert done.returncode == 0, done.stderr


def _one_model_missing(checkout: Checkout) -> None:
    checkout.change('b: {backend: scripted, function: "b.py:answer"}', "b: {backend: transformers, source: {folder: weights/b}}")


def _not_required(checkout: Checkout) -> None:
    checkout.change('cron: "0 2 * * *"', 'cron: "0 2 * * *", gate: {require: [sums]}')
    shutil.rmtree(checkout.folder / "words")


def _only_warned(checkout: Checkout) -> None:
    checkout.change('cron: "0 2 * * *"', 'cron: "0 2 * * *", gate: {severity: warn}')
    _worse(checkout)


def _proof_required(checkout: Checkout, margin: str) -> None:
    checkout.change('cron: "0 2 * * *"', f'cron: "0 2 * * *", gate: {{require_proof: true{margin}}}')
    checkout.write_model("a", "if number == 11: return 'none'")


def _nothing_comparable(checkout: Checkout) -> None:
    for name in EVALS:
        checkout.write_rows(name, 1000)


def _capped(checkout: Checkout) -> None:
    checkout.change(
        'b: {backend: scripted, function: "b.py:answer"}',
        f"b: {{backend: openai, base_url: {checkout.server}, model: stub, tokens_per_run: 1, canaries: 0}}",
    )


SITUATIONS: Mapping[str, Callable[[Checkout], None]] = {
    "all well": lambda checkout: checkout.write_model("a", "if number == 11: return 'none'"),
    "a result regressed": _worse,
    "a result regressed, with `severity: warn`": _only_warned,
    "the rows of an eval are gone": lambda checkout: shutil.rmtree(checkout.folder / "words"),
    "a task file is broken": lambda checkout: (checkout.folder / "words.py").write_text("def (\n") and None,
    "a task file is gone": lambda checkout: (checkout.folder / "words.py").unlink(),
    "the file of a model's function is gone": lambda checkout: (checkout.folder / "b.py").unlink(),
    "the rows of an eval are gone that `require` does not name": _not_required,
    "the weights of a model are gone": _one_model_missing,
    "nothing is comparable": _nothing_comparable,
    "half of the samples are errors": lambda checkout: checkout.write_model("a", "assert number % 2"),
    "a cap was reached": _capped,
    "a fall was accepted": _accepted,
    "a gap was accepted": _accepted_gap,
    "a proof is required that so few samples cannot give": lambda checkout: _proof_required(checkout, ""),
    "a proof is required, and there": lambda checkout: _proof_required(checkout, ", margin: 0.5"),
}
"""What happened between the first night and the second, by its name in the table."""
GREEN = {
    "all well": "good",
    "a fall was accepted": "good",
    "a gap was accepted": "warning",
    "a proof is required, and there": "good",
    "the rows of an eval are gone that `require` does not name": "warning",
}
"""The situations in which nothing fails, with the tone of the pages."""
WARNED = "a result regressed, with `severity: warn`"
"""Nothing fails either, and it is told as a result that regressed."""


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with hook_server() as hook:
        yield hook


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stub_server(tmp_path_factory.mktemp("stub")) as stub:
        yield stub.base_url


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, hook: Hook, server: str) -> tuple[Checkout, dict[str, str]]:
    """A suite after its first night, and what was told."""
    checkout = Checkout(tmp_path_factory.mktemp("first") / "project", hook, server)
    checkout.write()
    return checkout, checkout.evaluate()


@pytest.mark.long
def test_the_first_night(first: tuple[Checkout, dict[str, str]]) -> None:
    _compare("the first night", first[1])


@pytest.mark.long
def test_the_first_night_with_errors(hook: Hook, server: str, tmp_path: Path) -> None:
    """There is nothing to compare with, and the first result is none that later ones may be compared with."""
    checkout = Checkout(tmp_path / "project", hook, server)
    checkout.write()
    checkout.write_model("a", "assert number % 2")
    found = checkout.evaluate()
    _compare("half of the samples are errors on the first night", found)
    assert found["exit status"] == "1"
    assert found["blocking check"].startswith("failed")
    assert {found[signal].partition(":")[0] for signal in ("view", "report")} == {"bad"}


@pytest.mark.long
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_second_night(situation: str, first: tuple[Checkout, dict[str, str]], tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "project", first[0].hook, first[0].server)
    shutil.copytree(first[0].folder, checkout.folder, symlinks=True)
    SITUATIONS[situation](checkout)
    found = checkout.evaluate()
    _compare(situation, found)
    expected = "warning" if situation == WARNED else GREEN.get(situation, "bad")
    is_green = situation in GREEN
    assert (is_green or situation == WARNED) == (found["exit status"] == "0")
    assert (is_green or situation == WARNED) == (found["gate job"] == "success")
    assert found["blocking check"].startswith("passed" if is_green else "failed")
    assert {found[signal].partition(":")[0] for signal in ("view", "report")} == {expected}
    assert (is_green or situation == WARNED) == ("failed" not in found["JUnit"])
    assert found["Markdown"].startswith({"good": "✅", "warning": "⚠️", "bad": "❌"}[expected])
    assert is_green == (found["notice"] == "none")


@pytest.mark.long
@pytest.mark.parametrize("situation", ["the daemon is down", "evals.yaml cannot be read"])
def test_a_missing_night(situation: str, first: tuple[Checkout, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night that was due, and that nobody started. What the gate wrote is that of the night before."""
    checkout = Checkout(tmp_path / "project", first[0].hook, first[0].server)
    shutil.copytree(first[0].folder, checkout.folder, symlinks=True)
    checkout.change('cron: "0 2 * * *"', 'cron: "* * * * *", deadline_hours: 0.001')
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(checkout.folder / "evals.yaml"))
    monkeypatch.delenv("EVAL_DAGSTER_HOME", raising=False)
    assert missing_nights() == Watched(), "the cron is new"
    if situation == "evals.yaml cannot be read":
        checkout.change("suites:", "suits:")
    until(lambda: bool(missing_nights().missing), 120, lambda: "no night is missing")
    told = len(checkout.hook.notices)
    looked = checkout.command("check-nights")
    again = checkout.command("check-nights")
    notices = [notice["title"] for notice in checkout.hook.notices[told:]]
    assert looked.returncode == again.returncode == 1, looked.stdout
    latest = checkout.home / "reports" / "nightly" / "latest.html"
    found = {
        "exit status": "1 (`check-nights`)",
        "gate job": "not run",
        "blocking check": "not run",
        "view": checkout.viewed(missing_nights()),
        "report": f"bad: {re.search('<h1[^>]*>. nightly: the night that was due [^<]* (was not judged)</h1>', latest.read_text())[1]}",
        "JUnit": "not written",
        "Markdown": "not written",
        "notice": re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "(its time)", "; ".join(notices).replace("nightly: ", "")),
        "relation": checkout.missed(),
    }
    _compare(situation, found)


def _compare(situation: str, found: Mapping[str, str]) -> None:
    """See that the row of the table is what was found; write it where that is asked for."""
    assert list(found) == list(SIGNALS)
    row = f"| {situation} | {' | '.join(found.values())} |"
    text = PAGE.read_text()
    if os.environ.get("EVAL_DAGSTER_SIGNALS") == "write":
        line = re.compile(rf"^\| {re.escape(situation)} \|.*$", re.MULTILINE)
        PAGE.write_text(line.sub(lambda _: row, text) if line.search(text) else text)
    else:
        assert row in text.splitlines(), f"{row}\nis not in {PAGE.name}; EVAL_DAGSTER_SIGNALS=write writes it"
