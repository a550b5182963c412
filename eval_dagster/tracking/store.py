"""The SQLite file with MLflow's runs: its creation, its migration to the installed release, and its repair, each done on a copy."""

import logging
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_dagster.errors import StoreError
from eval_dagster.stores.locks import locked
from eval_dagster.stores.sqlite_files import (
    beside,
    connect,
    damage_of,
    has_rows,
    make_empty,
    move_into_place,
    require_writable,
    set_aside,
    settled_damage_of,
    table_names,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

_NOISY_LOGGERS = ("mlflow", "alembic")
_HALF_MADE = re.compile(r"already exists|duplicate column|no such (table|column)")
"""SQLite's errors in a migration that was killed before."""
_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Tables and columns of MLflow that hold addresses of artifacts."""
_MISREAD = re.compile(r"\?|%[0-9A-Fa-f]{2}")
"""The beginning of an address's options, and escaped characters."""

log = logging.getLogger(__name__)


def store_file(uri: str) -> Path | None:
    """The file of an address such as `sqlite:////home/mlflow.db`; None for other addresses."""
    path = uri.removeprefix("sqlite:///")
    return Path(path).absolute() if path != uri and path not in ("", ":memory:") and "?" not in path else None


def ensure_store(file: Path) -> None:
    """Make sure that a store exists, is complete, and belongs to the installed release of MLflow and to the folder that it is in.

    A damaged store is moved aside with a warning, and a new one is created. Processes take turns.

    Raises:
        StoreError: The store cannot be written to, or MLflow cannot read its path.
        Exception: MLflow's error for a store of a newer release.
    """
    if found := _MISREAD.search(str(file)):
        raise StoreError(
            f"MLflow's store cannot be {file}: MLflow would read {found[0]!r} in an address as something else; choose another folder by "
            "EVAL_DAGSTER_HOME, or set mlflow.tracking_uri in evals.yaml"
        )
    with locked(file.with_suffix(".lock")):
        if damage := settled_damage_of(file, _examine):
            _keep_aside(file, damage)
        require_writable(file, "MLflow's store")
        if file.exists():
            with closing(connect(file)) as database:
                release = int(database.execute("pragma user_version").fetchone()[0])  # 0 if unknown
            if release != _installed_release():
                _adopt(file)
        if not file.exists():
            with beside(file) as building:
                make_empty(building, f"mlflow-{_installed_release()}", _open_with_mlflow)
                _stamp(building)
                _follow_folder(building)
                with closing(connect(building)) as database:
                    now = time.time_ns() // 1_000_000
                    database.execute("update experiments set creation_time = :now, last_update_time = :now", {"now": now})
                    database.commit()
                move_into_place(building, file)
        elif made_at := _follow_folder(file):
            log.warning(
                "MLflow's store %s was made in another folder (%s); its artifacts are now looked for in %s.",
                file,
                made_at,
                artifacts_of(file),
            )


def heal_store(file: Path) -> bool:
    """Look for damage in all pages of a store, and move a damaged one aside. Returns whether it was damaged."""
    with locked(file.with_suffix(".lock")):
        damage = damage_of(file, _examine, thorough=True)
        if damage:
            _keep_aside(file, damage)
    return damage is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress log messages about a store's creation."""
    with ExitStack() as stack:
        for logger in map(logging.getLogger, _NOISY_LOGGERS):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        yield


def _follow_folder(file: Path) -> str | None:
    """Let the runs of a store that was made elsewhere have their artifacts beside it. Returns the old address, if it changed.

    MLflow keeps an absolute address for each experiment and run. A new store's first experiment has the address where
    the store was made.
    """
    here = artifacts_of(file)
    with closing(connect(file)) as database:
        first = database.execute("select artifact_location from experiments where experiment_id = 0").fetchone()
        made_at = str(first[0]).removesuffix("/0") if first else here
        if made_at == here or made_at.rpartition("/")[2] != here.rpartition("/")[2]:
            return None
        tables = table_names(database)
        for table, column in _ADDRESSES:
            if table in tables:
                database.execute(
                    f"update {table} set {column} = :here || substr({column}, length(:made_at) + 1) "  # noqa: S608 - names of this module
                    f"where {column} = :made_at or substr({column}, 1, length(:made_at) + 1) = :made_at || '/'",
                    {"here": here, "made_at": made_at},
                )
        database.commit()
    return made_at


def artifacts_of(file: Path) -> str:
    """The address of the folder with the artifacts of a store."""
    return (file.parent / "mlartifacts").as_uri()


def _examine(database: sqlite3.Connection) -> str | None:
    tables = table_names(database)
    if left := sorted(name for name in tables if name.startswith("_alembic_tmp_")):
        return f"a process was killed while it made or changed the tables: {left[0]} is left of that"
    missing = sorted({"experiments", "runs"} - tables)
    if missing or not has_rows(database, "alembic_version"):
        return f"a process was killed while it made the tables: {', '.join(missing) or 'the version of the tables'} is missing"
    return None


def _keep_aside(file: Path, damage: str) -> None:
    kept = set_aside(file)
    log.warning(
        "MLflow's store %s was damaged (%s). It is kept as %s, and a new one is made; a result is logged there when its eval runs.",
        file,
        damage,
        kept.name,
    )


def _adopt(file: Path) -> None:
    """Let MLflow migrate a copy of a store to its release, and replace the store by it. If the process is killed, only the copy is lost."""
    from sqlalchemy.exc import OperationalError

    with beside(file) as building:
        with closing(connect(file)) as source, closing(sqlite3.connect(building)) as copy:
            source.backup(copy)
        shutil.copymode(file, building)
        try:
            _open_with_mlflow(building)
        except OperationalError as error:
            if not _HALF_MADE.search(str(error)):
                raise
            _keep_aside(file, f"a process was killed while it made or changed the tables: {str(error).splitlines()[0]}")
            return
        if _revision(building) == _revision(file):  # do not replace a file that other processes may have open
            _stamp(file)
        else:
            _stamp(building)
            move_into_place(building, file)


def _open_with_mlflow(file: Path) -> None:
    """Let MLflow create the tables of a store, or migrate them to its release."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with quiet():
        store = SqlAlchemyStore(f"sqlite:///{file}", artifacts_of(file))  # type: ignore[no-untyped-call]
        store.engine.dispose()


def with_driver(uri: str) -> str:
    """An address with the driver that is installed: SQLAlchemy 2.1 reads `postgresql://` as psycopg 3, and the extra `postgres` has 2."""
    has_driver = find_spec("psycopg") is not None or find_spec("psycopg2") is None
    return uri if has_driver else re.sub(r"^postgres(ql)?://", "postgresql+psycopg2://", uri)


def identity_of(file: Path | None) -> tuple[int, int] | None:
    """The file that a store is now. None if it is no file, or if it is gone."""
    try:
        state = None if file is None else file.stat()
    except OSError:
        return None
    return state and (state.st_dev, state.st_ino)


def forget_connections(file: Path) -> None:
    """Close this process's connections to a replaced store; MLflow caches them by address."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    engine = SqlAlchemyStore._engine_map.get(f"sqlite:///{file}")
    if engine is not None:
        engine.dispose()


@contextmanager
def one_session(client: "MlflowClient") -> Iterator[Callable[[], None]]:
    """Let the calls of a client in the block share a session of the database, and so its transactions, and yield what commits them.

    Each call would begin and commit several of its own, for each of which SQLite waits for the disk. The block commits at its end, or rolls
    back what was not committed if it raises. The client of a server makes its calls as ever.
    """
    store = client._tracking_client.store
    sessions = getattr(store, "ManagedSessionMaker", None)
    if sessions is None:
        yield lambda: None
        return
    # Imported lazily: slow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    thread, others = threading.get_ident(), list[Exception]()
    try:
        with sessions(read_only=False) as session:

            @contextmanager
            def shared(*arguments: Any, **options: Any) -> Iterator[Any]:
                if threading.get_ident() == thread:
                    yield session
                else:
                    with sessions(*arguments, **options) as own:
                        yield own

            vars(store)["ManagedSessionMaker"] = shared
            try:
                yield session.commit
            except (MlflowException, SQLAlchemyError):
                raise
            except Exception as error:
                others.append(error)
                raise
            finally:
                vars(store)["ManagedSessionMaker"] = sessions
    except MlflowException:
        if others:  # MLflow would have all errors be its own
            raise others[0] from None
        raise


def _revision(file: Path) -> str:
    with closing(connect(file)) as database:
        return str(database.execute("select version_num from alembic_version").fetchall())


def _installed_release() -> int:
    """The release of MLflow as a number for the header of a database: 3017002 for 3.17.2."""
    from mlflow.version import VERSION

    major, minor, patch = (*map(int, re.findall(r"\d+", VERSION)[:3]), 0, 0)[:3]
    return (major * 1000 + minor) * 1000 + patch


def _stamp(file: Path) -> None:
    with closing(connect(file)) as database:
        database.execute(f"pragma user_version = {_installed_release()}")
