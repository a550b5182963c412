"""An object store: a few calls by name, each repeated for a bounded time while the store is out of order."""

import logging
import mmap
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from eval_dagster.errors import EvalDagsterError, LakeError, LakeUnreachableError, RequirementError, UsageError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_HOST = re.compile(r"https?://(?:[^/\s?#]{1,500}@)?((?:[\w.-]{1,200}|\[[\da-fA-F:.]{2,50}\])(?::\d{1,5})?)(?=[/\s?#\"'),;]|:?$|:\s)")
"""Excludes the part before an `@`, which may be a password. A password with a slash matches no host."""
_FULL = re.compile(r"os error (28|122)\b|StorageFull|QuotaExceeded")
"""A full disk, or an exhausted quota."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses of temporary failures."""
_UNDECIDED = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""Codes with status 409: another write is under way, so whether the object exists is undecided."""
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_SOURCES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine",
    "gs": "GOOGLE_SERVICE_ACCOUNT, the path of a key file, or the service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the identity of the machine",
}
"""The source of credentials for each kind of store."""
log = logging.getLogger(__name__)
PATIENCE_S = 120.0
"""Seconds for which a call is repeated."""
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 10.0
_WARN_AFTER_S = 5.0
_PIECE = 2**20
"""Minimum bytes of an object read at a time. A smaller object is written within seconds."""
_SLOWEST_S = 60.0
"""Seconds for which a store may be silent. A try that begins with less patience left uses the hasty client."""
_CLIENT = {"timeout": "15 minutes", "read_timeout": "60 seconds", "connect_timeout": "5 seconds"}
_HASTY = {"timeout": "10 seconds", "read_timeout": "5 seconds", "connect_timeout": "5 seconds"}
"""For calls with little data, if the store may hang."""
_ADDRESSES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
T = TypeVar("T")
_FOLDER = ".eval_dagster"
_MARK = f"{_FOLDER}/probe"
_CONTENT = b"eval-dagster writes this object to see whether the store refuses a second one of the same name.\n"
_LARGEST_SKEW = timedelta(minutes=1)
"""Files are named by the clock of the machine that writes them."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call."""

    words: str
    """The observation."""
    cure: str = ""
    """The remedy. Empty if another try can help."""

    @property
    def is_passing(self) -> bool:
        """Whether another try can help."""
        return not self.cure

    def error(self, url: str) -> EvalDagsterError:
        """The exception for a call on the store at a URL."""
        if self.is_passing:
            return LakeUnreachableError(f"the lake {url}: {self.words}")
        return UsageError(f"the lake {url}: {self.words}; {self.cure}")


def is_undecided(error: Exception) -> bool:
    """Whether obstore's error "already exists" leaves open if the object exists."""
    found = _CODE.search(str(error))
    return found is not None and found[1] in _UNDECIDED


def fault_of(error: Exception, url: str) -> Fault:
    """Describe an exception of obstore."""
    text = str(error).partition("Debug source")[0]
    status = int(found[1]) if (found := _STATUS.search(text)) else None
    code = found[1] if (found := _CODE.search(text)) else ""
    host = found[1] if (found := _HOST.search(text)) else ""
    seen = " ".join(filter(None, (str(status or ""), code)))
    scheme = url.partition(":")[0]
    if host.startswith(("169.254.", "metadata.google")):
        return Fault(words="there are no credentials in the environment", cure=f"set {_SOURCES.get(scheme, 'them')}")
    if code in _SKEWED:
        return Fault(
            words=f"the server refuses the time of this machine ({seen})",
            cure="set the clock of this machine, for instance by NTP, and try again",
        )
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return Fault(words=f"there is no such bucket at {host} ({seen})", cure="create it, or correct the URL")
    if status in (401, 403) or code in ("ExpiredToken", "InvalidToken", "AuthenticationFailed"):
        return Fault(
            words=f"{host} refuses the credentials, or they may not do this ({seen})",
            cure=f"correct {_SOURCES.get(scheme, 'them')}, or let the owner of the bucket permit it",
        )
    if status in (301, 302, 307, 308):
        return Fault(words=f"the bucket is not at {host} ({seen})", cure="set AWS_REGION, or AWS_ENDPOINT_URL, to where it is")
    if code == "EntityTooLarge":
        return Fault(
            words=f"{host} takes no file of this size in one write ({seen})",
            cure="divide the eval, for instance by its subjects: each file is one conditional write, of which S3 takes 5 GiB",
        )
    if status == 501:
        return Fault(words=f"{host} does not support conditional writes ({seen})", cure="use a store that honours If-None-Match")
    if status in _PASSING:
        return Fault(words=f"{host} answers {seen}")
    if "builder error" in text:
        return Fault(words=f"the address {host} cannot be used", cure="correct AWS_ENDPOINT_URL: http://HOST:PORT or https://HOST")
    if "HTTP error" in text or (status is None and host):
        return Fault(words=f"{host} cannot be reached, or ends the connection")
    if status is not None:
        return Fault(words=f"{host} answers {seen}", cure="correct the URL or the address of the server")
    if _FULL.search(str(error)):
        return Fault(words="its disk is full", cure="free space on it, and try again")
    reason = re.sub(r"https?://\S+", "an address", " ".join(text.split()))[:200]
    return Fault(words=f"it cannot be used ({reason})", cure="correct the URL, or the permissions of the folder")


