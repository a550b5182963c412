"""Looks at peers one after the other. Whatever fails is the problem of its row, and the others go on."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar

from tests.peers.watch.environments import newest_release, python_of
from tests.peers.watch.outcomes import Look, Looked, Row

Say = Callable[[str], None]
T = TypeVar("T")
INTERRUPTED = "it was interrupted"


class Peer(Protocol):
    """A package that is watched."""

    name: str
    distribution: str
    """The package as the index names it."""
    what: str
    """A sentence of the table: which names are compared, and by which values."""

    def interpreter(self) -> str:
        """An interpreter that is new enough for the package. Raises `RequirementError` without one."""

    def environment(self, folder: Path, release: str) -> Path:
        """The interpreter of an environment with the release, which is made in the folder unless it is there."""

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        """Look at the release of an environment, at most at a number of names."""


def watch(peers: Sequence[Peer], releases: Mapping[str, str], folder: Path, most: int | None, say: Say) -> Iterator[Row]:
    """Look at peers, and give the row of each when it is known. An interrupt ends the look, and keeps what was found.

    Args:
        peers: The peers.
        releases: Releases by the peers' names; of others the newest is taken.
        folder: Keeps the environments by release.
        most: How many names of each are looked at; None for all that are drawn.
        say: Takes lines about the progress.
    """
    for peer in peers:
        row = _looked(peer, releases.get(peer.name), folder, most, say)
        yield row
        if row.problem == INTERRUPTED:
            return


def _looked(peer: Peer, release: str | None, folder: Path, most: int | None, say: Say) -> Row:
    found: list[Looked] = []
    names, version, problem = None, "", None
    try:
        release = release or newest_release(peer.distribution, python_of(peer.interpreter()))
        say(f"{peer.name} {release}: making its environment")
        python = peer.environment(folder, release)
        version = python_of(python)
        say(f"{peer.name} {release}: looking, with Python {version}")
        with TemporaryDirectory() as scratch:
            look = peer.look(python, release, Path(scratch), most)
            names = look.names
            for each in look.found:
                found.append(each)
                if each.word == "different":
                    say(f"{peer.name} {release}: {each.name} differs: {each.reason[:300]}")
                if len(found) % 10 == 0:
                    say(f"{peer.name} {release}: {_counts(found)}")
    except (Exception, KeyboardInterrupt) as error:  # of a package that is not known yet, so anything
        problem = INTERRUPTED if isinstance(error, KeyboardInterrupt) else last_line(error)
        say(f"{peer.name} {release or ''}: could not look: {problem}")
    say(f"{peer.name} {release or ''}: {_counts(found)}")
    return Row(peer.name, peer.distribution, peer.what, release, version, names, tuple(found), problem)


def _counts(found: Sequence[Looked]) -> str:
    counts = Counter(each.word for each in found)
    return f"{len(found)} names" + "".join(f", {count} {word}" for word, count in counts.most_common())


def last_line(error: Exception) -> str:
    """The reason that an error gives, without the trace of another process before it."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def by_halves(names: Sequence[str], ask: Callable[[Sequence[str]], Mapping[str, T]]) -> Iterator[tuple[str, T | Exception]]:
    """Ask for all names at once; if that fails, for each half, so that one name takes no other with it."""
    try:
        found = ask(names)
    except Exception as error:  # a process of another package that died, or said something else
        if len(names) == 1:
            yield names[0], error
            return
        middle = len(names) // 2
        yield from by_halves(names[:middle], ask)
        yield from by_halves(names[middle:], ask)
        return
    yield from ((name, found[name]) for name in names)
