"""The commands `leaderboard` and `sql`."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import typer

from eval_dagster.cli.console import SCORE_NUMBERS, errors, out, print_table, program_name, say, score_table
from eval_dagster.cli.tables import Format, check_output, print_result, write_rows
from eval_dagster.config.values import LAKE_URLS, LAKE_VARIABLE, wrong_lake_url
from eval_dagster.errors import QueryError, UsageError
from eval_dagster.lake.catalog.archives import night_lake, past_catalog
from eval_dagster.lake.catalog.catalog import damages_listed, executed, read_rows, refresh
from eval_dagster.lake.catalog.relations import relation_files
from eval_dagster.lake.catalog.sessions import plain
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.remote.mirror import reading_home
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.pages.samples.places import shown_pages
from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.project import Project, default_config_path
from eval_dagster.texts.figures import counted, did_you_mean, dollars

_MOST_DAMAGES = 5
_ANSWERING = "select eval, model, served_model, server_fingerprint, count(*) as answers from responses group by all"


def show_leaderboard(
    *, suite: str | None, evals: Sequence[str], models: Sequence[str], everything: bool, trial: bool, costs: bool, url: str | None = None
) -> None:
    """Print the leaderboard of the chosen evals and models, or of all results (`everything`), with what the answers cost (`costs`)."""
    if everything and (suite or evals or models):
        raise UsageError("--all shows every result that there is; give it without --suite, --eval and --model")
    of_url = reads_url(url)
    if of_url and (suite or evals or models or trial):
        given = "--lake" if url is not None else LAKE_VARIABLE
        raise UsageError(f"{given} shows every result of that lake; give it without --suite, --eval, --model and --trial")
    project = None if of_url else Project.open()
    chosen = None if everything or project is None else project.select(suite=suite, evals=evals, models=models)
    lake = queried_lake(url, trial=trial)
    read_again(lake)
    results = print_leaderboard(lake, title="Trials" if trial else "Leaderboard", chosen=chosen, costs=costs)
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
    lake: Lake, *, title: str = "Leaderboard", chosen: tuple[Sequence[str], Sequence[str]] | None = None, costs: bool = False
) -> list[tuple[str, str]]:
    """Print the leaderboard of a lake, for the chosen evals and models or for all. Returns the eval and the model of each row."""
    rows, option = read_rows(lake, "select * from leaderboard_all"), " --trial" if lake.is_trial else ""
    if chosen is not None:
        rows = [row for row in rows if row["eval"] in chosen[0] and row["model"] in chosen[1]]
    if rows:
        columns, cells = score_table(rows)
        if costs:
            known = _costs(lake)
            columns = [*columns, "cost"]
            cells = [[*each, known.get((row["eval"], row["model"]), "")] for each, row in zip(cells, rows, strict=True)]
        print_table(title, columns, cells, right=(*SCORE_NUMBERS, "cost"), heads=("eval", "metric"))
    if any(row["differs"] for row in rows):
        out.print("Without a rank: what differs from the results of the eval that are ranked.", style="dim")
    if any(row["newer_attempt"] for row in rows):
        words = f"A result is older than the last run that the table names: {program_name()} sql attempts{option}"
        out.print(words, style="yellow", soft_wrap=True)
    if any(row["mixed_answers"] for row in rows):
        query = f'{program_name()} sql "{_ANSWERING}"{option}'
        out.print(f"A score mixes answers of what the table names: {query}", style="yellow", soft_wrap=True)
    if any(row["findings"] for row in rows):
        out.print(
            f"⚠ Signs that a score measures something else: {program_name()} sql eval_findings{option}", style="yellow", soft_wrap=True
        )
    if any(row["findings"] is None for row in rows):
        out.print("Not checked: prompts from before these checks; the next run looks at them, and asks no model.", style="yellow")
    return [(row["eval"], row["model"]) for row in rows]


def _costs(lake: Lake) -> dict[tuple[str, str], str]:
    """Costs by eval and model, each answer counted once, with the number of answers of unknown cost."""
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
    return {(row["eval"], row["model"]): _cost(row) for row in rows}


def _cost(row: Mapping[str, Any]) -> str:
    parts = [
        _amount(row["worker_s"], row["worker_s_unknown"], "{:,.1f} worker s".format),
        f"{row['gpu_s']:,.1f} GPU s" if row["gpu_s"] else "",
        _amount(row["cost"], row["cost_unknown"], dollars) if row["is_served"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _amount(known: float | None, unknown: int, shown: Callable[[float], str]) -> str:
    if known is None:
        return "unknown" if unknown else ""
    return shown(known) + (f" + {unknown} unknown" if unknown else "")


def queried_lake(url: str | None, *, trial: bool = False) -> Lake:
    """The lake of a URL, read through a copy in the user's cache; by default the project's, or without a project the environment's."""
    if not reads_url(url):
        project = Project.open()
        return _trials(project) if trial else project.lake
    if trial:
        raise UsageError("trials are never in a lake that machines share; give --trial without --lake, in the folder of the project")
    asked = url or os.environ.get(LAKE_VARIABLE) or ""
    if (reason := wrong_lake_url(asked)) is not None:  # not repeated in the message, since it can hold a secret
        raise UsageError(f"the URL of the lake ({'--lake' if url else LAKE_VARIABLE}) is wrong: {reason}; expected {LAKE_URLS}")
    return Lake(reading_home(asked))


