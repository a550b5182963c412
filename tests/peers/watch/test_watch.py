"""The watch on peers, by small peers that have a fault each. Nothing is fetched."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError
from tests.peers.every_name.comparison import Compared
from tests.peers.watch import __main__ as program
from tests.peers.watch import watched_eval_framework, watched_lighteval, watched_lm_eval, watching
from tests.peers.watch.environments import environment_with, newest_release, of_release, python_of
from tests.peers.watch.outcomes import Look, Looked, Row, page, table
from tests.peers.watch.watching import by_halves

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "reference" / "peers.md"


@dataclass
class Fake:
    """A peer with names that are looked at as they are given; an exception among them ends the look."""

    name: str
    found: Sequence[Looked | BaseException]
    installs: Exception | None = None
    what = "invented names"

    @property
    def distribution(self) -> str:
        return f"watched-{self.name}"

    def interpreter(self) -> str:
        return sys.executable

    def environment(self, folder: Path, release: str) -> Path:
        if self.installs is not None:
            raise self.installs
        return Path(sys.executable)

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        def found() -> Iterator[Looked]:
            for each in self.found[:most]:
                if isinstance(each, BaseException):
                    raise each
                yield each

        return Look(len(self.found), found())


WELL = Fake("well", [Looked("sums", "equal"), Looked("judged", "refused", "the metric of judged asks another model")])
PEERS = {
    each.name: each
    for each in (
        WELL,
        Fake("changed", [Looked("sums", "equal"), Looked("words", "different", "prompt: 'a' is not 'b|c'")]),
        Fake("absent", [Looked("sums", "equal")], RequirementError("no wheel fits")),
        Fake("dying", [Looked("sums", "equal"), ValueError("a trace\nthe process died"), Looked("words", "equal")]),
    )
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index in a folder, which pip uses alone."""
    for name, releases in {
        "watched-well": {"1.0": ">=3.9", "1.2": ">=3.9", "2.0": ">=3.30", "3.0rc1": ">=3.9"},
        "watched-changed": {"1": ""},
    }.items():
        (tmp_path / "index" / name).mkdir(parents=True)
        links = [
            f'<a href="{name.replace("-", "_")}-{release}-py3-none-any.whl" data-requires-python="{python.replace(">", "&gt;")}">it</a>'
            for release, python in releases.items()
        ]
        (tmp_path / "index" / name / "index.html").write_text("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>")
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": f"file://{tmp_path}/index", "PIP_QUIET": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "index"


