"""The command `eval-dagster`. Exit status: 0 done, 1 something was evaluated and failed, 2 wrong usage or configuration."""

import os
import platform
import signal
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from eval_dagster.cli import init as starting
from eval_dagster.cli import run as running
from eval_dagster.cli import show as inspecting
from eval_dagster.cli import sql as querying
from eval_dagster.cli import task_list, task_page
from eval_dagster.cli import trial as trials
from eval_dagster.cli import ui as serving
from eval_dagster.cli.console import errors, out, say
from eval_dagster.cli.os_errors import full_disk_of, os_error_message
from eval_dagster.cli.streams import flush, is_closed_pipe, leave_closed_pipe
from eval_dagster.cli.tables import Format
from eval_dagster.cli.task_page import PromptFormat
from eval_dagster.errors import EvalDagsterError, UsageError
from eval_dagster.statistics.comparison import ALPHA

_INTERRUPTED = 130
_Suite = Annotated[str | None, typer.Option(metavar="NAME", help="Evals and models of this suite.")]
_Evals = Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")]
_Models = Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.")]
_TRIAL = typer.Option("--trial", help="Show trials (`run --limit`) instead of published results.")
_FORMAT = typer.Option(
    "--format",
    help="Format of the rows: csv holds exact texts, spreadsheet is csv without formulas, json escapes control characters.",
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_versions(asked: bool) -> None:
    if asked:
        packages = {"eval_dagster": metadata.version("eval_dagster"), "Python": platform.python_version()}
        packages |= {name: metadata.version(name) for name in ("dagster", "duckdb", "mlflow", "torch", "transformers")}
        out.print(", ".join(f"{name} {version}" for name, version in packages.items()), highlight=False, soft_wrap=True)
        raise typer.Exit


@app.callback()
def options(
    versions: Annotated[
        bool, typer.Option("--version", callback=_show_versions, is_eager=True, help="Show the versions of this and its packages.")
    ] = False,
) -> None:
    """LLM evaluation as a data pipeline."""


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="Folder of the project; created if it does not exist.")] = Path()) -> None:
    """Write the files of a new project: evals.yaml, a benchmark, a workspace of Dagster, a CI workflow."""
    starting.write_project(folder)


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(help="Task, eval, or path/to/file.py:Class to show and check.")] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Number of few-shot examples; by default that of the eval or the task.")] = None,
    prompt_format: Annotated[
        PromptFormat | None, typer.Option("--format", help="Format of the prompt; by default that of the model, or plain.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model whose prompt format, or `chat` template, is used; by default the first with one."),
    ] = None,
) -> None:
    """List the tasks that evals can use, or show and check one."""
    if name is None:
        task_list.list_tasks()
    else:
        task_page.show_task(name, shots, prompt_format, model)


@app.command()
def models() -> None:
    """List the models of evals.yaml, and whether each could be loaded."""
    inspecting.list_models()


@app.command()
def show(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model with the prompt format; by default the first one.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Number of the sample, from 0.")] = 0,
) -> None:
    """Show exactly what a model sees for one sample: prompt, choices, gold answer."""
    inspecting.show_prompt(eval_name, model, sample)


@app.command()
def run(
    suite: _Suite = None,
    evals: _Evals = None,
    models: _Models = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Trial: evaluate at most N samples a subject; published results do not change.", metavar="N")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result of the suite's gate as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result of the suite's gate as Markdown.")] = None,
) -> None:
    """Evaluate with Dagster: everything in evals.yaml, or what the options choose. A suite is compared with its baseline."""
    if limit is None:
        running.run(suite=suite, evals=evals or [], models=models or [], junit=junit, markdown=markdown)
    else:
        trials.run_trial(suite=suite, evals=evals or [], models=models or [], limit=limit, junit=junit, markdown=markdown)


@app.command()
def leaderboard(
    suite: _Suite = None,
    evals: _Evals = None,
    models: _Models = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show evals and models that evals.yaml does not have.")] = False,
    trial: Annotated[bool, _TRIAL] = False,
) -> None:
    """Show the scores of the evals and models of evals.yaml. Results that can be compared have a rank."""
    querying.show_leaderboard(suite=suite, evals=evals or [], models=models or [], everything=everything, trial=trial)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model, or one at a time: NAME@2026-01-31, NAME@previous.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The baseline, in the same forms.")],
    evals: _Evals = None,
    all_metrics: Annotated[bool, typer.Option("--all-metrics", help="Compare every metric instead of the headlines.")] = False,
    alpha: Annotated[float, typer.Option(min=0.0, max=1.0, help="Level of significance of all comparisons together.")] = ALPHA,
    samples: Annotated[int, typer.Option(min=0, help="Number of flipped samples to show for each eval.")] = 3,
    output: Annotated[Format, _FORMAT] = Format.TABLE,
) -> None:
    """Show how much A differs from B on their common samples, with its uncertainty and possible causes."""
    from eval_dagster.cli.compare import compare as print_comparison  # imported lazily: slow to import

    print_comparison(a, b, evals=evals or [], all_metrics=all_metrics, alpha=alpha, samples=samples, output=output)


