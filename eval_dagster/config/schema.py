"""The schema of `evals.yaml`: models, evals, suites."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, Union
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from eval_dagster.config.aggregates import AggregateConfig
from eval_dagster.config.gate import GateConfig
from eval_dagster.config.models import BUILT_IN, ModelConfig, ModelSection, VllmModel, WeightsSection
from eval_dagster.config.values import (
    LAKE_URLS,
    NAME,
    TRACKING_URIS,
    EnvironmentName,
    Integer,
    Mark,
    MemorySize,
    Name,
    Number,
    Section,
    Switch,
    Text,
    wrong_lake_url,
    wrong_uri,
)
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.users_code import CALL_LIMIT_S


def _fewshot_sets(value: object) -> object:
    if value == "per_sample" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("expected an integer of at least 1, or 'per_sample'")


FewshotSets = Annotated[
    int | Literal["per_sample"],
    PlainValidator(_fewshot_sets),
    WithJsonSchema({"pattern": "", "description": "an integer of at least 1, or 'per_sample'"}),
]


class VariantConfig(Section):
    """Another prompt for the same questions. What is not set is as in the task and the eval."""

    instruction: str | None = None
    """The text before the first question, instead of the task's own; empty for none."""
    template: Text | None = None
    """A Jinja template of the question. It reads `text` (the question as the task asks it) and `row`; `choices` and `labels` if the task
    has choices, and `question` if it has a styler."""
    choice_order: str | None = Field(
        default=None,
        pattern=r"^(reversed|rotated [1-9][0-9]{0,3}|shuffled [0-9]{1,9})$",
        description="'reversed', 'rotated N' (by N places) or 'shuffled N' (by the seed N)",
    )
    """The order of the choices in the prompt: `reversed`, `rotated N` (by N places to the left) or `shuffled N` (by the seed N and the
    row). For tasks whose prompts list the choices of `_get_choices`."""
    fewshot_seed: Integer | None = None
    """Draws other examples."""

    @field_validator("template")
    @classmethod
    def _template_can_be_read(cls, value: str | None) -> str | None:
        if value is not None:
            # Imported lazily: few files have templates.
            from jinja2 import TemplateSyntaxError
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            try:
                ImmutableSandboxedEnvironment().parse(value)
            except TemplateSyntaxError as error:
                raise ValueError(f"which Jinja cannot read ({error.message}); expected a template such as '{{{{ text }}}}'") from None
        return value


def _variants(value: dict[str, VariantConfig]) -> dict[str, VariantConfig]:
    for name, variant in value.items():
        if name == "default":
            raise ValueError("the variant 'default' is the task's own prompt, which is always there; expected another name")
        if variant == VariantConfig():
            raise ValueError(f"the variant {name!r} sets nothing; expected one of {', '.join(VariantConfig.model_fields)}")
    return value


def _asset_keys(value: object) -> object:
    keys = value.values() if isinstance(value, dict) else [value]
    is_right = all(isinstance(key, str) and all(map(NAME.fullmatch, key.split("/"))) for key in keys)
    if value and is_right and (not isinstance(value, dict) or all(isinstance(name, str) and NAME.fullmatch(name) for name in value)):
        return value
    raise ValueError(f"expected {_ASSET_KEYS}")


_ASSET_KEYS = "the key of an asset such as support/tickets, or one for each split: {test: support/tickets, train: support/examples}"


class EvalDataset(Section):
    """The rows of an eval, instead of its task's `DATASET_PATH`."""

    asset: Annotated[
        str | dict[str, str],
        PlainValidator(_asset_keys),
        WithJsonSchema({"pattern": "", "description": _ASSET_KEYS}),
    ]
    """The key of an asset of your Dagster project, to which no key prefix is added, or a mapping from the splits that are read to keys. One
    table stands for the split that the task evaluates, and a folder is read as a folder of `DATASET_PATH`."""

    @property
    def keys(self) -> dict[str, str]:
        """The keys by split; by an empty text if one asset is for all."""
        return {"": self.asset} if isinstance(self.asset, str) else dict(self.asset)


