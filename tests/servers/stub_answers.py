"""The bodies with which the stub answers requests for texts."""

import math
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random
from typing import Any

from servers.stub import StubSettings
from servers.stub_http import Answer
from servers.stub_model import HashModel, Vocabulary, prompt_tokens, split

_FORCING = 50
"""A bias from which on a token is the next one."""
_serial = count()
_noise = Random(0)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a request asks."""

    chat: bool
    prompt: str
    prompt_tokens: tuple[str, ...]
    maximum: int | None
    texts: int
    stops: tuple[str, ...]
    sampling: str
    """What the texts depend on beside the prompt; empty if greedy."""
    echo: bool
    logprobs: bool
    most: int
    """Probable tokens that are shown beside each token."""
    names_ids: bool
    """Tokens are shown by their ids, as vLLM does on request."""
    forced: str | None
    """The token that a bias forces."""


def asked(body: dict[str, Any], settings: StubSettings, vocabulary: Vocabulary) -> Asked:
    """Raises `Answer` where the stub refuses the request."""
    if body.get("model") != settings.model:
        raise Answer(404, f"the model {body.get('model')!r} does not exist")
    if body.get("stream"):
        raise Answer(400, "stream is not supported")
    if isinstance(body.get("prompt"), list) and not settings.token_ids:
        raise Answer(400, "prompt must be a string")
    if body.get("echo") and settings.echo == "refused":
        raise Answer(400, "echo is not supported")
    most = int(body.get("top_logprobs", body.get("logprobs")) or 0)
    if most > settings.most_likely:
        raise Answer(400, f"logprobs must be at most {settings.most_likely}")
    tokens = prompt_tokens(body, vocabulary)
    if len(tokens) > settings.context:
        raise Answer(400, f"This model's maximum context length is {settings.context} tokens. The prompt has {len(tokens)}.")
    stop = body.get("stop") or ()
    return Asked(
        chat="messages" in body,
        prompt="".join(tokens),
        prompt_tokens=tuple(tokens),
        maximum=body.get("max_completion_tokens", body.get("max_tokens")),
        texts=body.get("n") or 1,
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        sampling=f"{body['temperature']}/{body.get('seed', next(_serial))}" if body.get("temperature", 1) else "",
        echo=bool(body.get("echo")) and settings.echo != "ignored",
        logprobs=body.get("logprobs") not in (None, False) and settings.logprobs != "none",
        most=most,
        names_ids=bool(body.get("return_tokens_as_token_ids")) and settings.names_ids,
        forced=_forced(body.get("logit_bias") or {}, vocabulary) if settings.logit_bias != "ignored" else None,
    )


def _forced(biases: dict[str, float], vocabulary: Vocabulary) -> str | None:
    forced = [int(token) for token, bias in biases.items() if bias >= _FORCING]
    return vocabulary.tokens_of(forced)[0] if forced else None


def answer(request: Asked, model: HashModel, settings: StubSettings, vocabulary: Vocabulary, salt: str) -> tuple[dict[str, Any], int]:
    """The whole answer, and how many tokens were written; `salt` makes its texts others."""
    written = [_text(request, model, settings, salt, index) for index in range(request.texts)]
    choices = []
    for index, (tokens, ended) in enumerate(written):
        text, stopped = _cut("".join(tokens), request.stops)
        shown = {"message": {"role": "assistant", "content": text.lstrip()}} if request.chat else {"text": _echoed(request, text)}
        logprobs = _logprobs(request, tokens, model, settings, vocabulary) if request.logprobs else None
        choices.append({"index": index, **shown, "logprobs": logprobs, "finish_reason": "stop" if ended or stopped else "length"})
    total = sum(len(tokens) for tokens, _ in written)
    body = {
        "id": f"stub-{next(_serial)}",
        "object": "chat.completion" if request.chat else "text_completion",
        "created": 0,
        "model": settings.model,
        "choices": choices,
    }
    if settings.usage:
        asked_tokens = len(request.prompt_tokens) + settings.added_tokens
        body["usage"] = {"prompt_tokens": asked_tokens, "completion_tokens": total, "total_tokens": asked_tokens + total}
    return body, total


def _text(request: Asked, model: HashModel, settings: StubSettings, salt: str, index: int) -> tuple[list[str], bool]:
    if request.forced is not None and request.maximum:
        return [request.forced], False
    known = next((text for part, text in settings.answers.items() if part in request.prompt), None)
    if settings.gaps and request.sampling:
        gap = Random(f"{settings.gaps} {request.prompt}").uniform(-0.3, 0.3)
        share = 1 / (1 + math.exp(-gap / float(request.sampling.partition("/")[0])))
        return [" one" if Random(request.sampling + request.prompt).random() < share else " two"], False
    if known is None or salt:
        salt += request.sampling and f"{request.sampling}/{index}"
        return model.generate(model.state(request.prompt, salt), request.maximum)
    tokens = split(known)
    return tokens[: request.maximum], request.maximum is None or len(tokens) <= request.maximum


def _cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    ends = [end for stop in stops if (end := text.find(stop)) >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def _echoed(request: Asked, text: str) -> str:
    return request.prompt + text if request.echo else text


def _logprobs(request: Asked, tokens: list[str], model: HashModel, settings: StubSettings, vocabulary: Vocabulary) -> dict[str, Any]:
    found = model.logprobs(model.state(request.prompt), tokens, request.most)
    if request.forced is not None and settings.logit_bias == "biased":
        found = [(0.0, {request.forced: 0.0})]
    if settings.logit_noise:
        found = [(_noisy(value, settings), {word: _noisy(each, settings) for word, each in top.items()}) for value, top in found]
    if request.chat or settings.logprobs == "content":
        return {
            "content": [
                _entry(token, value, tops, vocabulary if settings.names_ids else None)
                for token, (value, tops) in zip(tokens, found, strict=True)
            ]
        }
    values: list[float | None] = [value for value, _ in found]
    tops: list[dict[str, float] | None] = [{**top, token: value} for token, (value, top) in zip(tokens, found, strict=True)]
    if request.echo:
        prompt = list(request.prompt_tokens)
        echoed = model.logprobs(model.state(""), prompt, request.most)
        values = [None, *(value for value, _ in echoed[1:]), *values]
        tops = [None, *({**top, token: value} for token, (value, top) in zip(prompt[1:], echoed[1:], strict=True)), *tops]
        tokens = [*prompt, *tokens]
        if settings.echo == "off_by_one":
            values, tops = [*values[1:], None], [*tops[1:], None]
    offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
    if request.names_ids:
        tokens = [_id_name(token, vocabulary) for token in tokens]
        tops = [top and {_id_name(token, vocabulary): value for token, value in top.items()} for top in tops]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _noisy(logprob: float, settings: StubSettings) -> float:
    return min(-1e-3, logprob + _noise.gauss(0, settings.logit_noise))


def _id_name(token: str, vocabulary: Vocabulary) -> str:
    return f"token_id:{vocabulary.id_of(token)}"


def _entry(token: str, value: float, tops: dict[str, float], vocabulary: Vocabulary | None) -> dict[str, Any]:
    def one(text: str, logprob: float) -> dict[str, Any]:
        told = {} if vocabulary is None else {"id": vocabulary.id_of(text)}
        return {**told, "token": text, "bytes": list(text.encode()), "logprob": logprob}

    return {**one(token, value), "top_logprobs": [one(*top) for top in tops.items()]}
