"""Whatever a server does wrong, the numbers are those of a server that does nothing wrong, or samples are counted errors."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from catalogue_runs import Outcome, runs_of
from catalogue_table import PAGE, SHARE, name_of, page
from servers.catalogue import CATALOGUE, KINDS

QUICK = {
    "chat": (
        *("status: 403 with an error object", "finish reason: half a text, `network_error`", "body: an empty text and nothing else"),
        *("body: the text as reasoning", "connection: a second answer, late, on the same connection"),
    ),
    "echo": ("token: another prompt with the same end", "log-probability: all those of the token before"),
}
"""Entries that are tried in each run of the tests, at a fifth of the requests."""
ALONE = ("finish reason: half a text, `gateway_drain`", "body: `choices` twice, other ones last")
"""Entries that are tried for one prompt alone."""
TRIED = [*((kind, name, SHARE, 20) for kind, names in QUICK.items() for name in names), *(("chat", name, 0.0, 10) for name in ALONE)]

_PARTS = 12
"""Parts of the catalogue that are tried beside each other, of each kind."""


@pytest.fixture(scope="module", params=["chat", "echo"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.long
def test_a_part_of_the_catalogue(kind: str, tmp_path: Path) -> None:
    shown = {line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ")[1:] for line in PAGE.read_text().splitlines()}
    with runs_of(kind, tmp_path) as runs:
        for of_kind, name, share, samples in TRIED:
            if of_kind == kind:
                wrong = next(each for each in CATALOGUE if name_of(each) == name)
                outcome = runs.outcome(wrong, share, samples)
                assert outcome.problems == [], name
                assert shown[name][KINDS.index(kind) + (0 if share else len(KINDS))] == outcome.word, name


def test_the_page_names_each_entry_and_nothing_else() -> None:
    cells = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    names = [cell for cell in cells if ": " in cell]
    assert names == [name_of(each) for each in CATALOGUE]
    assert len(names) == len(set(names)) >= 60
    assert {each.area for each in CATALOGUE} >= {
        *("status", "connection", "body", "finish reason", "token", "log-probability", "usage", "identity", "time")
    }


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_the_whole_catalogue_makes_the_page(tmp_path: Path) -> None:
    """The page is written anew, and has to be what it was. Most of the time is waiting, so several processes share the catalogue."""
    parts = [(kind, first, tmp_path / f"{kind} {first}") for kind in KINDS for first in range(_PARTS)]
    outcomes: dict[tuple[str, str, float], Outcome] = {}
    with ProcessPoolExecutor(6, mp_context=multiprocessing.get_context("spawn")) as processes:
        for part in processes.map(_outcomes, parts):
            outcomes |= part
    assert {where: outcome.problems for where, outcome in outcomes.items() if outcome.problems} == {}
    before, after = PAGE.read_text(), page({where: outcome.word for where, outcome in outcomes.items()})
    PAGE.write_text(after)
    assert after == before, "the page is written anew: look at what changed"


def _outcomes(part: tuple[str, int, Path]) -> dict[tuple[str, str, float], Outcome]:
    kind, first, folder = part
    folder.mkdir()
    with runs_of(kind, folder) as runs:
        return {
            (kind, name_of(wrong), share): runs.outcome(wrong, share, samples)
            for wrong in CATALOGUE[first::_PARTS]
            if kind in wrong.kinds
            for share, samples in ((SHARE, 500), (0.0, 40))
        }