class ConflictError(LakeError):
    """An object of this name has other content."""


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object of the store."""

    size: int
    """Bytes."""
    modified: datetime
    """By the server's clock."""
    tag: str | None = field(default=None, compare=False)
    """The server's tag of the content (`ETag`); null if it has none."""


class Store:
    """The objects below a URL, by their names relative to it."""

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S, is_hasty: bool = False) -> None:
        """Open the store. Credentials come only from the environment. With `is_hasty`, each call times out after a few seconds.

        Raises:
            RequirementError: The package that reads object stores is missing.
        """
        try:
            import obstore
            from obstore import exceptions
        except ImportError as error:
            raise RequirementError(f"the lake {url} needs the package obstore; install it: pip install 'eval_dagster[s3]'") from error
        self.url = url
        self.is_probed = False
        """Whether this process has probed it."""
        self._obstore: Any = obstore
        self._patience_s = patience_s
        self._out_since: float | None = None
        """Start of the call that gave up. Until a call succeeds, later calls get one try."""
        self._failures = (exceptions.BaseError, OSError, ValueError)
        self._exists = exceptions.AlreadyExistsError
        self._quick = _open(url, _HASTY)
        self._inner = self._quick if is_hasty else _open(url, _CLIENT)

    def list(self, folder: str) -> dict[str, StoredObject]:
        """All objects in a folder and below it, by name."""

        def call(inner: Any) -> dict[str, StoredObject]:
            chunks = self._obstore.list(inner, prefix=folder, chunk_size=1000)
            found = (each for chunk in chunks for each in chunk)
            return {each["path"]: StoredObject(size=each["size"], modified=each["last_modified"], tag=each["e_tag"]) for each in found}

        return self._patiently(call, f"list {folder}")

    def fetch(self, name: str, path: Path) -> None:
        """Write the content of an object to a file, a piece at a time. Raises `FileNotFoundError` if the object does not exist."""

        def call(_: Any) -> None:
            pieces = self._obstore.get(self._inner, name).stream(min_chunk_size=_PIECE)
            with path.open("wb") as file:
                for piece in pieces:
                    file.write(piece)

        self._patiently(call, f"read {name}")

    def read(self, name: str) -> bytes:
        """The content of a small object. Raises `FileNotFoundError` if the object does not exist."""
        return self._patiently(lambda inner: bytes(self._obstore.get(inner, name).bytes()), f"read {name}")

    def put_new(self, name: str, content: bytes | mmap.mmap) -> bool:
        """Write an object unless one with this name exists. Returns whether this call wrote it."""

        def call(inner: Any) -> bool:
            try:
                # A single put, because neither obstore nor Ceph supports the condition for multipart writes.
                self._obstore.put(inner if len(content) < _PIECE else self._inner, name, content, mode="create", use_multipart=False)
            except self._exists as error:
                if is_undecided(error):
                    raise
                return False
            return True

        return self._patiently(call, f"write {name}")

    def put_file(self, name: str, path: Path) -> None:
        """Write a file as an object that may already exist, since the response to an earlier try can be lost.

        Raises:
            FileNotFoundError: The file does not exist.
            ConflictError: An object of this name has other content.
        """
        with path.open("rb") as file:  # mapped into memory: the system reads it on demand
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""

        def has_content(_: Any) -> bool:
            position = 0
            for piece in self._obstore.get(self._inner, name).stream(min_chunk_size=_PIECE):
                end = position + len(piece)
                if content[position:end] != bytes(piece):
                    return False
                position = end
            return position == len(content)

        if not self.put_new(name, content) and not self._patiently(has_content, f"read {name}"):
            raise ConflictError(f"the lake {self.url} has a file {name} with other content; files of a lake never change, run again")

    def replace(self, name: str, content: bytes) -> StoredObject:
        """Write an object in place of an earlier one. Returns the server's listing of it."""

        def call(inner: Any) -> StoredObject:
            self._obstore.put(inner, name, content, use_multipart=False)
            found = self._obstore.head(inner, name)
            return StoredObject(size=found["size"], modified=found["last_modified"])

        return self._patiently(call, f"write {name}")

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""

        def call(inner: Any) -> None:
            try:
                self._obstore.delete(inner, name)
            except FileNotFoundError as error:
                if not _is_missing_object(error):
                    raise

        self._patiently(call, f"delete {name}")

    def _patiently(self, call: Callable[[Any], T], what: str) -> T:
        """Repeat a call while the store is out of order, with growing pauses. Late tries get the hasty client."""
        began, wait, is_said = time.monotonic(), _FIRST_WAIT_S, False
        while True:
            is_late = self._out_since is not None or time.monotonic() - began > self._patience_s - _SLOWEST_S
            try:
                found = call(self._quick if is_late else self._inner)
                self._out_since = None
                return found
            except self._failures as error:
                if isinstance(error, FileNotFoundError) and _is_missing_object(error):
                    self._out_since = None
                    raise
                fault, out_since = fault_of(error, self.url), self._out_since
                waited = time.monotonic() - began
                if not fault.is_passing:
                    raise fault.error(self.url) from None
                if out_since is not None or waited + wait > self._patience_s:
                    self._out_since = since = began if out_since is None else out_since
                    words = f"{fault.words}, for {time.monotonic() - since:.0f} s ({what}); run again when the store is back"
                    raise Fault(words=words).error(self.url) from None
            if waited > _WARN_AFTER_S and not is_said:
                log.warning(f"{self.url}: {fault.words}; tried again for up to {self._patience_s:.0f} s ({what})")
                is_said = True
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - so that machines do not try at the same moments
            wait = min(2 * wait, _LONGEST_WAIT_S)