class EstimateConfig(Section):
    """A score of all samples from the answers to some of them."""

    history: Integer = Field(ge=50)
    """Most samples that a model is asked. They are chosen, and the others predicted, by earlier models' answers to the same samples. The
    score is marked as an estimate everywhere, and the gate does not judge it."""


class EvalConfig(Section):
    """A task with its settings."""

    task: Text
    """A name of the registry, or `path/to/file.py:Class`; `imported` for results that a command such as `import-inspect` adds."""
    num_fewshot: Integer | None = Field(default=None, ge=0)
    """Examples before each question; the task's default number if not given."""
    fewshot_strategy: Literal["random", "first", "balanced"] | None = None
    """How few-shot examples are drawn; the task's own way if not given."""
    fewshot_sets: FewshotSets = 1
    """Number of sets of examples for the samples of a subject. The id of a sample decides on its set; `per_sample`: a set for each."""
    subjects: tuple[Mark, ...] | None = Field(default=None, min_length=1)
    """Some of the task's subjects; all if not given. `"DE,*"` picks among subjects of several parts."""
    limit: Integer | None = Field(default=None, ge=1)
    """Most samples per subject; all if not given."""
    estimate: EstimateConfig | None = None
    """Estimates the score of the samples from some of them. If not given, all are asked."""
    seed: Integer = 0
    """Seeds the choice of few-shot examples and, without `sampling_seed`, sampling."""
    sampling_seed: Integer | None = None
    """Seeds the texts that are drawn at a temperature above 0; `seed` if not given. Another one draws other texts for the same prompts."""
    num_samples: Integer | None = Field(default=None, ge=1)
    """Texts to generate from each prompt; more than one needs a temperature above 0. The task's own number if not given."""
    dataset_revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$", description="a full commit hash of 40 hexadecimal digits")
    """Pins the dataset of a task that names no commit itself."""
    dataset: EvalDataset | None = None
    """The rows, if an asset of your Dagster project has them."""
    variants: Annotated[dict[Name, VariantConfig], AfterValidator(_variants)] = Field(default_factory=dict)
    """Further prompts for each question, by name. All are asked, and the score is the mean over them and the task's own prompt, which is
    the variant `default`."""

    roles: dict[Name, str] = Field(default_factory=dict)
    """Further models of the episodes of an `EpisodeTask`, such as a simulated user or a judge, by role."""

    @model_validator(mode="after")
    def _has_one_dataset(self) -> Self:
        if self.dataset is not None and self.dataset_revision is not None:
            raise ValueError("found dataset and dataset_revision; expected one of them, since an asset has no commit")
        return self

    @model_validator(mode="after")
    def _asks_one_prompt_for_an_estimate(self) -> Self:
        several = next((name for name in ("variants", "roles") if getattr(self, name)), None)
        if self.estimate is not None and several is not None:
            raise ValueError(f"found estimate and {several}; expected one of them, since an estimate needs one prompt for each sample")
        return self

    def set_fields(self) -> dict[str, Any]:
        """The settings as JSON has them, without the dataset and the estimate. Variants and roles are left out if there are none."""
        unset = {name for name in ("variants", "roles") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude={"dataset", "estimate", *unset})


VariableName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable that holds the address, EVALS_SLACK for instance (addresses are secrets)",
        json_schema_extra={"writeOnly": True},
    ),
]
"""No message repeats the value, because a user may have written the address itself."""


PageAddress = Annotated[
    str,
    Field(
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
        description="an address such as https://evals.example.org, without user, password, query and fragment",
    ),
]


