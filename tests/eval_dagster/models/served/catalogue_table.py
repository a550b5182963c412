"""The page of the documentation with the catalogue of what a server can do wrong, and what comes of it."""

from collections.abc import Mapping
from pathlib import Path

from servers.catalogue import CATALOGUE, KINDS, Wrong

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "server-faults.md"
SHARE = 0.2
Words = Mapping[tuple[str, str, float], str]
"""Outcomes by the kind, the name of the entry, and the share of the requests; 0 is one prompt alone."""
_HEAD = """# What a server can do wrong

Each row is something that a server does wrong, at a fifth of all requests and for one prompt alone: where choices are scored as echoed
prompts (*echo*) or one token at a time (*forced*), and where texts of a chat are generated (*chat*). A test writes the table.

- `same`: the answers are those of a server that does nothing wrong. Requests were sent again, or what was wrong says nothing about the
  answer. At a fifth of the requests, the few that go wrong each time are errors of their samples.
- `error`: an error of the sample, which is counted. The next run asks for it alone.
- `kept error`: the provider refused the prompt. The error of the sample is kept.
- `not tried`: the entry is newer than the last whole run of that test.

No eval was lost, and no other number came out. No right answer was asked for twice, except answers that came too late, and those in whose
place another answer came on the same connection. What no client can see is not in the table, such as the answer to a request of somebody
else, or of an earlier run, under an id of its own.

"""


def name_of(wrong: Wrong) -> str:
    return f"{wrong.area}: {wrong.name}"


def page(words: Words) -> str:
    """The page. A dash stands where an entry does not apply."""
    columns = [(kind, share) for share in (SHARE, 0.0) for kind in KINDS]
    heads = [f"{kind}, {'a fifth' if share else 'one prompt'}" for kind, share in columns]
    lines = [f"| what | {' | '.join(heads)} |", f"|---|{'---|' * len(columns)}"]
    for wrong in CATALOGUE:
        cells = [words.get((kind, name_of(wrong), share), "not tried") if kind in wrong.kinds else "–" for kind, share in columns]
        lines.append(f"| {name_of(wrong)} | {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"
