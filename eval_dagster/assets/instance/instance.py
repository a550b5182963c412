"""The Dagster instance of a home: run history, schedules and logs that outlive a process."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from sqlalchemy.exc import DatabaseError

from eval_dagster.assets.instance.instance_store import ensure_databases, heal_databases, kept_connections
from eval_dagster.assets.instance.killed_runs import end_dead_runs
from eval_dagster.assets.tags import EARLIER_TAGS
from eval_dagster.errors import StoreError

_DRIVER = "psycopg"
_RECENT = timedelta(days=2)
_RETRY = "Retrying failed database connection"
_SETTINGS = """\
# Written once; yours to change.
telemetry: {enabled: false}
nux: {enabled: false}
# A failed gate or eval would fail again. Retries happen inside a run.
run_retries: {enabled: true, max_retries: 0, retry_on_asset_or_op_failure: false}
concurrency:
  runs:
    max_concurrent_runs: 1        # models that run at the same time slow each other down; raise it for served models
    tag_concurrency_limits:       # a model runs once at a time, and so do the models of one server
      - {key: eval_dagster/model, value: {applyLimitPerUniqueValue: true}, limit: 1}
      - {key: eval_dagster/endpoint, value: {applyLimitPerUniqueValue: true}, limit: 1}
"""


def postgres_problem(error: Exception) -> str | None:
    """The reason of an error, and what to do; None for errors that have nothing to do with PostgreSQL."""
    if isinstance(error, ModuleNotFoundError) and error.name == _DRIVER:
        return (
            "SQLAlchemy 2.1 reads `postgresql://` as the driver psycopg 3, which is not installed; write `postgresql+psycopg2://`, or set "
            "`scheme: postgresql+psycopg2` beside `postgres_db`"
        )
    if found := re.search(r"Couldn't import module (dagster_\w+)", str(error)):
        extra = "eval_dagster[postgres]" if found[1] == "dagster_postgres" else found[1].replace("_", "-")
        return f"the package {found[1]} is not installed; install it: pip install '{extra}'"
    if type(error).__name__ == "DagsterPostgresException":
        return f"{_first_line(error.__cause__ or error)}. What was computed is kept: run the command again once PostgreSQL answers"
    return None


@contextmanager
def one_line_retries() -> Iterator[None]:
    """Shorten the warnings of dagster_postgres about its retries to one line each, which otherwise have four."""

    def shorten(record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_RETRY):
            record.msg, record.args = f"{_RETRY}: {_first_line(record.args)}", ()
        return True

    root = logging.getLogger()
    root.addFilter(shorten)
    try:
        yield
    finally:
        root.removeFilter(shorten)


def _first_line(error: object) -> str:
    """The reason that the driver gives, without the name of its class and without passwords."""
    text = str(error[0] if isinstance(error, tuple) and error else error).strip() or type(error).__name__
    return re.sub(r"//[^/@\s]*@", "//***@", re.sub(r"^\([\w.]+\) ", "", text.splitlines()[0]))


def prepare_instance(home: Path) -> Path:
    """Create the Dagster instance of a home if needed, and set `DAGSTER_HOME` to it unless it is set. Returns its folder.

    Raises:
        StoreError: `DAGSTER_HOME` or dagster.yaml is wrong, or a database of the instance cannot be written to.
    """
    folder = Path(os.environ.setdefault("DAGSTER_HOME", str(home / "dagster")))
    if not folder.is_absolute():
        raise StoreError(f"DAGSTER_HOME is {folder}; Dagster expects the path of a folder from / on")
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "dagster.yaml"
    if not settings.exists():
        temporary = settings.with_name(f".dagster.yaml.{os.getpid()}")
        temporary.write_text(_SETTINGS, "utf-8")
        temporary.replace(settings)
    ensure_databases(folder)
    return folder


def has_instance(home: Path) -> bool:
    """Whether the Dagster instance of a home was ever used."""
    return (Path(os.environ.get("DAGSTER_HOME") or home / "dagster") / "dagster.yaml").is_file()


@contextmanager
def open_instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The persistent instance of a home within the block. Killed runs are ended first.

    Raises:
        StoreError: The instance cannot be opened, or one of its databases fails within the block. Damaged databases are moved aside.
    """
    folder = prepare_instance(home)
    try:
        with one_line_retries(), _get(folder) as instance, kept_connections(instance):
            _tag_earlier_runs(instance, home)
            end_dead_runs(instance, home)
            yield instance
    except DatabaseError as error:
        damages = heal_databases(folder)
        if damages:
            raise StoreError(f"{' '.join(damages)} Run the command again: what was computed is kept.") from error
        raise StoreError(f"Dagster's databases in {folder} cannot be used: {str(error).splitlines()[0]}") from error
    except Exception as error:
        if reason := postgres_problem(error):
            raise StoreError(f"Dagster's storage in {folder / 'dagster.yaml'} cannot be used: {reason}") from error
        raise


def _tag_earlier_runs(instance: dg.DagsterInstance, home: Path) -> None:
    """Give the recent runs of an earlier release the tags by which this one finds them, such as a night that is not judged yet."""
    recent = dg.RunsFilter(tags={next(iter(EARLIER_TAGS)): str(home)}, updated_after=datetime.now(UTC) - _RECENT)
    for run in instance.get_runs(recent):
        new = {tag: run.tags[earlier] for earlier, tag in EARLIER_TAGS.items() if earlier in run.tags and tag not in run.tags}
        if new:
            instance.add_run_tags(run.run_id, new)


def _get(folder: Path) -> dg.DagsterInstance:
    try:
        return dg.DagsterInstance.get()
    except dg.DagsterInvalidConfigError as error:
        missing = re.search(r'environment variable "(\w+)" which is not set', str(error))
        reason = f"the environment variable {missing[1]} is not set; set it where this runs" if missing else error
        raise StoreError(f"Dagster's settings {folder / 'dagster.yaml'} are wrong: {reason}") from error
