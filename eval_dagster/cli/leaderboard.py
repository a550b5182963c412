"""The command `leaderboard`: the scores of evals and models, and what they cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from eval_dagster.cli.console import out, program_name
from eval_dagster.cli.options import Evals, LakeURL, Models, Suite, Trial
from eval_dagster.cli.sql import print_damages, queried_lake, read_again, reads_url
from eval_dagster.cli.tables import print_few, print_screenful
from eval_dagster.config.values import LAKE_VARIABLE
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import damages_listed, read_rows
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.columns import AggregateRow
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.pages.samples.places import shown_pages
from eval_dagster.project import Project
from eval_dagster.results.trust import answer_words
from eval_dagster.texts.figures import dollars, interval, number

_ANSWERING = "select eval, model, served_model, server_fingerprint, count(*) as answers from responses group by all"
_COLUMNS = ("eval", "rank", "model", "metric", "score", "± stderr", "95 % interval", "samples", "errors")
_SPARE = ("± stderr", "answers", "95 % interval", "variants", "cost")
"""Columns that a narrow terminal does without."""
SCORE_NUMBERS = ("rank", "score", "± stderr", "samples", "errors")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A score of the relation `leaderboard_all`."""

    eval: str
    rank: int | None
    """Null if the score cannot be compared with the ranked ones, or is missing."""
    model: str
    metric: str
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    n_errors: int
    differs: str | None
    """Marks rows without a rank: what differs from the ranked results."""
    newer_attempt: str | None
    """Marks results which a newer run did not replace: how that ended."""
    mixed_answers: str | None
    """Marks scores which mix models or states of a server."""
    findings: list[str] | None
    """Signs that the score measures something else; null if nobody has looked for any."""
    estimate_note: str | None
    """Marks scores that are estimated from a part of the samples: how."""
    answers: str = ""
    """How the model answered, if there is something to tell."""
    spread: float | None = None
    """The largest difference between the scores of two variants of the prompt; null without variants."""
    exceeds_models: bool | None = None
    """Whether this is more than the two best models differ by; null if chance alone may explain it."""
    best_difference: float | None = None
    """The difference of the two best models; null for one model."""


def standings(lake: Lake) -> list[Standing]:
    """The rows of a lake's leaderboard."""
    rows = read_rows(
        lake,
        """
        select
            eval, rank, model, board.metric, value, stderr, ci_low, ci_high, n, n_errors, differs, newer_attempt, mixed_answers, findings,
            n_cut_off, n_empty, n_unparsed, n_refused, n_repeated, n_shortened, n_completed, value_completed, value_lowest, value_highest,
            n_not_asked, estimate, estimate_factor, estimate_note, spread, exceeds_models, best_difference
        from leaderboard_all as board
        left join prompt_sensitivity using (eval, model)
        order by eval, rank nulls last, model
        """,
    )
    return [Standing(**fields_in(row, Standing), answers=answer_words(row)) for row in rows]


def show_leaderboard(
    *,
    suite: Suite = None,
    evals: Evals,
    models: Models,
    everything: Annotated[bool, typer.Option("--all", help="Also show evals and models that evals.yaml does not have.")] = False,
    trial: Trial = False,
    costs: Annotated[
        bool, typer.Option("--cost", help="Also show what the answers cost: seconds of workers and GPUs, dollars of served models.")
    ] = False,
    url: LakeURL = None,
) -> None:
    """Print the leaderboard, the damaged files, the pages of samples, and if it is empty, the reason."""
    if everything and (suite or evals or models):
        raise UsageError("--all shows every result that there is; give it without --suite, --eval and --model")
    of_url = reads_url(url)
    if of_url and (suite or evals or models or trial):
        given = "--lake" if url is not None else LAKE_VARIABLE
        raise UsageError(f"{given} shows every result of that lake; give it without --suite, --eval, --model and --trial")
    project = None if of_url else Project.open()
    chosen = None if everything or project is None else project.select(suite=suite, evals=evals, models=models, imported=True)
    lake = queried_lake(url, trial=trial)
    read_again(lake)
    results = print_leaderboard(lake, title="Trials" if trial else "Leaderboard", chosen=chosen, costs=costs)
    if suite and results:
        print_aggregates(lake, suite, models)
    damages = damages_listed(lake)
    print_damages(damages)
    for page in [] if trial else shown_pages(lake.home, results):
        out.print(f"Samples: {page}", soft_wrap=True)
    if not results:
        failed, option = bool(read_attempts(lake)), " --trial" if trial else ""
        state, command = ("every evaluation failed", f"sql attempts{option}") if failed else ("no evaluation has ended", "run")
        if damages:
            state, command = "files are damaged, and left out", "verify"
        if (suite or evals or models) and read_rows(lake, "select 1 from leaderboard_all limit 1"):
            state = "the chosen evals and models have not been evaluated"
        out.print(f"There is no result yet: {state}. Next: {program_name()} {command}", soft_wrap=True)
        if not trial and lake.mirror is None and catalog_path(trial_lake(lake)).exists():
            out.print(f"There are trials: {program_name()} leaderboard --trial", soft_wrap=True)
        if damages:
            raise typer.Exit(1)


