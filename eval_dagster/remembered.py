"""The last readable configuration of a project, kept in its home, to send notices if evals.yaml cannot be read.

The home keeps only the suites and names, and no values that can contain a secret.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eval_dagster.config.schema import Config
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirrored_url
from eval_dagster.project import Project, configured
from eval_dagster.stores.whole_files import replaced

_REMEMBERED_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """A project with its last readable configuration."""

    project: Project
    """It has the suites of the configuration, but not its evals or models."""
    loaded_at: datetime
    """The time at which the configuration was read."""
    since: dict[str, datetime]
    """The time since which each suite has its cron."""


def remember(project: Project) -> Remembered:
    """Keep the configuration of a project in its home. If the home is not writable, the earlier configuration stays."""
    now, config = datetime.now(UTC), project.config
    before = _remembered(project.home) or {}
    suites = {name: suite.model_dump(mode="json") for name, suite in config.suites.items()}
    same = {name for name, suite in suites.items() if _schedule(before.get("suites", {}).get(name)) == _schedule(suite)}
    since = {name: before["since"][name] if name in same and name in before.get("since", {}) else now.isoformat() for name in suites}
    kept = {
        "format": _REMEMBERED_FORMAT,
        "config_path": str(project.config_path),
        "loaded_at": now.isoformat(),
        "evals": list(config.evals),
        "models": list(config.models),
        "suites": suites,
        "since": since,
        "public_url": config.public_url.model_dump(mode="json"),
        "dagster": config.dagster.model_dump(mode="json"),
    }
    if {**kept, "loaded_at": None} != {**before, "loaded_at": None}:
        with suppress(OSError):
            remembered_file(project.home).parent.mkdir(parents=True, exist_ok=True)
            with replaced(remembered_file(project.home)) as temporary:
                temporary.write_text(json.dumps(kept, indent=1), "utf-8")
    return Remembered(project=project, loaded_at=now, since={name: datetime.fromisoformat(time) for name, time in since.items()})


def recall(home: Path) -> Remembered | None:
    """The configuration kept in a home. None if it keeps none, or one of another version of this package.

    Raises:
        ConfigError: An environment variable of this package is wrong.
    """
    kept = _remembered(home)
    if kept is None:
        return None
    try:
        config = Config.model_validate(
            {
                "lake": mirrored_url(home / "lake"),
                "models": {},
                "evals": {},
                "suites": kept["suites"],
                "public_url": kept["public_url"],
                "dagster": kept.get("dagster", {}),
            }
        )
        project = replace(
            Project.of(config, Path(kept["config_path"]), home),
            # The catalog marks the names of the configuration, so publishing a notice must use the same names.
            lake=Lake(home, configured=configured(kept["evals"], kept["models"], config.suites)),
        )
        since = {name: datetime.fromisoformat(time) for name, time in kept["since"].items()}
        return Remembered(project=project, loaded_at=datetime.fromisoformat(kept["loaded_at"]), since=since)
    except (KeyError, TypeError, ValueError):
        return None


def remembered_file(home: Path) -> Path:
    """The file with the configuration."""
    return home / "watch" / "configuration.json"


def _remembered(home: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(remembered_file(home).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get("format") == _REMEMBERED_FORMAT else None


def _schedule(suite: Any) -> tuple[Any, Any] | None:
    return (suite.get("cron"), suite.get("timezone")) if isinstance(suite, dict) else None