@app.command()
def accept(
    suite: Annotated[str, typer.Argument(help="Suite whose gate the states did not pass.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the report.")],
    evals: _Evals = None,
    models: _Models = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the person; by default user@host.")] = None,
) -> None:
    """Accept the last judged states of a suite as the baseline of later ones: all that are red, or those named."""
    from eval_dagster.cli.accept import accept_states  # imported lazily, as above

    accept_states(suite, evals=evals or [], models=models or [], why=why, by=by)


@app.command()
def notify(suite: Annotated[str, typer.Argument(help="Suite whose `notify` in evals.yaml names the addresses.")]) -> None:
    """Send a test notice, and print whether it was sent."""
    from eval_dagster.cli.notify import send_trial  # imported lazily, as above

    send_trial(suite)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="A statement, or the name of a relation or of a file in sql/.")],
    form: Annotated[Format | None, _FORMAT] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all rows to a .csv, .json or .parquet instead.")] = None,
    trial: Annotated[bool, _TRIAL] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Let the statement read and write files, and load extensions.")] = False,
) -> None:
    """Query the results. Without --unsafe, a query can only read them."""
    querying.run_query(query, form, trial=trial, file=output, unsafe=unsafe)


@app.command()
def verify() -> None:
    """Compare every file of the home with its checksum, and list damaged files."""
    from eval_dagster.cli.verify import verify_home  # imported lazily, as above

    verify_home()


@app.command()
def gc(
    keep: Annotated[str, typer.Option(metavar="90d|10", help="Keep the last 90 days (90d), or the newest 10 of each partition (10).")],
    catalogs: Annotated[
        str | None, typer.Option(metavar="90d|10", help="The same for the catalogs of past days (0: none); by default as --keep.")
    ] = None,
    removed: Annotated[
        bool, typer.Option("--removed", help="Also delete all files of evals, models and suites outside evals.yaml.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the files instead of only listing them.")] = False,
) -> None:
    """List what can be deleted: old results with the files that they were made from, judgements, reports, catalogs, unused answers."""
    from eval_dagster.cli.gc import collect  # imported lazily, as above

    collect(keep=keep, catalogs=catalogs, removed=removed, yes=yes)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of Dagster; the next free one if it is in use.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of MLflow; the next free one if it is in use.")] = 5000,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Another address of the pages (proxy, tunnel); may be repeated."),
    ] = None,
) -> None:
    """Start the Dagster UI, its daemon and the MLflow UI on loopback, until Ctrl-C; requests of foreign web pages are refused."""
    serving.serve(port, mlflow_port, origins or [])


def program() -> NoReturn:
    """Run the command line as a process of its own, which then ends without the interpreter's cleanup."""
    try:
        main()
    except SystemExit as stop:
        _leave(stop.code if isinstance(stop.code, int) else int(stop.code is not None))


def main() -> NoReturn:
    """Run the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        status = app(standalone_mode=False)
        flush(sys.stdout, sys.stderr)
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except EvalDagsterError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except (OSError, SystemExit) as error:
        if is_closed_pipe(error):
            leave_closed_pipe()
        if isinstance(error, SystemExit):
            raise
        _fail(os_error_message(error, _home()), 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # only typer's errors have it
            if full_disk_of(_home()) is None:
                raise
            _fail(f"{type(error).__name__}: {error}".splitlines()[0], 1)
        message = error.format_message()
        is_help = message.startswith("Usage:")
        errors.print(message if is_help else f"error: {message}; see eval-dagster --help", style="" if is_help else "red", markup=False)
        sys.exit(2)
    if status == _INTERRUPTED:  # typer returns the same status for an interrupt
        is_run = sys.argv[1:2] == ["run"]
        errors.print("interrupted" + (": answers so far are kept, the next run continues from there" if is_run else ""))
    if status == 1:
        _say_full_disk()
    _leave(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    """Print one message and end."""
    say(errors, "error", message, style="red")
    if "the disk at" not in message:
        _say_full_disk()
    sys.exit(status)


def _say_full_disk() -> None:
    """Name the disk of the home if it is full: libraries can report a full disk in other words."""
    message = full_disk_of(_home())
    if message is not None:
        say(errors, "error", message, style="red")


def _home() -> Path:
    return Path(os.environ.get("EVAL_DAGSTER_HOME", ".eval_dagster")).absolute()


def _leave(status: int) -> NoReturn:
    """End the process without the interpreter's cleanup, in which DuckDB's binding prints long warnings about objects in use.

    Everything that must be kept is written and closed by then.
    """
    with suppress(OSError):  # the error was already reported
        flush(sys.stdout, sys.stderr)
    os._exit(status)


if __name__ == "__main__":
    program()