def _is_missing_object(error: FileNotFoundError) -> bool:
    """Whether the object is missing, rather than the bucket."""
    return "NoSuchBucket" not in str(error) and "ContainerNotFound" not in str(error)


def _open(url: str, client: Mapping[str, str]) -> Any:
    import obstore.store

    from_url: Any = obstore.store.from_url
    if url.startswith("file:"):
        if not Path(unquote(urlsplit(url).path)).is_dir():  # not created, because the disk may not be mounted
            raise UsageError(f"the lake {url}: there is no such folder; create it, or mount the disk that it is on")
        return from_url(url)
    for variable in _ADDRESSES:
        given = os.environ.get(variable)
        if not given:
            continue
        try:
            parts = urlsplit(given)
            is_address = (parts.port is None or parts.port > 0) and given.isascii() and given.isprintable() and " " not in given
        except ValueError:  # an invalid port, or unclosed brackets
            is_address = False
        if not (is_address and parts.scheme in ("http", "https") and parts.hostname and parts.username is None):
            # obstore cannot use it, and its message would repeat it.
            raise UsageError(
                f"the environment variable {variable} holds no address; expected http://HOST:PORT or https://HOST, without user and "
                "password"
            )
    address = next(filter(None, map(os.environ.get, _ADDRESSES)), "")
    allows_http = address.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    options: Mapping[str, Any] = {**client, "allow_http": allows_http}
    return from_url(url, client_options=options, retry_config={"max_retries": 0})


def probe(store: Store) -> None:
    """Check that a store can hold a lake.

    The object of the probe stays in the store, so a later probe is one refused write.

    Raises:
        UsageError: It cannot hold a lake. The message names the observation and the cure.
        LakeUnreachableError: It does not answer for some time.
    """
    if store.put_new(_MARK, _CONTENT) and store.put_new(_MARK, _CONTENT):
        raise UsageError(
            f"the lake {store.url}: the server ignores the condition of a write (If-None-Match: *): it wrote an object twice, and two "
            "machines could overwrite each other's files; use a store that honours conditional writes: S3, GCS, Azure, Ceph or MinIO"
        )
    written = store.replace(f"{_FOLDER}/clock", b"").modified
    skew = datetime.now(UTC) - written
    if abs(skew) > _LARGEST_SKEW:
        raise UsageError(
            f"the lake {store.url}: the clock of this machine is {abs(skew).total_seconds():.0f} s "
            f"{'ahead of' if skew > timedelta() else 'behind'} that of the server; expected at most {_LARGEST_SKEW.total_seconds():.0f} s: "
            "set it, for instance by NTP, and try again"
        )


def was_probed(store: Store) -> bool:
    """Whether the store has the object of an earlier probe. An emptied store, or an unmounted disk, has none."""
    return _MARK in store.list(_FOLDER)
