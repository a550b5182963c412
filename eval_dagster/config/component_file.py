"""The file of a component of `dg`: an evals.yaml as its attributes."""

from pathlib import Path

from eval_dagster.config.schema import DagsterConfig
from eval_dagster.config.yaml_document import YamlDocument
from eval_dagster.errors import ConfigError

COMPONENT_FILES = ("defs.yaml", "defs.yml", "component.yaml")
OPTIONS = tuple(DagsterConfig.model_fields)
"""The attributes that are options of `dagster` in an evals.yaml."""


def is_component(path: Path) -> bool:
    """Whether a configuration is the file of a component, by its name."""
    return path.name in COMPONENT_FILES


def component_home(path: Path, base: str | None) -> Path:
    """The home of a component: a folder in `base`, or in `.eval_dagster` of the Dagster project, or beside the file without one."""
    folder = path.resolve().parent
    root = next((parent for parent in folder.parents if (parent / "pyproject.toml").exists() or (parent / "dg.toml").exists()), folder)
    within = folder.relative_to(root).parts or (folder.name,)
    own = within[len(within) - within[::-1].index("defs") :] if "defs" in within else within
    return (Path(base) if base else root / ".eval_dagster") / ("-".join(own) or folder.name)


def attributes_of(document: YamlDocument, shown: str) -> YamlDocument:
    """The attributes of a component, as the document of an evals.yaml. Options move into `dagster`, but for templates.

    Raises:
        ConfigError: The attributes name an evals.yaml, which is then the configuration.
    """
    own = document.under("attributes")
    if not isinstance(own.value, dict):
        return own
    if "config" in own.value:
        raise ConfigError(f"{shown}: this component has its evals in {own.value['config']!r}; name that file by EVAL_DAGSTER_CONFIG")
    for name in [name for name in OPTIONS if name in own.value]:
        if "{{" in str(own.value[name]):
            del own.value[name]
        else:
            own.move(name, "dagster")
    return own