class SuiteConfig(Section):
    """Evals and models that belong together, with a schedule, a baseline and a gate."""

    evals: tuple[str, ...] = Field(min_length=1)
    """Names of evals."""
    models: tuple[str, ...] = Field(min_length=1)
    """Names of models; each eval runs with each model."""
    cron: str | None = None
    """Five fields: minute, hour, day of month, month, day of week."""
    timezone: str = "UTC"
    """IANA name, e.g. `Europe/Berlin`."""
    deadline_hours: Number | None = Field(default=None, gt=0, le=100_000)
    """Hours after a tick of `cron` by which its results are to be judged; later, `check-nights` reports the night. If not given, half the
    time until the next tick, 12 hours at most."""
    baseline: str = "last_passed"
    """What the suite's results are compared with: `last_passed` (the newest state that its gate let pass or a person accepted), `previous`
    (the state before the last change, whether good or bad), a date (2026-01-31), a model, or a model at a time (name@2026-01-31)."""
    gate: GateConfig = GateConfig()
    """When a result counts as worse."""
    aggregates: dict[Name, AggregateConfig] = Field(default_factory=dict)
    """Single numbers for several evals, by name, for each model. The gate judges them with the evals."""
    notify: tuple[VariableName, ...] = ()
    """Names of environment variables that hold the addresses (apprise URLs) to which failures and regressions are reported."""

    @field_validator("cron")
    @classmethod
    def _cron_is_valid(cls, value: str | None) -> str | None:
        if value is None:
            return None
        from croniter import CroniterBadDateError, croniter  # imported lazily: few files have schedules

        fields = value.split()
        is_random = re.search(r"\bR\b", value, re.IGNORECASE)  # croniter would draw another time at each reading
        if len(fields) != 5 or is_random or not croniter.is_valid(value):
            raise ValueError("expected a cron expression of five fields such as '0 2 * * *' (every night at two)")
        try:
            # Without the day of the week, since Dagster refuses a day of the month that no month has, even beside one.
            croniter(" ".join([*fields[:4], "*"])).get_next()
            croniter(value).get_next()
        except CroniterBadDateError:
            raise ValueError("which never comes, because none of its months has such a day; expected a time that comes") from None
        return value

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        # A name with odd characters or of a folder of the time zone database is a ValueError or an OSError.
        except (KeyError, ValueError, OSError):
            suggestion = did_you_mean(value, available_timezones())
            raise ValueError(f"expected the IANA name of a time zone such as 'Europe/Berlin'{suggestion}") from None
        return value


class DatasetsConfig(Section):
    """The source of datasets."""

    mirror: Text | None = None
    """A folder `<org>/<name>/<config>/<split>-*.parquet` that is read instead of the Hub. `EVAL_DAGSTER_DATASETS` overrides it."""


class SandboxConfig(Section):
    """The programs that may run in the sandbox."""

    allow_code_execution: Switch = False
    """Whether metrics such as pass@1 of HumanEval may run code that a model wrote: isolated from network, files and processes."""


class TrackingConfig(Section):
    """The place of MLflow's runs."""

    tracking_uri: str | None = Field(default=None, json_schema_extra={"writeOnly": True})
    """A server or a database; the home's own SQLite file if not given. No message repeats it, because it can contain a password."""
    experiment: Text = "eval_dagster"
    """Name of the MLflow experiment."""

    @field_validator("tracking_uri")
    @classmethod
    def _uri_is_of_a_kind_that_mlflow_has(cls, value: str | None) -> str | None:
        if value is not None and (reason := wrong_uri(value)):
            raise ValueError(f"{reason}; expected {TRACKING_URIS}")
        return value


class PublicUrlConfig(Section):
    """Public addresses of the web pages, for links in notices, reports and Dagster. Without an address, links lead to servers that run on
    this machine, and notices have none."""

    dagster: PageAddress | None = None
    """Dagster's pages."""
    mlflow: PageAddress | None = None
    """MLflow's pages. `EVAL_DAGSTER_MLFLOW_UI` overrides it."""
    pages: PageAddress | None = None
    """The pages of `eval-dagster view`."""


