"""What went wrong in an object store, in one sentence, and whether another try can help.

The texts of the libraries are not repeated. They hold addresses with signatures.
"""

import re
from dataclasses import dataclass

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, UsageError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_HOST = re.compile(r"https?://(?:[^/\s?#]{1,500}@)?((?:[\w.-]{1,200}|\[[\da-fA-F:.]{2,50}\])(?::\d{1,5})?)(?=[/\s?#\"'),;]|:?$|:\s)")
"""Not what stands before an `@`: it may be a password. A password with a slash in it makes no host at all."""
_FULL = re.compile(r"os error (28|122)\b|StorageFull|QuotaExceeded")
"""A disk without space, or a user at the limit of one."""
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses of a server that answers otherwise a little later."""
_UNDECIDED = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""Codes with status 409: another write is under way, and it is open whether there is an object of this name."""
_SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_SOURCES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine",
    "gs": "GOOGLE_SERVICE_ACCOUNT, the path of a key file, or the service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the identity of the machine",
}
"""Where each kind of store finds credentials."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failed call."""

    words: str
    """What was seen."""
    cure: str = ""
    """What to do. Empty where another try can help."""

    @property
    def is_passing(self) -> bool:
        """Whether another try can help."""
        return not self.cure

    def error(self, url: str) -> EvalDagsterError:
        """The exception for a call on the store of a URL."""
        if self.is_passing:
            return LakeUnreachableError(f"the lake {url}: {self.words}")
        return UsageError(f"the lake {url}: {self.words}; {self.cure}")


def is_undecided(error: Exception) -> bool:
    """Whether an exception of obstore that says "already exists" does not know it."""
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
