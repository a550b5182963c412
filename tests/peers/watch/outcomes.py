"""The findings of a look at a peer, name by name, and their table."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

Word = Literal["equal", "partly", "different", "refused", "described", "unseen"]
"""`partly`: all that could be compared is equal, and some values could not be compared. `described`: the name is described, and nothing of
it was compared. `unseen`: it could not be looked at."""
WORDS: Sequence[Word] = ("equal", "partly", "different", "refused", "described", "unseen")
DESCRIBED: Sequence[Word] = ("equal", "partly", "different", "described")
NOT_SEEN = "could not look"
_HEADINGS = {"described": "described, not compared", "unseen": NOT_SEEN}
_MOST_REASON = 200
_ADDRESS = re.compile(r"'?https?://[^\s']+'?|HTTPS?ConnectionPool\(.*")
"""An address in the reason of a package that cannot be reached; one that fails differs from try to try."""
_PAGE = """# Releases of other packages

<!-- `make peers WRITE=docs/reference/peers.md` writes this page. -->

`make peers` asks pip's index for the newest release of each package, and compares what its benchmarks give by themselves with what they
give through this project: see [Benchmarks of other packages](../how-to/other-packages.md) and
[Import logs of inspect_ai](../how-to/import-inspect.md). A scheduled job does the same each week, and fails if something differs.

Looked at on {day}.

{table}
- *looked at*: names that the comparison came to; *names* are all that the release has.
- *described*: this project makes an eval of it. Some are described and not compared.
- *equal*: everything that was compared is the same. *partly*: everything that could be compared is the same, and some values could not be.
- *different*: something is not the same; the differences are listed by name.
- *refused*: an eval of it is an error with this reason.
- *not seen*: it could not be looked at, so nothing is known of it.
"""


@dataclass(frozen=True)
class Looked:
    """The finding about one name of a release."""

    name: str
    word: Word
    reason: str = ""


def different(name: str, differences: Sequence[str]) -> Looked:
    """A name with its first difference."""
    return Looked(
        name, "different", differences[0] if len(differences) == 1 else f"{len(differences)} differences, first: {differences[0]}"
    )


@dataclass(frozen=True)
class Look:
    """A look at a release."""

    names: int
    """How many names the release has."""
    found: Iterator[Looked]


@dataclass(frozen=True)
class Row:
    """A package of the table."""

    name: str
    distribution: str
    what: str = ""
    release: str | None = None
    """None if the newest release is not known."""
    python: str = ""
    """The version of Python of its environment."""
    names: int | None = None
    found: Sequence[Looked] = ()
    problem: str | None = None
    """Why the look ended early, or could not begin."""

    def count(self, *words: Word) -> int:
        """How many names have one of these words."""
        return sum(each.word in words for each in self.found)

    def of(self, word: Word) -> list[Looked]:
        """The names with a word."""
        return [each for each in self.found if each.word == word]

    def reasons(self, word: Word) -> list[tuple[str, int]]:
        """The reasons for a word and the names of each, most first."""
        return Counter(_grouped(each) for each in self.found if each.word == word).most_common()


def _grouped(looked: Looked) -> str:
    """A reason without the name, so that names with the same reason are counted together."""
    return _short(_ADDRESS.sub("an address", " ".join(looked.reason.replace(looked.name, "NAME").split())))


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown: the counts, what was compared, the reasons, and each difference by name."""
    lines = [
        "| package | release | Python | names | looked at | described | equal | partly | different | refused | not seen |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        *(f"- {row.name}: {row.what}" for row in rows if row.found),
    ]
    if reasons := [line for row in rows for line in _reasons(row)]:
        lines += ["", "| package | names | are | reason |", "|---|---|---|---|", *reasons]
    if different := [f"- {row.name} {row.release}, `{each.name}`: {_cell(each.reason)}" for row in rows for each in row.of("different")]:
        lines += ["", "Differences:", "", *different]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    counts: Iterable[object] = (
        [len(row.found), row.count(*DESCRIBED), *(row.count(word) for word in ("equal", "partly", "different", "refused", "unseen"))]
        if row.found
        else [NOT_SEEN] * 7
    )
    cells = [row.distribution, row.release or NOT_SEEN, row.python, "" if row.names is None else row.names, *counts]
    return f"| {' | '.join(f'{each:,}' if isinstance(each, int) else str(each) for each in cells)} |"


def _reasons(row: Row) -> Iterator[str]:
    if row.problem is not None:
        ended = f"the others: the look ended after {len(row.found):,}" if row.found else "all"
        yield f"| {row.name} | {ended} | {_HEADINGS['unseen']} | {_cell(row.problem)} |"
    for word in ("refused", "partly", "described", "unseen"):
        for reason, count in row.reasons(word):
            yield f"| {row.name} | {count:,} | {_HEADINGS.get(word, word)} | {_cell(reason)} |"


def _cell(text: str) -> str:
    """A text for a cell of Markdown, on one line."""
    return _short(" ".join(text.split())).replace("|", "\\|").replace("<", "\\<")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_REASON else f"{text[: _MOST_REASON - 1]}…"


def page(rows: Sequence[Row], day: date) -> str:
    """The table as a page of the documentation, with its date."""
    return _PAGE.format(day=f"{day.day} {day:%B %Y}", table=table(rows))
