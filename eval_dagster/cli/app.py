"""The commands of `eval-dagster` and their options."""

import platform
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli import export as exporting
from eval_dagster.cli import init as starting
from eval_dagster.cli import run as running
from eval_dagster.cli import show as inspecting
from eval_dagster.cli import sql as querying
from eval_dagster.cli import status as looking
from eval_dagster.cli import task_list, task_page
from eval_dagster.cli import trial as trials
from eval_dagster.cli.console import out
from eval_dagster.cli.environments import environments
from eval_dagster.cli.export import FileFormat
from eval_dagster.cli.label import labels
from eval_dagster.cli.samples import samples
from eval_dagster.cli.servers import ui as serving
from eval_dagster.cli.tables import Format
from eval_dagster.cli.task_page import PromptFormat
from eval_dagster.cli.view import view
from eval_dagster.errors import UsageError
from eval_dagster.statistics.paired import ALPHA

_Suite = Annotated[str | None, typer.Option(metavar="NAME", help="Evals and models of this suite.")]
_Evals = Annotated[list[str] | None, typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.")]
_Models = Annotated[list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.")]
_TRIAL = typer.Option("--trial", help="Show trials (`run --limit`) instead of published results.")
_LAKE = typer.Option("--lake", metavar="URL", help="Read the lake at this URL (s3://bucket/prefix), which needs no evals.yaml.")
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
app.add_typer(environments, name="environments")
app.add_typer(labels, name="label")
app.command()(samples)
app.command()(view)


def _show_versions(asked: bool) -> None:
    if asked:
        packages = {"eval_dagster": metadata.version("eval_dagster"), "Python": platform.python_version()}
        packages |= {name: _version(name) for name in ("dagster", "duckdb", "mlflow", "torch", "transformers")}
        out.print(", ".join(f"{name} {version}" for name, version in packages.items()), highlight=False, soft_wrap=True)
        raise typer.Exit


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


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
    name: Annotated[list[str] | None, typer.Argument(help="Task, eval, path/to/file.py:Class or lm_eval:NAME to show and check.")] = None,
    shots: Annotated[int | None, typer.Option(min=0, help="Number of few-shot examples; by default that of the eval or the task.")] = None,
    prompt_format: Annotated[
        PromptFormat | None, typer.Option("--format", help="Format of the prompt; by default that of the model, or plain.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model whose prompt format, or `chat` template, is used; by default the first with one."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="REGISTRY", help="List names of another package, lm_eval say: those that hold every word of NAME.")
    ] = None,
) -> None:
    """List the tasks that evals can use, or show and check one."""
    if source is not None:
        task_list.list_registry(source, name or [])
    elif not name:
        task_list.list_tasks()
    else:
        task_page.show_task(" ".join(name), shots, prompt_format, model)


@app.command()
def models() -> None:
    """List the models of evals.yaml, whether engine and files of each are there, and what would compute its answers."""
    inspecting.list_models()


@app.command()
def show(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model with the prompt format; by default the first one.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="NAME|ID|N", help="Own name of the sample, its id, or its number from 0; by default the first one."),
    ] = None,
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
    launch: Annotated[
        bool, typer.Option("--launch", help="Let the Dagster instance launch one run for each model, and follow these.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what the same command with --launch has launched.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be made and asked, and why; make and ask nothing. Exit status 4: something.")
    ] = False,
) -> None:
    """Evaluate with Dagster: everything in evals.yaml, or what the options choose. A suite is compared with its baseline."""
    if (launch or cancel) and (limit is not None or (launch and cancel)):
        raise UsageError("--launch, --cancel and --limit exclude each other; choose one")
    if dry_run:
        if launch or cancel or junit or markdown:
            raise UsageError("--dry-run makes nothing, so that --launch, --cancel, --junit and --markdown do not go with it")
        looking.show_states(suite=suite, evals=evals or [], models=models or [], limit=limit, fetches=True)
    elif cancel:
        running.cancel(suite=suite, evals=evals or [], models=models or [])
    elif limit is None:
        running.run(suite=suite, evals=evals or [], models=models or [], junit=junit, markdown=markdown, launch=launch)
    else:
        trials.run_trial(suite=suite, evals=evals or [], models=models or [], limit=limit, junit=junit, markdown=markdown)


@app.command()
def status(
    suite: _Suite = None,
    evals: _Evals = None,
    models: _Models = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show evals and models of which nothing would be made.")] = False,
    output: Annotated[Format, _FORMAT] = Format.TABLE,
) -> None:
    """Show which results are up to date, and what a run would make, ask and cost. Nothing is made, asked, fetched or written.

    Exit status: 0 all are up to date; 4 a run would make something; 1 something is broken, or cannot be told.
    """
    looking.show_states(suite=suite, evals=evals or [], models=models or [], everything=everything, output=output)


