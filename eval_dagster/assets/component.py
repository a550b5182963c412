"""The component of `dg`: an evals.yaml as a part of a Dagster project, written in its defs.yaml or beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dagster as dg
from dagster.components import Scaffolder, ScaffoldRequest
from pydantic import BaseModel, Field, create_model

from eval_dagster.assets.definitions import build_definitions, with_options
from eval_dagster.config.component_file import COMPONENT_FILES, OPTIONS
from eval_dagster.config.models import BUILT_IN
from eval_dagster.config.schema import Config, DagsterConfig, config_class
from eval_dagster.errors import ConfigError
from eval_dagster.models.registry import registered_sections
from eval_dagster.project import Project

_SCAFFOLD = """\
type: {type_name}

attributes:
  # The first part of the keys of all assets, so that several components can be in one project.
  key_prefix: {key_prefix}
{content}"""
_NAMED = """\
  # The models, evals and suites; relative to this file.
  config: {config}
"""
_INLINE = """\
  # Everything below could also be a file of its own, named by `config: path/to/evals.yaml`. Paths are relative to this file.
  models:
    # It answers from this table, so that the first run downloads nothing. Real models: backend transformers, vllm or openai.
    scripted:
      backend: scripted
      answers:
        capital of Argentina: " Buenos Aires"
        capital of Brazil: " Caracas"        # wrong
        capital of Chile: " Santiago"
        capital of Colombia: " Bogotá"
        capital of Ecuador: " Quito"
        capital of Guyana: " Georgetown"
        capital of Paraguay: " Lima"         # wrong
        capital of Peru: " Lima"
        capital of Suriname: " Paramaribo"
        capital of Uruguay: " Montevideo"
        capital of Venezuela: " Caracas"
  evals:
    capitals: {task: capitals, subjects: [south_america], num_fewshot: 0}
  suites:
    nightly:
      evals: [capitals]
      models: [scripted]
      cron: "0 2 * * *"
"""


class _ScaffoldParams(BaseModel):
    key_prefix: str | None = Field(default=None, description="The first part of all asset keys; the name of the folder if not given.")
    config: str | None = Field(
        default=None, description="Path of an evals.yaml, relative to the new defs.yaml; a small example if not given."
    )


class _EvalsScaffolder(Scaffolder[_ScaffoldParams]):
    @classmethod
    def get_scaffold_params(cls) -> type[_ScaffoldParams]:
        return _ScaffoldParams

    def scaffold(self, request: ScaffoldRequest[_ScaffoldParams]) -> None:
        """Write a defs.yaml that works."""
        params = request.params
        content = _NAMED.format(config=params.config) if params.config else _INLINE
        prefix = params.key_prefix or request.target_path.name
        text = _SCAFFOLD.format(type_name=request.type_name, key_prefix=prefix, content=content)
        (request.target_path / "defs.yaml").write_text(text, "utf-8")


class _Attributes(dg.Model):
    """The attributes in a defs.yaml: `config` and the options of `dagster`, which may be templates, and all of an evals.yaml."""

    @classmethod
    def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
        """The schema of evals.yaml, by which `dg check yaml` finds mistakes with their lines."""
        sections = registered_sections()
        schema = config_class(sections).model_json_schema()
        template = {"type": "string", "description": "a template such as {{ env.TEAM }}"}
        options = {name: {"anyOf": [option, template]} for name, option in DagsterConfig.model_json_schema()["properties"].items()}
        known = {name: section.__name__ for name, section in {**BUILT_IN, **sections}.items()}
        # A `oneOf` would only say that none of its schemas fits.
        schema["properties"]["models"]["additionalProperties"] = {
            "type": "object",
            "required": ["backend"],
            "allOf": [
                # Of a class in a file, and of a package that only the interpreter of workers has, the code location checks the keys.
                {
                    "if": {"anyOf": [{"required": ["workers"]}, {"properties": {"backend": {"pattern": r".+\.py:.+"}}}]},
                    "else": {"properties": {"backend": {"enum": list(known)}}},
                },
                *(
                    {"if": {"properties": {"backend": {"const": name}}}, "then": {"$ref": f"#/$defs/{definition}"}}
                    for name, definition in known.items()
                ),
            ],
        }
        properties = {"config": {"type": "string"}, **options, **schema["properties"]}
        del properties["dagster"], schema["required"]
        return {**schema, "properties": properties}


_FIELDS: dict[str, Any] = {name: (Any, None) for name in ("config", *OPTIONS, *Config.model_fields) if name != "dagster"}
_MODEL = create_model("EvalsComponentAttributes", __base__=_Attributes, **_FIELDS)


@dg.scaffold_with(_EvalsScaffolder)
@dataclass(kw_only=True)
class EvalsComponent(dg.Component):
    """Evaluates language models: the assets, checks, jobs, schedules and sensors of an evals.yaml.

    Its attributes are an evals.yaml, or `config` names one. The options have the names and meanings of `dagster` in evals.yaml, and may be
    templates.
    """

    config: str | Path
    """The file with the models, evals and suites: an evals.yaml, or the defs.yaml that has them as attributes."""
    key_prefix: str | Sequence[str] | None = None
    """The first parts of all asset keys."""
    group: str | None = None
    """The group of all assets."""
    owners: Sequence[str] | None = None
    """Owners of all assets: email addresses, or `team:name`."""
    tags: Mapping[str, str] | None = None
    """Tags of all assets."""
    kinds: Sequence[str] | None = None
    """Kinds of all assets, three at most."""
    untrusted: Literal["warn", "error"] | None = None
    """The severity of a check that finds that a result cannot be trusted."""
    automation: Literal["running", "stopped"] | None = None
    """Whether schedules and sensors run from the start."""

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The attributes in a defs.yaml."""
        return _MODEL

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> "EvalsComponent":
        """The component of a defs.yaml.

        Raises:
            ConfigError: It has both an evals.yaml and models, evals or suites of its own.
        """
        given = {} if attributes is None else {name: value for name, value in attributes.model_dump().items() if value is not None}
        scope = context.resolution_context.at_path("attributes")
        options = {name: scope.at_path(name).resolve_value(given[name]) for name in OPTIONS if name in given}
        file = next(path for name in COMPONENT_FILES if (path := context.path / name).exists())
        if "config" not in given:
            return cls(config=file, **options)
        if own := sorted(set(given) - {"config", *OPTIONS}):
            raise ConfigError(
                f"{file}: found `config` and {', '.join(own)}; expected either the name of an evals.yaml or what it would have"
            )
        return cls(config=(context.path / str(given["config"])).resolve(), **options)

    def build_defs(self, context: dg.ComponentLoadContext | None = None) -> dg.Definitions:  # noqa: ARG002 - Dagster gives it
        """The definitions. Raises ConfigError if the file is missing or wrong, or an option."""
        return self.definitions()

    def definitions(self, executor: dg.ExecutorDefinition | None = None) -> dg.Definitions:
        """The definitions as `build_defs` gives them, whose steps are run by an executor: Dagster's default, or the project's, if None."""
        options = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        return build_definitions(
            with_options(Project.open(config_path=Path(self.config), is_kept_prefix_used=False), options), executor=executor
        )
