"""The command that sends a test notice."""

import typer

from eval_dagster.cli.console import errors, out
from eval_dagster.notifications.delivery import notify
from eval_dagster.notifications.messages import trial_notice
from eval_dagster.project import Project


def send_trial(suite: str) -> None:
    """Send a test notice to the addresses of a suite and print the outcome; exit status 1 if it was not sent."""
    title, body = trial_notice(suite)
    outcome = notify(Project.open(), suite, title=title, body=body, kind="test")
    if outcome.is_sent:
        out.print(outcome.words(), soft_wrap=True)
    else:
        errors.print(f"not sent: {outcome.words()}", style="red", soft_wrap=True)
        raise typer.Exit(1)
