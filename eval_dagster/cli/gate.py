"""Output of a suite's gate, on the command line and for CI systems, and the command `accept` for states that did not pass it."""

import getpass
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.addresses import Addresses
from eval_dagster.cli.console import out, print_next
from eval_dagster.cli.options import Evals, Models
from eval_dagster.cli.tables import print_few, print_screenful
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import UsageError
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import accept_states as record_acceptance
from eval_dagster.gate.results import acceptance_line
from eval_dagster.gate.wording import (
    FIGURE_COLUMNS,
    Tone,
    aggregate_remarks,
    asked_in_full,
    cause_text,
    clearest_fall,
    figures,
    title,
    tone,
    unjudged,
    verdict_line,
)
from eval_dagster.pages.report.summaries import junit_xml, unjudged_junit, unjudged_markdown
from eval_dagster.pages.report.summaries import markdown as markdown_summary
from eval_dagster.project import Project
from eval_dagster.records.judgements import COMPARED, Verdict
from eval_dagster.stores.whole_files import replaced

_COLUMNS = ("eval", "model", "metric", *FIGURE_COLUMNS, "verdict", "what differs")
_NUMBERS = tuple(name for name in FIGURE_COLUMNS if "interval" not in name)
_STYLES = {Tone.BAD: "red", Tone.WARNING: "yellow", Tone.GOOD: "green", Tone.UNKNOWN: "none"}


def write_summaries(result: GateResult, addresses: Addresses, *, junit: Path | None, markdown: Path | None) -> None:
    """Write a gate's result into files for a CI system, each whole or not at all, with links that everybody can follow."""
    links = addresses.everywhere().of_judgement(result.suite, result.judged_at.isoformat(), result.run_id)
    for path, words in ((junit, junit_xml), (markdown, markdown_summary)):
        if path is not None:
            with replaced(path) as temporary:
                temporary.write_text(words(result, links), "utf-8")


def write_unjudged(suite: str, reasons: Sequence[str], *, junit: Path | None, markdown: Path | None) -> None:
    """Write files for a CI system about a suite that was not judged, so that no file of an earlier run stands there."""
    for path, text in ((junit, unjudged_junit(suite, reasons)), (markdown, unjudged_markdown(suite, reasons))):
        if path is not None:
            with replaced(path) as temporary:
                temporary.write_text(text, "utf-8")


def print_gate(result: GateResult) -> None:
    """Print the results that changed, those that were not judged with the reasons, and the verdict in a line."""
    changed = [*result.red, *result.with_verdict(Verdict.IMPROVED)]
    changed_aggregates = [row for row in result.aggregates if row.is_red or row.verdict is Verdict.IMPROVED]
    if changed or changed_aggregates:
        rows = [[row.eval, row.model, row.metric or "", *figures(row), row.verdict.value, cause_text(row.cause)] for row in changed]
        rows += [[row.aggregate, row.model, "aggregate", *figures(row), row.verdict.value, ""] for row in changed_aggregates]
        print_screenful(f"Gate of {result.suite}", _COLUMNS, rows, right=_NUMBERS, whole="sql regressions --format csv")
    out.print(f"Gate      {result.suite}: {verdict_line(result)}", style=_STYLES[tone(result)], soft_wrap=True)
    if result.is_first:
        return
    if fall := clearest_fall(result):
        out.print(f"          fall: {fall}", soft_wrap=True)
    said = ((row, "; ".join(row.remarks)) for row in result.regressions)
    lines = [f"          {row.verdict.value}: {title(row)}: {words}" for row, words in said if words and row.verdict in COMPARED]
    others = unjudged([row for row in result.regressions if row.verdict not in COMPARED])
    lines += [f"          {each.verdict.value}: {each.what} on {each.models}: {each.reason}" for each in others]
    lines += [f"          {line}" for line in asked_in_full(result.regressions)]
    lines += [
        f"          {row.verdict.value}: aggregate {row.aggregate} on {row.model}: {aggregate_remarks(row)}"
        for row in result.aggregates
        if row.reason
    ]
    print_few(lines, whole="sql regressions --format csv")


def next_command(result: GateResult) -> tuple[str, str] | None:
    """The command that shows in full what is red or was not evaluated, with its description; None if there is nothing."""
    if any(row.verdict is Verdict.ERRORS for row in result.red):
        return "sql errors", "the samples that are errors"
    first = next((row for row in result.red if row.baseline is not None), None)
    if first is None and result.red_aggregates:
        return "sql aggregate_regressions", "what the aggregates fell from, and the evals that they are made of"
    if first is None and result.outcome is Outcome.NOT_PROVEN:
        return f"plan --suite {result.suite} --detect 2", "how many samples a proof takes"
    if first is None and result.with_verdict(Verdict.NOT_EVALUATED):
        return "sql attempts", "how each evaluation ended, and why"
    if first is None:
        parts = [row for row in result.regressions if row.n_not_asked]
        stopped = [row for row in parts if not row.is_estimate]
        names = [
            f"{option} {name}"
            for option, name in dict.fromkeys(pair for row in stopped or parts for pair in (("--eval", row.eval), ("--model", row.model)))
        ]
        estimated = "asks the samples that the estimate left out, once you have removed `estimate` from the eval in evals.yaml"
        why = "asks the samples that the early stop left out" if stopped else estimated
        return (f"run {' '.join(sorted(names))}", why) if parts else None
    against = first.anchor if first.against == "anchor" else first.baseline
    return f"compare {first.model} {against} --eval {first.eval} --samples 50", "the samples that flipped, with both answers"


def accept_states(
    suite: Annotated[str, typer.Argument(help="Suite whose gate the states did not pass.")],
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the report.")],
    evals: Evals,
    models: Models,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the person; by default user@host.")] = None,
) -> None:
    """Record the acceptance of states that did not pass the gate, and print them."""
    project = Project.open()
    if not by:
        try:
            by = f"{getpass.getuser()}@{socket.gethostname()}"
        except (OSError, KeyError) as error:  # a user id without a name, as in a container
            raise UsageError("your user name is unknown; give your name: --by NAME") from error
    accepted = record_acceptance(project, suite, evals=evals, models=models, by=by, why=why)
    for each in accepted:
        out.print(f"accepted  {acceptance_line(each)}", soft_wrap=True)
    if any(each.materialized_at for each in accepted) and project.suite(suite).baseline == LAST_PASSED:
        out.print("It is the baseline and the anchor of later results.")
    if any(each.is_gap for each in accepted):
        out.print("The gap does not keep the suite from passing, until its eval and model are judged again.")
    print_next((f"run --suite {suite}", "judges the suite again"), ("sql acceptances", "all that was accepted, by whom and why"))
