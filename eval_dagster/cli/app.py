"""The commands of `eval-dagster`. The module of a command, which has its options, is imported if the command is used."""

import platform
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from eval_dagster.cli.console import out

COMMANDS = {
    "samples": (
        "samples:samples",
        "Write the page of a result: its samples with answers and scores in one file, which any browser opens without a network.",
    ),
    "view": (
        "servers.view_server:view",
        "Show all results as web pages on loopback, until Ctrl-C: leaderboard, histories, comparisons, nights, and each sample.",
    ),
    "init": ("init:write_project", "Write the files of a new project: evals.yaml, a benchmark, a workspace of Dagster, a CI workflow."),
    "tasks": ("task_page:tasks", "List the tasks that evals can use, or show and check one."),
    "models": (
        "show:list_models",
        "List the models of evals.yaml, whether engine and files of each are there, and what would compute its answers.",
    ),
    "checkpoints": (
        "show:list_checkpoints",
        "List the checkpoints of training runs: which are evaluated, which are waiting for a file, and which were deleted.",
    ),
    "show": ("show:show_prompt", "Show exactly what a model sees for one sample: prompt, choices, gold answer."),
    "run": (
        "run:run",
        "Evaluate with Dagster: everything in evals.yaml, or what the options choose. A suite is compared with its baseline.",
    ),
    "status": (
        "status:show_states",
        "Show which results are up to date, and what a run would make, ask and cost. Nothing is made, asked, fetched or written.\n\n"
        "Exit status: 0 all are up to date; 4 a run would make something; 1 something is broken, or cannot be told.",
    ),
    "leaderboard": (
        "leaderboard:show_leaderboard",
        "Show the scores of the evals and models of evals.yaml. Results that can be compared have a rank.",
    ),
    "plan": (
        "plan:plan",
        "Show what evals cost in seconds of workers, and how long they take on many workers, by answers whose time is known.",
    ),
    "compare": ("compare:compare", "Show how much A differs from B on their common samples, with its uncertainty and possible causes."),
    "accept": (
        "gate:accept_states",
        "Accept the last judged states of a suite as the baseline of later ones: all that are red, or those named.",
    ),
    "notify": ("check_nights:send_trial", "Send a test notice, and print whether it was sent."),
    "check-nights": (
        "check_nights:check_nights",
        "Check that each suite with a cron was judged when it was due, and send a notice if not. For cron, systemd or a monitor.",
    ),
    "sql": ("sql:run_query", "Query the results. Without --unsafe, a query can only read them."),
    "export": ("sql:export", "Write the current results into a folder, one file for each relation, for pandas, R or a spreadsheet."),
    "verify": ("home:verify_home", "Compare every file of the home with its checksum, and list damaged files."),
    "gc": (
        "home:collect",
        "List what can be deleted: old results with the files that they were made from, judgements, reports, catalogs, unused answers.",
    ),
    "upload": ("home:upload_home", "Move the results of this home to an object store, which other machines share. No run may be going on."),
    "import-suite": (
        "registries:import_suite",
        "Add a group of benchmarks of another package to evals.yaml, as a suite of evals for all models.",
    ),
    "import-inspect": (
        "import_inspect:import_inspect",
        "Add logs of inspect_ai, .eval files, as results: each log is a result of its task and model at the time at which it began.",
    ),
    "mirror": ("mirror:mirror", "Fetch the datasets that the evals of evals.yaml read into a folder, for machines without a network."),
    "ui": (
        "servers.ui:serve",
        "Start the Dagster UI, its daemon and the MLflow UI on loopback, until Ctrl-C; requests of foreign web pages are refused.",
    ),
    "environments": (
        "registries:environments",
        "List the environments of lighteval, eval-framework, lm-eval and registries of your own, or make one.",
    ),
    "label": ("samples:labels", "Let people label answers: a CSV file to fill in, and back."),
}
"""For each command its function, or its group of commands, in a module of this package, and the help."""


def loaded(name: str) -> Any:
    """The command of a name, with its options."""
    place, text = COMMANDS[name]
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"eval_dagster.cli.{module}"), attribute)
    holder = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, help=text)
    else:
        holder.command(name, help=text)(found)
    return typer.main.get_group(holder).commands[name]


class _Commands(TyperGroup):
    """The commands. Their list, with a line of help for each, needs no module of theirs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; None if it is unknown."""
        return loaded(cmd_name) if super().get_command(ctx, cmd_name) else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        TyperGroup(commands=dict(self.commands)).format_commands(ctx, formatter)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_versions(asked: bool) -> None:
    if asked:
        versions = {"eval_dagster": metadata.version("eval_dagster"), "Python": platform.python_version()}
        for name in ("dagster", "duckdb", "mlflow", "torch", "transformers"):
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                versions[name] = "not installed"
        out.print(", ".join(f"{name} {version}" for name, version in versions.items()), highlight=False, soft_wrap=True)
        raise typer.Exit


@app.callback()
def options(
    versions: Annotated[
        bool, typer.Option("--version", callback=_show_versions, is_eager=True, help="Show the versions of this and its packages.")
    ] = False,
) -> None:
    """LLM evaluation as a data pipeline."""
