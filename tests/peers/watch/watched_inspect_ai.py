"""inspect_ai: the logs of a release, imported, beside the scores that the release itself reads from them."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.imports.importing import ImportedLog, import_logs
from eval_dagster.imports.inspect_archive import log_files
from eval_dagster.lake.files import Lake
from tests.eval_dagster.imports.released_values import Key, imported_means, imported_values, make_logs, own_values
from tests.peers.watch.environments import environment_with
from tests.peers.watch.outcomes import Look, Looked, different

Values = Mapping[Key, Mapping[str, float]]


class InspectAi:
    """Scores of samples, and means."""

    name = "inspect_ai"
    distribution = "inspect-ai"
    what = (
        "logs that the release makes with its mock model: epochs, several scorers, failing samples, tools, a limit, an evaluation that was "
        "killed; the values of all samples, and the means"
    )

    def interpreter(self) -> str:
        return sys.executable

    def environment(self, folder: Path, release: str) -> Path:
        return environment_with(folder / f"{self.name}-{release}", [f"inspect-ai=={release}", "pandas", "pyarrow"])

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        theirs = make_logs(python, scratch)
        lake = Lake(scratch / "home")
        logs = list(import_logs(lake, log_files(scratch / "logs")))
        values, means, expected = imported_values(lake), imported_means(lake), own_values(theirs)

        def found() -> Iterator[Looked]:
            for each in logs[:most]:
                yield looked(each, values, expected, means, theirs["means"])

        return Look(len(logs), found())


def looked(
    log: ImportedLog, values: Values, expected: Values, means: Mapping[str, Mapping[str, float]], own_means: Mapping[str, Any]
) -> Looked:
    """One log: every value of every sample, and each mean that the release has."""
    if log.log is None or log.state != "imported":
        return Looked(log.path.stem, "refused", log.problem or log.state)
    log_id, name = log.log.eval_id, f"{log.log.eval} {log.path.stem[:19]}"
    ours, theirs = ({key: dict(each) for key, each in of_all.items() if key[0] == log_id} for of_all in (values, expected))
    differences = [f"{key}: {ours.get(key)} is not {theirs.get(key)}" for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    wanted = own_means.get(log_id, {})
    mine = {metric: value for metric, value in means.get(log_id, {}).items() if metric in wanted}
    if mine != pytest.approx(wanted):
        differences.append(f"means: {mine} are not {wanted}")
    if differences:
        return different(name, differences)
    return Looked(name, "equal") if any(theirs.values()) else Looked(name, "partly", "no sample has a value")