def print_leaderboard(
    lake: Lake,
    *,
    title: str = "Leaderboard",
    chosen: tuple[Sequence[str], Sequence[str]] | None = None,
    costs: bool = False,
    whole: str | None = None,
) -> list[tuple[str, str]]:
    """Print the leaderboard of a lake, for the chosen evals and models or for all. Returns the eval and the model of each row.

    `whole` is the command that prints all rows, where a terminal shows a part; by default the command that runs.
    """
    rows, option = standings(lake), " --trial" if lake.is_trial else ""
    if chosen is not None:
        rows = [row for row in rows if row.eval in chosen[0] and row.model in chosen[1]]
    if rows:
        columns, cells = score_table(rows)
        if costs:
            known = answer_costs(lake)
            columns = [*columns, "cost"]
            cells = [[*each, known.get((row.eval, row.model), "")] for each, row in zip(cells, rows, strict=True)]
        print_screenful(
            title,
            columns,
            cells,
            right=(*SCORE_NUMBERS, "cost"),
            heads=("eval", "metric"),
            spare=_SPARE,
            whole=whole,
            choices="--suite, --eval or --model" if whole is None else "",
        )
    if any(row.differs for row in rows):
        out.print("Without a rank: what differs from the results of the eval that are ranked.", style="dim")
    if any(row.newer_attempt for row in rows):
        words = f"A result is older than the last run that the table names: {program_name()} sql attempts{option}"
        out.print(words, style="yellow", soft_wrap=True)
    if any(row.mixed_answers for row in rows):
        query = f'{program_name()} sql "{_ANSWERING}"{option}'
        out.print(f"A score mixes answers of what the table names: {query}", style="yellow", soft_wrap=True)
    noted = [f"{row.eval} · {row.model} is an estimate: {row.estimate_note}" for row in rows if row.estimate_note]
    print_few(noted, whole=f"sql leaderboard --format csv{option}", style="yellow")
    if any(row.findings for row in rows):
        out.print(
            f"⚠ Signs that a score measures something else: {program_name()} sql eval_findings{option}", style="yellow", soft_wrap=True
        )
    varied: dict[str, list[Standing]] = {}
    for row in rows:
        if row.spread is not None:
            varied.setdefault(row.eval, []).append(row)
    warnings = filter(None, map(prompt_warning, varied.values()))
    seen = f"sql prompt_sensitivity{option}"
    print_few([f"{warning}: {program_name()} {seen}" for warning in warnings], whole=f"{seen} --format csv", style="yellow")
    if any(row.findings is None for row in rows):
        unchecked = "results that are imported, or older than these checks. The next run looks at the older ones, and asks no model"
        out.print(f"Not checked: {unchecked}.", style="yellow")
    return [(row.eval, row.model) for row in rows]


def print_aggregates(lake: Lake, suite: str, models: Sequence[str] = ()) -> None:
    """Print the aggregates of a suite, for some models or for all of the suite, and why one has no value."""
    query = "from aggregates where suite = $suite order by aggregate, model"
    rows: list[AggregateRow] = [row for row in read_rows(lake, query, {"suite": suite}) if not models or row["model"] in models]
    if not rows:
        return
    cells = [
        [
            *(row["aggregate"], row["model"], number(row["value"]), number(row["stderr"]), interval(row["ci_low"], row["ci_high"])),
            *(row["n_evals"], row["n_samples"]),
        ]
        for row in rows
    ]
    whole = f"""sql "from aggregates where suite = '{suite}'" --format csv{" --trial" if lake.is_trial else ""}"""
    print_screenful(
        f"Aggregates of {suite}",
        ("aggregate", "model", "value", "± stderr", "95 % interval", "evals", "samples"),
        cells,
        right=("value", "± stderr", "evals", "samples"),
        heads=("aggregate",),
        spare=("samples", "± stderr"),
        whole=whole,
    )
    without = [f"{row['aggregate']} of {row['model']} has no value: {row['reason']}" for row in rows if row["reason"]]
    print_few(without, whole=whole, style="yellow")