def _key_prefix(value: object) -> object:
    parts = value.split("/") if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and all(isinstance(part, str) and NAME.fullmatch(part) for part in parts):
        return tuple(parts)
    raise ValueError(f"expected {_KEY_PREFIX}")


_KEY_PREFIX = "a name such as support, or several such as team/support, of letters, digits, '.', '_' and '-'"
KeyPrefix = Annotated[
    tuple[str, ...],
    BeforeValidator(_key_prefix),
    WithJsonSchema({"pattern": "", "description": _KEY_PREFIX}),
]
Owner = Annotated[
    str,
    Field(pattern=r"^(team:\S+|[^@\s]+@[^@\s]+\.[^@\s]+)$", description="an email address, or the name of a team such as team:evals"),
]
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", description="letters, digits and underscores")]


class DagsterConfig(Section):
    """How the assets, jobs and schedules appear in Dagster."""

    key_prefix: KeyPrefix = ()
    """The first parts of the keys of all assets, `support` or `team/support`. Names of jobs, schedules and sensors begin with it, too. So
    several evals.yaml can be in one code location."""
    group: GroupName | None = None
    """The group of all assets. If not given, `data`, `inference`, `results` and `definitions`."""
    owners: tuple[Owner, ...] = ()
    """Owners of all assets: email addresses, or teams such as `team:evals`."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of all assets."""
    kinds: tuple[Text, ...] = Field(default=(), max_length=3)
    """Kinds of all assets, instead of those that name what computes each."""
    untrusted: Literal["warn", "error"] = "warn"
    """The severity of a check that finds that a result cannot be trusted."""
    automation: Literal["running", "stopped"] = "running"
    """Whether schedules and sensors run from the start. A switch in Dagster's pages overrides it."""


class Config(Section):
    """The whole of `evals.yaml`."""

    lake: str | None = Field(default=None, json_schema_extra={"writeOnly": True})
    """The object store that all machines share: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or `file:///folder` on
    a shared disk. If not given, the home's own folder. `EVAL_DAGSTER_LAKE` overrides it."""
    datasets: DatasetsConfig = DatasetsConfig()
    """Where datasets are read from."""
    mlflow: TrackingConfig = TrackingConfig()
    """Where MLflow keeps its runs."""
    public_url: PublicUrlConfig = PublicUrlConfig()
    """Where browsers reach the web pages."""
    dagster: DagsterConfig = DagsterConfig()
    """Names, owners and tags of the assets in Dagster."""
    sandbox: SandboxConfig = SandboxConfig()
    """Whether code that a model wrote may run."""
    code_timeout: Number | None = Field(default=CALL_LIMIT_S, gt=0)
    """Seconds that one call of your code may take: of a task, a metric, a loader or a scripted model. Null: any number. A call that takes
    longer ends its process, and its eval has failed. The limit needs a process that watches: the command, or the Dagster daemon. A tool
    that takes longer ends its episode alone, as an error."""
    memory: MemorySize | None = None
    """Most memory of a run and the processes that it starts, such as `2GiB` or `800MiB`. A stage that takes more ends with a message, and
    its eval has failed; while a model is asked, the evals that still lack answers. Null: as much as the container has, or the machine."""
    environments: dict[EnvironmentName, Text] = Field(default_factory=dict)
    """The interpreters of packages that have an environment of their own, by the name of the registry: `lighteval: path/to/python`. A path
    is relative to the folder of evals.yaml. `eval_framework==0.9.1` names the environment of a release, for tasks of
    `eval_framework==0.9.1:NAME`."""
    models: dict[Name, ModelConfig]
    """By name, as in the keys of partitions."""
    evals: dict[Name, EvalConfig]
    """By name, as in the keys of partitions."""
    suites: dict[Name, SuiteConfig] = Field(default_factory=dict)
    """By name."""

    @field_validator("models")
    @classmethod
    def _adapters_are_models(cls, value: dict[str, ModelSection]) -> dict[str, ModelSection]:
        """Each adapter of a model is a further model."""
        found: dict[str, ModelSection] = {}
        for name, model in value.items():
            found[name] = model
            for adapter, source in (model.adapters if isinstance(model, VllmModel) else {}).items():
                made = f"{name}-{adapter}"
                if made in value or made in found or not NAME.fullmatch(made):
                    why = "is too long" if made not in {*value, *found} else "is there already"
                    raise ValueError(f"the adapter {adapter!r} of {name!r} makes the model {made!r}, which {why}; expected another name")
                found[made] = model.model_copy(update={"adapters": {}, "adapter": source})
        for name in (name for name, model in found.items() if isinstance(model, WeightsSection) and model.checkpoints):
            if not NAME.fullmatch(checkpoint_name(name, 0)):
                raise ValueError(
                    f"the name {name!r} is too long for a training run, whose models are {checkpoint_name(name, 0)!r} and more"
                )
            if taken := next((other for other in found if re.fullmatch(rf"{re.escape(name)}-step-[0-9]{{7,}}", other)), None):
                raise ValueError(f"the name {taken!r} is that of a checkpoint of {name!r}; expected another name")
        return found

    @field_validator("lake")
    @classmethod
    def _lake_is_a_url_that_can_be_opened(cls, value: str | None) -> str | None:
        if value is not None and (reason := wrong_lake_url(value)):
            raise ValueError(f"{reason}; expected {LAKE_URLS}")
        return value


