"""The workspace of a project: the file that names the code locations of Dagster."""

import os
from pathlib import Path

from eval_dagster.dagster_internals.instances import CodeLocationOrigin, location_origins_from_yaml_paths
from eval_dagster.errors import ConfigError
from eval_dagster.project import Project

_FILE_NAME = "workspace.yaml"
_LOCATION = "eval_dagster"
_DEFAULT = f"""\
# Written by eval_dagster. To change it, put a {_FILE_NAME} beside evals.yaml, which is then read instead.
load_from:
  - python_module:
      module_name: eval_dagster.assets.code_location
      location_name: {_LOCATION}
"""


def workspace_file(project: Project) -> Path:
    """The file workspace.yaml beside evals.yaml; without one, a file in the home, which is written if needed."""
    own = project.folder / _FILE_NAME
    if own.exists():
        return own
    path = project.home / _FILE_NAME
    if not path.exists() or path.read_text("utf-8") != _DEFAULT:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{_FILE_NAME}.{os.getpid()}")
        temporary.write_text(_DEFAULT, "utf-8")
        temporary.replace(path)
    return path


def code_location(project: Project) -> CodeLocationOrigin | None:
    """The code location of a project's workspace that holds the assets: the one named `eval_dagster`, else the first.

    Raises:
        ConfigError: The workspace file cannot be read.
    """
    path = workspace_file(project)
    try:
        locations = list(location_origins_from_yaml_paths([str(path)]))
    except Exception as error:  # a YAML error, or one of several classes of Dagster
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"the workspace {path} cannot be read ({reason}); correct it, or delete it to use the default one") from error
    return next((each for each in locations if each.location_name == _LOCATION), next(iter(locations), None))
