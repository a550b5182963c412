"""Keeps how a model computed when it was last loaded, so that it can be shown before the next load."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from eval_dagster.whole_files import replaced


def remember_ways(home: Path, version: str, ways: Mapping[str, str]) -> None:
    """Keep how a model in a version computed: by kind of work, a line with the way and the reason."""
    file = _file(home, version)
    known = {**known_ways(home, version), **ways}
    # What is not kept costs a line of `eval-dagster models`, and no run.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as made:
            made.write_text(json.dumps(known, indent=1, sort_keys=True), "utf-8")


def known_ways(home: Path, version: str) -> Mapping[str, str]:
    """How a model in a version computed when it was last loaded in this home; empty if it never was."""
    with suppress(OSError, ValueError, AttributeError):
        return {str(kind): str(way) for kind, way in json.loads(_file(home, version).read_text("utf-8")).items()}
    return {}


def _file(home: Path, version: str) -> Path:
    return home / "models" / "ways" / f"{version}.json"