def checkpoint_name(family: str, step: int) -> str:
    """The name of the model that a checkpoint of a training run makes. Names of steps below ten million sort by step."""
    return f"{family}-step-{step:07d}"


def open_section(backend: str) -> type[ModelSection]:
    """A section with any keys, of a backend whose own section is not known here."""
    name: Any = Literal[backend]
    return create_model("OpenSection", __base__=_OpenSection, backend=(name, ...))


class _OpenSection(ModelSection):
    model_config = ConfigDict(extra="allow", frozen=True)


def with_adapters(models: Mapping[str, object]) -> dict[str, object]:
    """The models of a file as they are written, and the names of those that their adapters make."""
    written = [(name, model.get("adapters")) for name, model in models.items() if isinstance(model, dict)]
    return {**models, **{f"{name}-{each}": None for name, adapters in written if isinstance(adapters, dict) for each in adapters}}


def backends_in_files(document: Any) -> list[str]:
    """The backends of a file that are classes in files, `path/to/file.py:Class`."""
    models = document.get("models") if isinstance(document, dict) else None
    found = [str(model.get("backend")) for model in (models.values() if isinstance(models, dict) else ()) if isinstance(model, dict)]
    return list(dict.fromkeys(name for name in found if ".py:" in name))


def with_elsewhere(sections: Mapping[str, type[ModelSection]], document: Any) -> Mapping[str, type[ModelSection]]:
    """The sections, and the sections of backends that only the interpreter of a model's workers has. It checks their keys."""
    models = document.get("models") if isinstance(document, dict) else None
    found = [model for model in (models.values() if isinstance(models, dict) else ()) if isinstance(model, dict)]
    names = {str(model.get("backend")) for model in found if isinstance(model.get("workers"), dict) and model["workers"].get("python")}
    return {**sections, **{name: open_section(name) for name in sorted(names - {*BUILT_IN, *sections})}}


def config_class(sections: Mapping[str, type[ModelSection]]) -> type[Config]:
    """The class of an evals.yaml whose models may have backends of other packages. `sections` are the sections of these, by name."""
    if not sections:
        return Config
    models: Any = Annotated[Union[*BUILT_IN.values(), *sections.values()], Field(discriminator="backend")]
    return create_model("Config", __base__=Config, models=(dict[Name, models], ...))
