"""The command `eval-dagster`. Exit status: 0 done, 1 something was evaluated and failed, 2 wrong usage or configuration."""

import os
import platform
import signal
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import FrameType
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
from eval_dagster.cli.environments import environments
from eval_dagster.cli.os_errors import full_disk_of, os_error_message
from eval_dagster.cli.streams import flush, is_closed_pipe, leave_closed_pipe
from eval_dagster.cli.tables import Format
from eval_dagster.cli.task_page import PromptFormat
from eval_dagster.errors import EvalDagsterError, UsageError
from eval_dagster.statistics.comparison import ALPHA

_INTERRUPTED = 130
_TRIAL = typer.Option("--trial", help="Of trials (`run --limit`) instead of what is published.")
_FORMAT = typer.Option(
    "--format",
    help="How rows are printed: csv holds every text as it is, spreadsheet is csv in which no text is a formula; json escapes controls.",
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(environments, name="environments")


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
def init(folder: Annotated[Path, typer.Argument(help="Where; created if it does not exist.")] = Path()) -> None:
    """Write the files of a new project: evals.yaml, a benchmark, a workspace of Dagster, a CI workflow."""
    starting.write_project(folder)


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(help="Task, eval, or path/to/file.py:Class, to be shown and checked.")] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Few-shot examples; as the eval or the task says when absent.")] = None,
    prompt_format: Annotated[
        PromptFormat | None, typer.Option("--format", help="How the prompt is written; as the model says, or plain, when absent.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose prompt format, and for `chat` whose template; the first with one when absent.")
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
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Whose prompt format; the first model when absent.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Which sample, from 0.")] = 0,
) -> None:
    """Show exactly what a model sees for one sample: prompt, choices, gold answer."""
    inspecting.show_prompt(eval_name, model, sample)


@app.command()
def run(
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Evals and models of this suite.")] = None,
    evals: Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Try it: at most N samples a subject; published results stay as they are.", metavar="N")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what the suite's gate found as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as Markdown.")] = None,
) -> None:
    """Evaluate, through Dagster: everything of evals.yaml, or what the options choose. A suite is compared with its baseline."""
    if limit is None:
        running.run(suite=suite, evals=evals or [], models=models or [], junit=junit, markdown=markdown)
    else:
        trials.run_trial(suite=suite, evals=evals or [], models=models or [], limit=limit, junit=junit, markdown=markdown)


@app.command()
def leaderboard(
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Evals and models of this suite.")] = None,
    evals: Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also evals and models that evals.yaml no longer has.")] = False,
    trial: Annotated[bool, _TRIAL] = False,
) -> None:
    """Show the scores of the evals and models of evals.yaml; ranks are among results that can be compared."""
    querying.show_leaderboard(suite=suite, evals=evals or [], models=models or [], everything=everything, trial=trial)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model, or one at a time: NAME@2026-01-31, NAME@previous.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
    evals: Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")] = None,
    all_metrics: Annotated[bool, typer.Option("--all-metrics", help="Every metric instead of the headlines.")] = False,
    alpha: Annotated[float, typer.Option(min=0.0, max=1.0, help="Level of significance of all comparisons together.")] = ALPHA,
    samples: Annotated[int, typer.Option(min=0, help="Flipped samples to show of each eval.")] = 3,
    output: Annotated[Format, _FORMAT] = Format.TABLE,
) -> None:
    """Say by how much A differs from B on the samples that both answered, how sure that is, and what could be the cause."""
    from eval_dagster.cli.compare import compare as print_comparison  # imported lazily: slow to import

    print_comparison(a, b, evals=evals or [], all_metrics=all_metrics, alpha=alpha, samples=samples, output=output)


@app.command()
def accept(
    suite: Annotated[str, typer.Argument(help="Whose gate the states did not pass.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which the report shows.")],
    evals: Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")] = None,
    models: Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.")] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who accepts; user@host when absent.")] = None,
) -> None:
    """Accept the last judged states of a suite as the baseline of later ones: all that are red, or those named."""
    from eval_dagster.cli.accept import accept_states  # imported lazily, as above

    accept_states(suite, evals=evals or [], models=models or [], why=why, by=by)


@app.command()
def notify(suite: Annotated[str, typer.Argument(help="Whose addresses: those of its `notify` in evals.yaml.")]) -> None:
    """Send a test notice, and say whether it arrived."""
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
    """Query the results. A query reads them and nothing else, unless --unsafe."""
    querying.run_query(query, form, trial=trial, file=output, unsafe=unsafe)


@app.command()
def verify() -> None:
    """Compare every file of the home with its checksums, and name what is damaged."""
    from eval_dagster.cli.verify import verify_home  # imported lazily, as above

    verify_home()


@app.command()
def gc(
    keep: Annotated[str, typer.Option(metavar="90d|10", help="What is kept: all of the last 90 days, or the newest 10 of each partition.")],
    catalogs: Annotated[
        str | None, typer.Option(metavar="90d|10", help="The same for the catalogs of past days (0: none); as --keep when absent.")
    ] = None,
    removed: Annotated[bool, typer.Option("--removed", help="Also all of evals, models and suites that evals.yaml no longer has.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete, instead of saying what would be deleted.")] = False,
) -> None:
    """Say what of the past can be deleted: old results with what they were made of, judgements, reports, catalogs, unused answers."""
    from eval_dagster.cli.gc import collect  # imported lazily, as above

    collect(keep=keep, catalogs=catalogs, removed=removed, yes=yes)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where Dagster listens; the next free one if it is taken.")] = 3000,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Where MLflow listens; the next free one if it is taken.")] = 5000,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Where else the pages are served (proxy, tunnel); may be repeated."),
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
    signal.signal(signal.SIGTERM, _interrupt)
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
        errors.print("interrupted" + (": answers so far are kept, the next run goes on from there" if is_run else ""))
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


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    program()
