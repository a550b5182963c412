"""Keeps how a model computed when it was last loaded, so that it can be shown before the next load."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from eval_dagster.stores.whole_files import replaced


def remember_ways(home: Path, model: str, version: str, ways: Mapping[str, str]) -> None:
    """Keep how a model in a version computed: by kind of work, a line with the way and the reason. The latest version is kept alone."""
    if not ways:
        return
    file = _file(home, model)
    kept = {"version": version, "ways": {**known_ways(home, model, version), **ways}}
    # What is not kept costs a line of `eval-dagster models`, and no run.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as made:
            made.write_text(json.dumps(kept, indent=1, sort_keys=True), "utf-8")


def known_ways(home: Path, model: str, version: str) -> Mapping[str, str]:
    """How a model in a version computed when it was last loaded in this home; empty if it was not, or another version was loaded later."""
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        kept = json.loads(_file(home, model).read_text("utf-8"))
        if kept["version"] == version:
            return {str(kind): str(way) for kind, way in kept["ways"].items()}
    return {}


def _file(home: Path, model: str) -> Path:
    return home / "models" / "ways" / f"{model}.json"
