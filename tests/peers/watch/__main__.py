# ruff: noqa: T201
"""Looks at the newest releases of other packages, and prints a table: `python -m tests.peers.watch`.

The exit status is 1 if a name that is described gives something else than in its package.
"""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.peers.watch.outcomes import page, table
from tests.peers.watch.watched_eval_framework import EvalFramework
from tests.peers.watch.watched_inspect_ai import InspectAi
from tests.peers.watch.watched_lighteval import Lighteval
from tests.peers.watch.watched_lm_eval import LmEval
from tests.peers.watch.watching import Peer, watch

PEERS: dict[str, Peer] = {each.name: each for each in (EvalFramework(), Lighteval(), LmEval(), InspectAi())}


def main(arguments: list[str]) -> int:
    """Look, print, and write the page if one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.watch", description=__doc__)
    parser.add_argument("--only", help=f"packages, with commas between them: {','.join(PEERS)}")
    parser.add_argument("--release", action="append", default=[], metavar="NAME=RELEASE", help="a release instead of the newest")
    parser.add_argument(
        "--names",
        type=int,
        help="look at this many names of each package at most; of lighteval at the tasks of as many files",
    )
    parser.add_argument("--environments", type=Path, default=Path("build/peers"), help="the folder that keeps them (build/peers)")
    parser.add_argument("--write", type=Path, help="write the table with its date as a page of the documentation")
    given = parser.parse_args(arguments)
    only = given.only.split(",") if given.only else list(PEERS)
    releases = dict(each.partition("=")[::2] for each in given.release)
    if unknown := sorted({*only, *releases} - PEERS.keys()):
        parser.error(f"found {', '.join(unknown)}; expected some of: {', '.join(PEERS)}")
    folder = given.environments.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # Rows are invented, and nothing is fetched from a hub. What the packages say is kept apart from the user's own.
    os.environ |= {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(folder / "cache"), "PIP_QUIET": "1"}
    rows = []
    for row in watch([PEERS[name] for name in only], releases, folder, given.names, lambda line: print(line, file=sys.stderr, flush=True)):
        rows.append(row)
        if given.write:  # after each package, so that a run that is killed leaves what it found
            given.write.write_text(page(rows, datetime.now(UTC).date()), "utf-8")
    print(table(rows))
    return int(any(row.count("different") for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