def prompt_warning(rows: Sequence[Standing]) -> str | None:
    """The words on an eval whose scores differ more by the prompt than between its two best models. None if they do not."""
    compared = [row for row in rows if row.spread is not None and row.rank is not None and row.best_difference is not None]
    wide = [row for row in compared if row.exceeds_models is not False]
    if not wide:
        return None
    row = max(wide, key=lambda each: (each.exceeds_models is True, each.spread or 0.0))
    seen = f"{row.eval}: the prompt changes the score of {row.model} by up to {number(row.spread)}"
    if row.exceeds_models:
        return f"⚠ {seen}, more than the two best models differ by ({number(row.best_difference)})"
    return f"{seen}, which may be chance, and the two best models differ by less ({number(row.best_difference)})"


def score_table(rows: Sequence[Standing]) -> tuple[list[str], list[list[object]]]:
    """Columns and cells of a leaderboard. What marks a row is shown if a row has it."""
    columns = list(_COLUMNS)
    cells: list[list[object]] = [
        [
            *(row.eval, row.rank, row.model, row.metric, number(row.value), number(row.stderr), interval(row.ci_low, row.ci_high)),
            *(row.n, row.n_errors),
        ]
        for row in rows
    ]
    marks: dict[str, Sequence[object]] = {
        "differs": [row.differs for row in rows],
        "last run": [row.newer_attempt for row in rows],
        "mixed answers": [row.mixed_answers for row in rows],
        "answers": [row.answers for row in rows],
        "variants": ["" if row.spread is None else f"{number(row.spread)} apart" for row in rows],
        "findings": ["not checked" if row.findings is None else f"⚠ {len(row.findings)}" if row.findings else "" for row in rows],
    }
    for name, marked in marks.items():
        if any(marked):
            columns.append(name)
            cells = [[*each, mark] for each, mark in zip(cells, marked, strict=True)]
    return columns, cells


@dataclass(frozen=True, kw_only=True)
class _Spent:
    """The cost of the answers of a model to an eval, each counted once."""

    eval: str
    model: str
    cost: float | None
    """US dollars."""
    cost_unknown: int
    """Answers of a server whose cost is not known."""
    worker_s: float | None
    gpu_s: float | None
    worker_s_unknown: int
    """Answers of a model on a machine whose time is not known."""
    is_served: bool


def answer_costs(lake: Lake) -> dict[tuple[str, str], str]:
    """Costs by eval and model as text, with the number of answers of unknown cost."""
    rows = read_rows(
        lake,
        """
        with answers as (
            select distinct on (eval, model, request_id) eval, model, attempts, error, cost, worker_s, gpu_s
            from responses
        )
        select
            eval,
            model,
            sum(cost) filter (attempts is not null) as cost,
            count(*) filter (attempts is not null and cost is null) as cost_unknown,
            sum(worker_s) as worker_s,
            sum(gpu_s) as gpu_s,
            count(*) filter (attempts is null and worker_s is null and error is null) as worker_s_unknown,
            count(attempts) > 0 as is_served
        from answers
        group by eval, model
        """,
    )
    costs: dict[tuple[str, str], str] = {}
    for spent in (_Spent(**row) for row in rows):
        parts = [
            _amount(spent.worker_s, spent.worker_s_unknown, "{:,.1f} worker s".format),
            f"{spent.gpu_s:,.1f} GPU s" if spent.gpu_s else "",
            _amount(spent.cost, spent.cost_unknown, dollars) if spent.is_served else "",
        ]
        costs[spent.eval, spent.model] = ", ".join(filter(None, parts))
    return costs


def _amount(known: float | None, unknown: int, shown: Callable[[float], str]) -> str:
    if known is None:
        return "unknown" if unknown else ""
    return shown(known) + (f" + {unknown} unknown" if unknown else "")
