"""One run at a time judges a suite, and an evaluation is judged once, even if two daemons request its gate."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from eval_dagster.assets.tags import SINCE_TAG, SUITE_TAG
from eval_dagster.errors import LockLostError
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import result_of_run
from eval_dagster.project import Project
from eval_dagster.shared_locks import Hold
from eval_dagster.versions import stable_hash

log = logging.getLogger("eval_dagster.gate")


@contextmanager
def gate_turn(project: Project, suite: str | None) -> Iterator[Hold]:
    """Wait until no other run judges the suite, or all suites where it is None, and keep others waiting within the block."""
    name = f"gate {project.place} {suite or ''}"
    is_done = False
    try:
        with project.locks.hold(name, file=f"locks/gate-{stable_hash(suite)}") as hold:
            yield hold
            is_done = True
    except LockLostError as error:
        if not is_done:
            raise
        log.warning("another run may have judged the suite %s at the same time: %s", suite, error)


def judged_before(instance: dg.DagsterInstance, project: Project, run: dg.DagsterRun) -> GateResult | None:
    """The judgement of the same evaluation by an earlier run; None if there is none, or if a person has executed the run again."""
    suite, since = run.tags.get(SUITE_TAG), run.tags.get(SINCE_TAG)
    if suite is None or since is None or run.parent_run_id is not None:
        return None
    same = instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags={SUITE_TAG: suite, SINCE_TAG: since}))
    results = (result_of_run(project.lake, suite, other.run_id) for other in same if other.run_id != run.run_id)
    return next((result for result in results if result is not None), None)
