"""Sends a notice to addresses: a separate program, which `delivery` starts.

A separate process can be killed if a service hangs, and hides what libraries log or print about addresses. It reads the notice as JSON from
standard input, with the names of the environment variables that contain the addresses, and writes a report as JSON to standard output. The
report names services ("Slack"), and never an address or a part of one.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import apprise
from apprise.utils.parse import parse_urls

_RETRIES = 3
_WAIT_S = 2.0
"""Seconds between two attempts. An address can change both by `?retry=` and `?wait=`."""
_SEPARATORS = " \t\r\n,;"
_TYPES = {"not evaluated": apprise.NotifyType.WARNING, "skipped": apprise.NotifyType.WARNING, "test": apprise.NotifyType.INFO}
_HTTP_STATUS = re.compile(r"error=(\d{3})\b")
_NO_CONNECTION = re.compile(r"connection|socket", re.IGNORECASE)


def main() -> None:
    """Send the notice, and report the outcome for each address of each variable."""
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    notice = json.load(sys.stdin)
    addresses = [(name, address) for name in notice["variables"] for address in _addresses(os.environ[name])]
    with ThreadPoolExecutor(max_workers=len(addresses)) as pool:
        outcomes = list(pool.map(lambda pair: {"variable": pair[0], **_send(pair[1], notice)}, addresses))
    json.dump(outcomes, report)
    report.flush()
    os._exit(0)  # do not wait for a service that hangs


def _addresses(text: str) -> Sequence[str]:
    """The addresses of a variable. Other text before the first one counts as an invalid address."""
    found = [str(address) for address in parse_urls(text)]  # type: ignore[no-untyped-call]
    before = text[: text.find(found[0])].strip(_SEPARATORS) if found else ""
    return [*([before] if before else []), *found] or [text]


def _send(address: str, notice: Mapping[str, Any]) -> dict[str, Any]:
    asset = apprise.AppriseAsset(
        app_id="eval-dagster",
        app_desc="evaluations of language models",
        default_service_retry=_RETRIES,
        default_service_wait=_WAIT_S,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        async_mode=False,
    )
    service = apprise.Apprise.instantiate(address, asset=asset)
    if service is None:
        return {"service": None, "attempts": 0, "error": "apprise cannot send to this address"}
    sender = apprise.Apprise(service, asset=asset)
    result = sender.notify(
        notice["body"],
        title=notice["title"],
        notify_type=_TYPES.get(notice["kind"], apprise.NotifyType.FAILURE),
        body_format=apprise.NotifyFormat.TEXT,
        timeout=notice["timeout_s"],
    )
    attempts = [attempt for of_service in result for attempt in of_service]
    return {
        "service": str(service.service_name),
        "attempts": len(attempts),
        "error": None if result else _reason(attempts, notice["timeout_s"]),
    }


def _reason(attempts: Sequence[apprise.NotifyAttempt], timeout_s: float) -> str:
    """Why the notice was not sent. The text repeats no message of the library, since it can contain parts of an address."""
    if attempts and attempts[-1].status is apprise.AppriseResultStatus.TIMEOUT:
        return f"not done within {timeout_s:g} s"
    messages = [entry.message for attempt in attempts[-1:] for entry in attempt]
    if status := next((found[1] for message in messages if (found := _HTTP_STATUS.search(message))), None):
        return f"answered with HTTP status {status}"
    return "no connection" if any(map(_NO_CONNECTION.search, messages)) else "not accepted"


if __name__ == "__main__":
    main()
