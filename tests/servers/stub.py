"""A fast server of a model that is a hash of its prompt. It counts requests, can take as long as a real server, and can be changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from servers.processes import RunningServer, running_server


@dataclass(frozen=True, kw_only=True)
class StubSettings:
    """What the server does."""

    model: str = "stub"
    """The one name that it serves; another one is answered by 404."""
    salt: str = ""
    """Another salt is another model behind the same name."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Texts by a part of the prompt; a prompt that contains none is continued by hashing."""
    chances: Mapping[str, float] = field(default_factory=dict)
    """By a part of a prompt: the probability of its text of `answers`, each time anew, as `stub_model.is_given` draws it; else 1."""
    luck: str = ""
    """Another text is another course of these draws."""
    noise: float = 0.0
    """Share of texts that differ each time they are asked for, also at temperature 0."""
    logit_noise: float = 0.0
    """Standard deviation by which log-probabilities differ each time they are asked for."""
    gaps: str = ""
    """If given, a first token above temperature 0 is one of two, by a gap of logits from -0.3 to 0.3 that follows from the prompt and this
    text."""
    mean_tokens: float = 8
    """Mean length of the texts."""
    sigma: float = 0.5
    """Of the lognormal distribution of lengths."""
    count_by: str = ""
    """The field of the body by whose value requests are counted; where it is absent they are counted by their prompt."""
    slots: int = 0
    """Texts that are written at once; 0 answers at once."""
    base_s: float = 0.002
    """Seconds a step of all slots takes."""
    text_s: float = 0.00003
    """Seconds by which each active text prolongs a step."""
    reject_above: int = 0
    """Most requests in the server before it answers 429; 0 is no bound."""
    retry_after: str = ""
    """The `Retry-After` header of a 429; none when empty."""
    added_tokens: int = 0
    """Tokens of a prompt that the server counts beside those of its text, such as one to start with."""
    context: int = 8192
    """Tokens of context; a longer prompt is answered by 400."""
    echo: Literal["right", "ignored", "off_by_one", "refused"] = "right"
    """How `echo` with `logprobs` is answered; off by one is each token with the log-probability of the next."""
    logprobs: Literal["lists", "content", "none"] = "lists"
    """The shape at /v1/completions: parallel lists, as OpenAI and vLLM, or `content` as in chat, as llama.cpp; chat has `content`."""
    most_likely: int = 1000
    """Most likely tokens beside each token; a call for more is answered by 400."""
    logit_bias: Literal["unbiased", "biased", "ignored"] = "unbiased"
    """What log-probability a token has that a bias of 100 forces."""
    token_ids: bool = True
    """Whether a prompt may be a list of token ids."""
    tokenize: bool = True
    """Whether there is /tokenize."""
    vocabulary: Sequence[str] = ()
    """Tokens that have the first ids, in this order; others get theirs when they are first seen."""
    names_ids: bool = True
    """Whether the ids of tokens are told: by `return_tokens_as_token_ids`, as vLLM does, and in `content`, as llama.cpp does."""
    usage: bool = True
    """Whether answers have the number of tokens."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests for texts since the start or the last `reset`."""

    received: dict[str, int]
    """By the key of the request."""
    answered: dict[str, int]
    """By the key; a text was written to the connection."""
    rejected: int
    """429s."""
    most_at_once: int
    """Requests in the server at the same time."""
    tokens: int
    """Of all texts."""


class Stub:
    """The running stub."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.base_url, self.model = server.base_url, server.model

    def counts(self) -> Counts:
        return Counts(**self.server.get("/control/counts"))

    def requests(self) -> list[dict[str, Any]]:
        """The last 1,000 requests for texts: `path`, `headers` (names in lower case), `body`."""
        return self.server.get("/control/requests")

    def usages(self) -> list[tuple[int, int]]:
        """The tokens of the prompt and of the text of each answer, of the last 100,000; also where answers have no usage."""
        return [(prompt, output) for prompt, output in self.server.get("/control/usages")]

    def change(self, **settings: Any) -> None:
        """Change some fields of the settings."""
        self.server.post("/control/settings", settings)

    def reset(self) -> None:
        """Forget counts and requests."""
        self.server.post("/control/reset", {})


@contextmanager
def stub_server(folder: Path, **settings: Any) -> Iterator[Stub]:
    """The stub for as long as the block lasts; its log lies in the folder. `settings` are fields of `StubSettings`."""
    chosen = StubSettings(**settings)
    with running_server("stub_program", json.dumps(asdict(chosen)), model=chosen.model, folder=folder) as server:
        yield Stub(server)