def reads_url(url: str | None) -> bool:
    """Whether the lake of a URL is read: from `--lake` or, in a folder without a project, from the environment."""
    return url is not None or bool(os.environ.get(LAKE_VARIABLE) and not default_config_path().exists())


def read_again(lake: Lake) -> None:
    """Bring the catalog up to date, and print lines of progress while many files are fetched."""
    with use_reporter(LogReporter(lambda line: errors.print(line, style="dim", soft_wrap=True))):
        refresh(lake)
    if lake.mirror is not None and lake.configured is None and not any(True for table in TABLES for _ in lake.partitions(table)):
        raise QueryError(f"the lake {lake.mirror.store.url} has no results; correct the URL, or run with it: `lake:` in evals.yaml")


def _trials(project: Project) -> Lake:
    """The lake of trials. Raises `QueryError` before the first trial."""
    lake = trial_lake(project.lake)
    if not catalog_path(lake).exists():
        raise QueryError(f"there is no trial to query: {catalog_path(lake)} does not exist; run `eval-dagster run --limit N` first")
    return lake


def run_query(
    query: str,
    output: Format | None,
    *,
    trial: bool,
    file: Path | None,
    unsafe: bool,
    url: str | None = None,
    night: datetime | None = None,
) -> None:
    """Run a statement, or select all of a relation, and print its rows, or write them to a file in the format of its suffix."""
    _check_text(query)
    lake = queried_lake(url, trial=trial)
    if file is not None:
        if output is not None:
            raise UsageError("--format is for printed rows, and --output takes the format from the file's suffix; give one of them")
        check_output(file, lake.home)
    past = past_catalog(lake, night.date()) if night is not None and lake.mirror is None else None
    if night is not None and past is None:
        lake = night_lake(lake, night.date())
    if past is None:
        read_again(lake)
    statement = _statement(lake, query, past)
    try:
        with executed(lake, statement, unsafe=unsafe, past=past) as session:
            if file is not None:
                out.print(f"{counted(write_rows(session, file), 'row')} written to {file}", soft_wrap=True)
            else:
                print_result(session, output or Format.TABLE)
    except duckdb.Error as error:
        raise QueryError(_failure(error)) from error
    print_damages(damages_listed(lake, past=past))


def print_damages(damages: Sequence[str]) -> None:
    """Print the damaged files, which are left out of the results."""
    for damage in damages[:_MOST_DAMAGES]:
        say(errors, "warning", f"left out: {damage}", style="yellow")
    if len(damages) > _MOST_DAMAGES:
        say(errors, "warning", f"{len(damages) - _MOST_DAMAGES} more files are damaged: {program_name()} verify", style="yellow")


def _check_text(query: str) -> None:
    """Raise QueryError if a query is empty or no valid Unicode."""
    try:
        query.encode("utf-8")
    except UnicodeEncodeError as error:
        raise QueryError(f"the query holds a byte that is no UTF-8 (character {error.start + 1}); expected text in UTF-8") from error
    if not query.strip(" \t\r\n;"):
        raise QueryError(
            "found an empty query; expected a statement, or the name of a relation, for instance: eval-dagster sql leaderboard"
        )


def _failure(error: duckdb.Error) -> str:
    """The message for a failed query; if it tried to read or write files, with what to do instead."""
    if isinstance(error, duckdb.PermissionException) or "PermissionError" in str(error):
        return (
            f"the query needs a file, an extension or another database ({plain(error)}), but a query can only read results; write its "
            "rows with --output FILE, or give --unsafe, with which a query can read and write everything that you can"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more memory than there is ({plain(error)}); ask for less, or give --unsafe, with which it can use the disk"
    return f"the query failed: {str(error) if 'Traceback' not in str(error) else plain(error)}"


def _statement(lake: Lake, query: str, past: Path | None = None) -> str:
    """The statement of a query: for the name of a relation, a select of all its rows. Raises QueryError for any other single word."""
    word = query.strip()
    if not re.fullmatch(r"\w+", word):
        return query
    found = read_rows(lake, "select table_name from information_schema.tables where table_schema = 'main'", past=past)
    relations = {row["table_name"] for row in found}
    if word in relations:
        return f'select * from "{word}"'  # noqa: S608 - a known name
    file = relation_files().get(word)
    if file is not None:
        raise QueryError(f"{word} takes arguments: call it as {word}(...) in the `from` of a statement; {file} lists them")
    listed = sorted(name for name in relations | relation_files().keys() if not name.startswith("_"))
    raise QueryError(f"there is no relation {word!r}{did_you_mean(word, relations)}; there are: {', '.join(listed)}")