@pytest.fixture
def run(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the program on the fakes; gives the exit status, and the row of cells by package."""
    monkeypatch.setattr(program, "PEERS", PEERS)
    for name in ("HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that what the program sets is forgotten

    def started(*arguments: str) -> tuple[int, dict[str, list[str]], str]:
        releases = [text for name in PEERS for text in ("--release", f"{name}=1.0")]
        status = program.main(
            ["--environments", str(tmp_path / "environments"), *(releases if "--only" not in arguments else []), *arguments]
        )
        out = capsys.readouterr().out
        cells = {
            line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ")[1:]
            for line in out.splitlines()
            if line.startswith("| watched")
        }
        return status, cells, out

    return started


def test_each_fault_has_its_row_and_the_others_go_on(run: Any) -> None:
    status, cells, out = run()
    python = python_of(sys.executable)
    assert status == 1
    # names, looked at, described, equal, partly, different, refused, not seen
    assert cells["watched-well"] == ["1.0", python, "2", "2", "1", "1", "0", "0", "1", "0"]
    assert cells["watched-changed"] == ["1.0", python, "2", "2", "2", "1", "0", "1", "0", "0"]
    assert cells["watched-absent"] == ["1.0", "", "", *["could not look"] * 7]
    assert cells["watched-dying"] == ["1.0", python, "3", "1", "1", "1", "0", "0", "0", "0"]
    assert "| absent | all | could not look | no wheel fits |" in out
    assert "| dying | the others: the look ended after 1 | could not look | the process died |" in out
    assert "| well | 1 | refused | the metric of NAME asks another model |" in out
    assert "- changed 1.0, `words`: prompt: 'a' is not 'b\\|c'" in out


def test_the_status_is_zero_without_a_difference(run: Any) -> None:
    assert run("--only", "well", "--release", "well=1.0")[0] == 0
    assert run("--only", "absent,dying", "--release", "absent=1", "--release", "dying=1")[0] == 0
    assert run("--only", "changed", "--release", "changed=1", "--names", "1")[0] == 0


def test_the_newest_release_is_taken_or_its_lack_is_the_reason(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(distribution: str, python: str) -> str:
        if distribution == "watched-dying":
            raise LookupError(f"the index names no release of {distribution} for Python {python}")
        return "1.2"

    monkeypatch.setattr(watching, "newest_release", newest)
    status, cells, out = run("--only", "well,dying")
    assert (status, cells["watched-well"][0]) == (0, "1.2")
    assert cells["watched-dying"] == ["could not look", "", "", *["could not look"] * 7]
    assert "the index names no release of watched-dying" in out


@pytest.mark.long  # pip starts three times
def test_the_newest_release_is_the_one_of_the_index(index: Path) -> None:
    assert [newest_release("watched-well", python) for python in ("3.11", "3.30")] == ["1.2", "2.0"]
    with pytest.raises(LookupError, match=r"no release of watched-dying for Python 3\.11: ERROR: No matching distribution"):
        newest_release("watched-dying", "3.11")


def test_an_interrupt_keeps_what_was_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Fake("stopped", [Looked("sums", "equal"), KeyboardInterrupt(), Looked("words", "equal")])
    monkeypatch.setattr(program, "PEERS", {"stopped": stopped, **PEERS})
    status, cells, out = run("--release", "stopped=1.0")
    assert (status, cells.keys()) == (0, {"watched-stopped"})
    assert cells["watched-stopped"][2:] == ["3", "1", "1", "1", "0", "0", "0", "0"]
    assert "it was interrupted" in out


def test_an_unknown_name_is_refused(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--only", "wel")
    assert "found wel; expected some of: well, changed, absent, dying" in capsys.readouterr().err


def test_a_page_has_the_date_and_the_same_table(run: Any, tmp_path: Path) -> None:
    out = run("--write", str(tmp_path / "page.md"))[2]
    assert out.strip() in (tmp_path / "page.md").read_text()
    assert "watched-well" in out
    assert "Looked at on 3 March 2026." in page([], date(2026, 3, 3))


def test_reasons_are_counted_without_their_names() -> None:
    looked = [Looked(name, "refused", f"task {name} asks another model") for name in ("one", "two")] + [Looked("three", "refused", "other")]
    assert Row("it", "it", found=looked).reasons("refused") == [("task NAME asks another model", 2), ("other", 1)]
    failing = [Looked(str(n), "partly", f"no file: HTTPSConnectionPool(host='h', port=443): at 0x{n}") for n in range(2)]
    assert Row("it", "it", found=failing).reasons("partly") == [("no file: an address", 2)]
    assert "| it | 2 | refused | task NAME asks another model |" in table([Row("it", "it", found=looked)])


def test_one_name_takes_no_other_with_it() -> None:
    asked = []

    def ask(names: Sequence[str]) -> Mapping[str, int]:
        asked.append(len(names))
        if "c" in names:
            raise OSError("died")
        return {name: len(name) for name in names}

    found = dict(by_halves(["a", "b", "c", "d", "e"], ask))
    assert isinstance(found.pop("c"), OSError)
    assert found == dict.fromkeys("abde", 1)
    assert asked == [5, 2, 3, 1, 2]


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Compared("it", prompts=2, values=3), "equal"),
        (Compared("it", prompts=2, errors=3), "partly"),
        (Compared("it", prompts=2, values=3, lacking={"no Java"}), "partly"),
        (Compared("it", prompts=2, values=3, lacking={"no Java"}, differences=["a prompt"]), "different"),
        (Compared("it", refused="asks another model"), "refused"),
    ],
)
def test_words_of_eval_framework(outcome: Compared, word: str) -> None:
    assert watched_eval_framework.word_of(outcome).word == word


class Registry:
    """A registry with one benchmark, `sums`; a release that fails on its own is not compared."""

    subjects = ("all",)

    def benchmark(self, name: str, folder: Path) -> "Registry":
        if name == "judged":
            raise TaskDefinitionError("asks another model")
        return self

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[str]:
        return []

    def read(self, *_: object, **__: object) -> Any:
        raise OSError("this side broke")


@pytest.mark.parametrize(
    ("name", "theirs", "word", "reason"),
    [
        ("sums", OSError("a trace\nkilled"), "unseen", "the release itself ended: killed"),
        ("sums", {"0": {"error": "ImportError: x"}, "2": {"error": "ImportError: x"}}, "unseen", "ImportError: x"),
        ("judged", {"0": {"error": "ImportError: x"}}, "refused", "asks another model"),
        ("sums", {"0": {"samples": [], "subjects": ["all"]}}, "different", "this project fails: OSError: this side broke"),
    ],
)
def test_failures_beside_eval_framework(name: str, theirs: Any, word: str, reason: str) -> None:
    looked = watched_eval_framework.looked(Registry(), name, theirs)  # type: ignore[arg-type]
    assert (looked.word, reason in looked.reason) == (word, True), looked


MADE = {"documents": [1], "values": [{"em": 1.0}], "aggregated": {"em": 1.0}}


@pytest.mark.parametrize(
    ("ours", "theirs", "word", "reason"),
    [
        ({}, {}, "equal", ""),
        ({"documents": [2]}, {}, "different", "documents at 0 examples, text"),
        ({"values": [{"em": 0.0}]}, {}, "different", "em: 0.0 is not 1.0"),
        ({"values": [{}]}, {}, "different", "em: None is not 1.0"),
        ({"aggregated": {"em": 0.5}}, {}, "different", "aggregates"),
        ({}, {"failed": {"bleu": "OSError: no network"}}, "partly", "cannot compute bleu: OSError: no network"),
        ({"values": [{"em": 1.0, "bleu": 2.0}]}, {"failed": {"bleu": "OSError"}}, "different", "is not an error"),
        ({"values": [{}], "aggregated": {}}, {"values": [{}], "aggregated": {}}, "partly", "no value"),
        ({"refused": "runs code"}, {}, "refused", "runs code"),
        ({"refused": "runs code", "documents": [2]}, {}, "different", "documents"),
        (None, {"problem": "TypeError: x"}, "described", "lighteval itself fails: TypeError: x"),
        ({"documents": None, "problem": "asks about images"}, {}, "refused", "images"),
        ({"documents": None, "problem": "KeyError: x"}, {}, "different", "KeyError: x"),
    ],
)
def test_words_of_lighteval(ours: Any, theirs: Any, word: str, reason: str) -> None:
    mine = {key: value for key, value in {"refused": None, **MADE, **(ours or {})}.items() if value is not None or key == "refused"}
    others = theirs if "problem" in theirs else {"failed": {}, **MADE, **theirs}
    looked = watched_lighteval.word_of("it", [{"shots": 0, "is_chat": False, "ours": mine, "theirs": others}])
    assert (looked.word, reason in looked.reason) == (word, True), looked


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (AssertionError("a trace\nkilled"), "unseen"),
        (RequirementError("no bubblewrap"), "unseen"),
        (DataError("a worker died"), "different"),
    ],
)
def test_a_file_of_lighteval_that_fails(error: Exception, word: str) -> None:
    looked = watched_lighteval.failed("a.file", error)
    assert (looked.word, str(error).splitlines()[-1] in looked.reason) == (word, True)


def test_a_process_of_lm_eval_that_dies_keeps_what_it_found(tmp_path: Path) -> None:
    lines = 'print(3); print(\'["arc", "equal", ""]\', flush=True); raise SystemExit("no memory")'
    look = watched_lm_eval.read_lines([sys.executable, "-c", lines], tmp_path / "errors.txt")
    assert (look.names, next(look.found)) == (3, Looked("arc", "equal"))
    with pytest.raises(LookupError, match="status 1: no memory"):
        next(look.found)
    with pytest.raises(LookupError, match="status 1: nothing at all"):
        watched_lm_eval.read_lines([sys.executable, "-c", 'raise SystemExit("nothing at all")'], tmp_path / "errors.txt")


def test_a_registry_takes_the_release_that_is_looked_at() -> None:
    assert of_release(watched_lighteval.LightevalRegistry, "9.9").RELEASE == "9.9"
    assert of_release(watched_eval_framework.EvalFrameworkRegistry, "9.9") is watched_eval_framework.EvalFrameworkRegistry


@pytest.mark.long  # makes an environment
def test_an_environment_beside_this_one(index: Path, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="No matching distribution found for watched-well==7"):
        environment_with(tmp_path / "made", ["watched-well==7"], is_beside=True)
    python = environment_with(tmp_path / "made", ["numpy"], is_beside=True)
    assert python_of(python) == python_of(sys.executable)


@pytest.mark.skipif(not DOCUMENT.is_file(), reason="the page is not written")
def test_the_page_of_the_documentation_is_made_by_the_watch() -> None:
    """Its counts add up, and no package is left out."""
    text = DOCUMENT.read_text()
    assert text.startswith(page([], date(2026, 1, 1)).partition("Looked at")[0])
    counts = {
        line.split(" | ")[0]: [cell.strip("| ") for cell in line.split(" | ")][1:]
        for line in text.splitlines()
        if re.match(r"\| [a-z-]+ \| \d+\.", line)
    }
    assert [name.removeprefix("| ") for name in counts] == [peer.distribution for peer in program.PEERS.values()]
    for cells in counts.values():
        looked, described, *_, refused, unseen = (int(cell.replace(",", "")) for cell in cells[3:])
        assert looked == described + refused + unseen > 0
