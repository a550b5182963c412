"""The command that looks whether each night was judged, the watch of `ui` that does so every minute, and the command `notify`."""

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from eval_dagster.cli.console import errors, out, say
from eval_dagster.errors import ConfigError, UsageError
from eval_dagster.notifications.delivery import notify
from eval_dagster.notifications.messages import trial_notice
from eval_dagster.project import Project, default_config_path, default_home
from eval_dagster.remembered import Remembered, recall, remember

_EVERY_S = 60.0
_PING_S = 20.0


def check_nights(
    ping: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with an address that is requested if all is well, for a monitor."),
    ] = None,
) -> None:
    """Print what was looked at and what is wrong. Exit status 1 if a night is missing, or the next one cannot start.

    `ping` names an environment variable that holds an address, which is requested if all is well.
    """
    address = None if ping is None else os.environ.get(ping, "").strip()
    if address is not None and urlsplit(address).scheme not in ("http", "https"):  # not repeated in the message: it can hold a secret
        raise UsageError(
            f"--ping: the environment variable {ping} holds no address; expected one that a monitor gives, such as https://hc-ping.com/..."
        )
    from eval_dagster.assets.night_watch import watch_nights  # imported lazily: Dagster takes a second

    known, broken = configuration()
    found = watch_nights(known, broken)
    for line in found.seen:
        out.print(line, soft_wrap=True)
    for finding in found.findings:
        about = "" if finding.suite is None else f"{finding.suite}: "
        at = "" if finding.night is None else f"the night of {finding.night.tick:%Y-%m-%d %H:%M} UTC was not judged. "
        told = f" (notice: {finding.notice})" if finding.notice else ""
        say(errors, "not well", f"{about}{at}{finding.cause}\nNext: {finding.cure}{told}", style="red")
    if not found.is_well:
        raise typer.Exit(1)
    if address is not None and (problem := _requested(address)):
        # The address is a secret, and is not repeated.
        errors.print(f"all is well, but the address in {ping} did not take it: {problem}", style="red", soft_wrap=True)
        raise typer.Exit(1)
    out.print("All is well: every night that was due was judged." + ("" if address is None else f" {ping} was requested."))


@contextmanager
def watched(project: Project, log: Path) -> Iterator[None]:
    """Look at the nights every minute within the block, and write into a log what is wrong."""
    from eval_dagster.assets.night_watch import watch_nights

    over = threading.Event()

    def watch() -> None:
        said = ""
        while not over.wait(_EVERY_S):
            try:
                known, broken = configuration(project)
                now = "\n".join(f"{each.suite or 'all'}: {each.cause}" for each in watch_nights(known, broken, is_patient=True).findings)
            except Exception as error:  # the boundary between the watch and the servers that it must not end
                now = f"the nights could not be looked at: {type(error).__name__}: {error}"
            if now != said:
                said = now
                with log.open("a", encoding="utf-8") as file:
                    file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC  {now or 'all is well'}\n")

    thread = threading.Thread(target=watch, name="night watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def configuration(project: Project | None = None) -> tuple[Remembered, ConfigError | None]:
    """The configuration as it is, else as it was last read, with the error. `project` finds the file, and is the fallback."""
    path, home = (project.config_path, project.home) if project else (None, None)
    try:
        return remember(Project.open(config_path=path, home=home)), None
    except ConfigError as error:
        place = home or default_home(default_config_path().resolve()).resolve()
        known = recall(place)
        if known is None and project is not None:
            known = remember(project)
        if known is None:
            raise
        return known, error


def _requested(address: str) -> str | None:
    """Request an address. Returns why that failed, without the address. A redirect can lead to the login of a proxy."""

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    try:
        with urllib.request.build_opener(NoRedirect).open(address, timeout=_PING_S):
            return None
    except urllib.error.HTTPError as error:
        if HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST:
            return f"a redirect (HTTP status {error.code}), which is not followed; set the address that it leads to"
        return f"HTTP status {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__


def send_trial(suite: Annotated[str, typer.Argument(help="Suite whose `notify` in evals.yaml names the addresses.")]) -> None:
    """Send a test notice to the addresses of a suite and print the outcome; exit status 1 if it was not sent."""
    title, body = trial_notice(suite)
    outcome = notify(Project.open(), suite, title=title, body=body, kind="test")
    if outcome.is_sent:
        out.print(outcome.words(), soft_wrap=True)
    else:
        errors.print(f"not sent: {outcome.words()}", style="red", soft_wrap=True)
        raise typer.Exit(1)
