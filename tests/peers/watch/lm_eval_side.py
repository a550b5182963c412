"""lm-eval's tasks beside this project's, in an environment with both: `python -m tests.peers.watch.lm_eval_side RELEASE [MOST]`.

The lines of its output are JSON: first the number of tasks, then a name, a word and a reason each.
"""

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lm_eval import index
from tests.peers.lm_eval.comparison import Report, compare
from tests.peers.lm_eval.coverage_of_names import reason_of, refusal
from tests.peers.lm_eval.drawn_names import drawn_names
from tests.peers.watch.outcomes import Looked, different
from tests.peers.watch.watched_lm_eval import DRAWN


def looks(most: int | None) -> Iterator[Looked]:
    """Tasks that are drawn, until enough are compared; then the others, which are described alone."""
    seen: set[str] = set()
    wanted = DRAWN if most is None else min(DRAWN, most)
    for name in drawn_names():
        if wanted == 0:
            break
        found = compared(name)
        wanted -= found.word in ("equal", "partly", "different")
        seen.add(name)
        yield found
    others = (name for name, entry in index.package_index().items() if entry.kind == "task" and name not in seen)
    for name in islice(others, most):
        try:
            reason = refusal(name)
        except Exception as error:  # of a task's own code
            yield Looked(name, "unseen", f"{type(error).__name__}: {error}")
        else:
            yield Looked(name, "described", "not drawn") if reason is None else Looked(name, "refused", reason)


def compared(name: str) -> Looked:
    """One task at no example and at its own number, as text and as messages."""
    try:
        with TemporaryDirectory() as folder:
            return word_of(name, compare([name], Path(folder) / "it"))
    except TaskDefinitionError as error:
        return Looked(name, "refused", reason_of(str(error)))
    except LookupError as error:
        own = "lm-eval itself fails on invented rows" if "lm-eval itself fails" in str(error) else "no invented rows fit"
        return Looked(name, "described", own)
    except Exception as error:  # of the comparison: what this project fails with is a difference of a report
        return Looked(name, "unseen", f"the comparison fails: {type(error).__name__}: {error}")


def word_of(name: str, reports: list[Report]) -> Looked:
    """The word for a task, from its reports."""
    differences = [f"{each.shots} examples, {each.model}: {difference}" for each in reports for difference in each.differences]
    if differences:
        return different(name, differences)
    if not all(each.requests and each.values for each in reports):
        return Looked(
            name, "partly", "at some number of examples, all examples of lm-eval hold the question itself, and nothing is compared"
        )
    return Looked(name, "equal")


def main() -> None:
    """Write the lines. What tasks print goes to the standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    index.VERSION = sys.argv[1]  # the release that is looked at, supported or not
    json.dump(sum(entry.kind == "task" for entry in index.package_index().values()), out)
    for each in looks(int(sys.argv[2]) if len(sys.argv) > 2 else None):
        out.write("\n" + json.dumps([each.name, each.word, each.reason]))
        out.flush()
    out.write("\n")
    out.flush()


if __name__ == "__main__":
    main()