@app.command()
def leaderboard(
    suite: _Suite = None,
    evals: _Evals = None,
    models: _Models = None,
    everything: Annotated[bool, typer.Option("--all", help="Also show evals and models that evals.yaml does not have.")] = False,
    trial: Annotated[bool, _TRIAL] = False,
    costs: Annotated[
        bool, typer.Option("--cost", help="Also show what the answers cost: seconds of workers and GPUs, dollars of served models.")
    ] = False,
    lake: Annotated[str | None, _LAKE] = None,
) -> None:
    """Show the scores of the evals and models of evals.yaml. Results that can be compared have a rank."""
    querying.show_leaderboard(
        suite=suite, evals=evals or [], models=models or [], everything=everything, trial=trial, costs=costs, url=lake
    )


@app.command()
def plan(
    suite: _Suite = None,
    evals: _Evals = None,
    models: _Models = None,
    like: Annotated[str | None, typer.Option(metavar="NAME", help="Model whose rates hold for models without answers.")] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N", help="Number of workers; may be repeated [default: 1, 8, 64].")
    ] = None,
    start_s: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds in which a worker starts and loads the model.")] = 0.0,
) -> None:
    """Show what evals cost in seconds of workers, and how long they take on many workers, by answers whose time is known."""
    from eval_dagster.cli import plan as planning  # needed by this command alone

    planning.plan(suite=suite, evals=evals or [], models=models or [], like=like, workers=workers or [1, 8, 64], start_s=start_s)


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


@app.command("check-nights")
def check_nights(
    ping: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with an address that is requested if all is well, for a monitor."),
    ] = None,
) -> None:
    """Check that each suite with a cron was judged when it was due, and send a notice if not. For cron, systemd or a monitor."""
    from eval_dagster.cli.check_nights import check_nights as check  # imported lazily, as above

    check(ping)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="A statement, or the name of a relation or of a file in sql/.")],
    form: Annotated[Format | None, _FORMAT] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all rows to a .csv, .json or .parquet instead.")] = None,
    trial: Annotated[bool, _TRIAL] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Let the statement read and write files, and load extensions.")] = False,
    lake: Annotated[str | None, _LAKE] = None,
    night: Annotated[
        datetime | None,
        typer.Option(metavar="DATE", formats=["%Y-%m-%d"], help="Query the state at the end of that past day (UTC)."),
    ] = None,
) -> None:
    """Query the results. Without --unsafe, a query can only read them."""
    querying.run_query(query, form, trial=trial, file=output, unsafe=unsafe, url=lake, night=night)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of the files; created if it does not exist.")],
    relations: Annotated[
        list[str] | None,
        typer.Option("--relation", metavar="NAME", help="Only this relation; may be repeated. By default all of the current results."),
    ] = None,
    form: Annotated[FileFormat, typer.Option("--format", help="Format of the files.")] = FileFormat.PARQUET,
    trial: Annotated[bool, _TRIAL] = False,
    lake: Annotated[str | None, _LAKE] = None,
) -> None:
    """Write the current results into a folder, one file for each relation, for pandas, R or a spreadsheet."""
    exporting.export(folder, relations or [], form, trial=trial, url=lake)


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
def upload(url: Annotated[str, typer.Argument(metavar="URL", help="The new place of the lake, s3://bucket/prefix for instance.")]) -> None:
    """Move the results of this home to an object store, which other machines share. No run may be going on."""
    from eval_dagster.cli.upload import upload_home  # imported lazily, as above

    upload_home(url)


@app.command("import-suite")
def import_suite(
    source: Annotated[str, typer.Argument(metavar="REGISTRY:GROUP", help="A group of benchmarks of another package: lm_eval:leaderboard.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the suite; by default that of the group.")] = None,
) -> None:
    """Add a group of benchmarks of another package to evals.yaml, as a suite of evals for all models."""
    from eval_dagster.cli import import_suite as importing  # imported lazily, as above

    importing.import_suite(source, name)


@app.command()
def mirror(
    folder: Annotated[Path, typer.Argument(help="Folder of the mirror. Files that it has are not fetched again.")],
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Only what the evals of this suite read.")] = None,
) -> None:
    """Fetch the datasets that the evals of evals.yaml read into a folder, for machines without a network."""
    from eval_dagster.cli import mirror as mirroring  # imported lazily, as above

    mirroring.mirror(folder, suite)


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
