"""The command `upload`: the results of a home move to an object store."""

from eval_dagster.cli.console import errors, out, print_next
from eval_dagster.config.values import LAKE_URLS, LAKE_VARIABLE, wrong_lake_url
from eval_dagster.errors import UsageError
from eval_dagster.lake.remote.mirror import upload
from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.project import default_config_path, default_home


def upload_home(url: str) -> None:
    """Put all files of the home's lake into the store at a URL, and make the home its mirror."""
    if (reason := wrong_lake_url(url)) is not None:  # not repeated in the message, since it can hold a secret
        raise UsageError(f"the URL is wrong: {reason}; expected {LAKE_URLS}")
    root = default_home(default_config_path()).resolve() / "lake"
    if not root.is_dir():
        raise UsageError(f"there are no results to upload: {root} does not exist; name the lake in evals.yaml (`lake: {url}`) and run")
    with use_reporter(LogReporter(lambda line: errors.print(line, style="dim", soft_wrap=True))):
        upload(root, url)
    out.print(f"The lake is {url} now, and {root} mirrors it.", soft_wrap=True)
    out.print(f"Name it in evals.yaml, or in {LAKE_VARIABLE}: `lake: {url}`", soft_wrap=True)
    print_next(("leaderboard", "reads it"))
