"""The bodies of calls to a server: a call for each text that a request asks for.

A call asks for one text. Several texts of a prompt are several calls with seeds of their own, because servers differ in what they return
and count for `n` above 1.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answer_records import Choice
from eval_dagster.models.served.calls.answers import BYTES_OF_TOKEN, TextReader
from eval_dagster.records import GenerationSettings, Request, Role, Turn

Encode = Callable[[Request], Sequence[int]]
"""The ids of the tokens of a request's prompt."""
CHAT, COMPLETIONS = "/chat/completions", "/completions"
_MOST_STOPS = 4
"""Stop sequences that a chat of OpenAI accepts. The text is cut at all of them when it is there."""
_CHARACTERS_PER_TOKEN = 3
"""For a rough estimate of the tokens of a prompt, as a limit of tokens a minute needs it before the server counts them."""
_TOKENS_OF_MESSAGE = 64
"""Most tokens that a template adds to a message."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A body for one path of a server."""

    path: str
    body: Mapping[str, object]
    read: Callable[[Choice], object]
    """Reads the choice of the response. Raises `BadAnswerError` if it is no answer."""
    instead: "Call | None" = None
    """The call that is sent after a bad answer, if a repetition would get the same answer; None to repeat this call."""

    @cached_property
    def data(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body).encode()

    @cached_property
    def tokens(self) -> int:
        """About how many tokens the call may take, of prompt and answer."""
        size = sum(map(len, self.texts)) // _CHARACTERS_PER_TOKEN if self.token_ids is None else self.token_ids
        return size + (self.most_output or 0)

    @cached_property
    def token_ids(self) -> int | None:
        """The number of the prompt's token ids; null if it is sent as text."""
        asked = self.body.get("prompt")
        return len(asked) if isinstance(asked, list) else None

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the prompt; empty if it is sent as token ids."""
        if self.token_ids is not None:
            return []
        turns = self.body.get("messages")
        contents = [turn["content"] for turn in turns] if isinstance(turns, list) else []
        return [str(self.body.get("prompt") or ""), *(each if isinstance(each, str) else each[-1]["text"] for each in contents)]

    @cached_property
    def least_prompt(self) -> int:
        """Fewest tokens that the prompt can have."""
        return max(1, sum(len(text.encode()) for text in self.texts) // BYTES_OF_TOKEN if self.token_ids is None else self.token_ids)

    @property
    def most_tokens(self) -> int:
        """Most tokens that prompt and answer can have: one a byte, and some for each message."""
        return (self.token_ids or 0) + sum(len(text.encode()) + _TOKENS_OF_MESSAGE for text in self.texts) + (self.most_output or 0)

    @property
    def most_output(self) -> int | None:
        """Most tokens of the answer; null if nothing limits it."""
        found = self.body.get("max_tokens") or self.body.get("max_completion_tokens")
        return int(found) if isinstance(found, int | float) and found else None


def about_tokens(request: Request) -> int:
    """About how many tokens a call of a request may take, of prompt and answer."""
    most = request.generation.max_tokens if request.generation is not None else None
    return len(request.prompt) // _CHARACTERS_PER_TOKEN + (most or 0)


def text_calls(request: Request, config: OpenAIModel, encode: Encode | None = None, context: int | None = None) -> list[Call]:
    """The calls that generate the texts of a request, in their order. With `encode` the prompt is sent as the ids of its tokens.

    `context` is the number of tokens of a prompt and its answer; None if it is not known.

    Raises:
        ModelError: The request asks for what no server with this interface can do.
    """
    settings = request.generation
    if settings is None:
        raise ModelError("The request asks for no text; expected one with settings of generation.")
    asked = _prompt(request, encode)
    is_chat = "messages" in asked
    fixed: dict[str, object] = {"model": config.model, **asked, **_settings(settings, config, is_chat=is_chat)}
    if request.tools:
        fixed["tools"] = [json.loads(tool) for tool in request.tools]
    if request.tool_choice:
        is_name = request.tool_choice not in ("required", "none")
        fixed["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}} if is_name else request.tool_choice
    last = request.messages[-1] if request.messages else None
    cue = last.content if last is not None and last.role is Role.ASSISTANT else ""
    if cue and config.continue_cue:
        fixed |= {"continue_final_message": True, "add_generation_prompt": False}
    calls = []
    for index in range(request.first_text, settings.num_samples):
        seed = {"seed": settings.seed + index} if settings.temperature > 0 else {}
        body = without_nulls({**fixed, **seed, **config.extra_body}, config)
        calls.append(Call(path=CHAT if is_chat else COMPLETIONS, body=body, read=TextReader()))
    reader = TextReader(
        stop_sequences=settings.stop_sequences,
        cue=cue,
        grammar=settings.grammar,
        most=calls[0].most_output if calls else None,
        context=config.max_length or context,
        reasons=config.finish_reasons,
        has_tools=bool(request.tools),
        tool_choice=request.tool_choice,
        question=calls[0].texts[-1] if calls and calls[0].texts and not cue else "",
    )
    return [replace(call, read=reader) for call in calls]


def without_nulls(body: Mapping[str, object], config: OpenAIModel) -> dict[str, object]:
    """A body without the keys that are null in `extra_body`."""
    return {name: value for name, value in body.items() if config.extra_body.get(name, "") is not None}


def scoring_call(config: OpenAIModel, body: Mapping[str, object], read: Callable[[Choice], object]) -> Call:
    """A call for log-probabilities."""
    fixed = {"model": config.model, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True}
    return Call(path=COMPLETIONS, body=without_nulls({**fixed, **body, **config.extra_body}, config), read=read)


def _prompt(request: Request, encode: Encode | None) -> dict[str, object]:
    """The part of a body that asks: messages, a text or the ids of tokens."""
    if request.messages is None:
        if request.images:
            raise ModelError("A prompt with images is sent as messages only. Set `prompt_format: chat` for this model in evals.yaml.")
        if encode is not None:
            return {"prompt": list(encode(request))}
        return {"prompt": request.prompt, **({"add_special_tokens": False} if request.has_special_tokens else {})}
    last = max((index for index, turn in enumerate(request.messages) if turn.role is Role.USER), default=-1)
    turns: list[dict[str, object]] = []
    for index, turn in enumerate(request.messages):
        content: object = turn.content
        if request.images and index == last:
            urls = [f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in request.images]
            content = [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": turn.content}]
        turns.append({"role": turn.role.value, "content": content, **(_tool_fields(turn) if isinstance(turn, Turn) else {})})
    return {"messages": turns}


def _tool_fields(turn: Turn) -> dict[str, object]:
    """The fields of a message that calls tools, or holds the result of one.

    Servers refuse arguments other than a JSON object, llama.cpp with status 500. An empty object is sent instead.
    """
    found: dict[str, object] = {}
    if turn.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": "{}" if call.arguments is None else call.arguments_text},
            }
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        found["tool_call_id"] = turn.tool_call_id
    return found


def _settings(settings: GenerationSettings, config: OpenAIModel, *, is_chat: bool) -> dict[str, object]:
    # The temperature is always sent, because the default of servers is 1. A missing `max_tokens` means 16 tokens to many completions.
    body: dict[str, object] = {"temperature": settings.temperature}
    if settings.max_tokens is not None or not is_chat:
        body[config.max_tokens_key if is_chat else "max_tokens"] = settings.max_tokens
    if settings.stop_sequences:
        body["stop"] = list(settings.stop_sequences[:_MOST_STOPS] if is_chat else settings.stop_sequences)
    body |= {name: value for name in ("top_p", "top_k") if (value := getattr(settings, name)) is not None}
    if settings.grammar is not None:
        if settings.grammar.kind != "json_schema":
            raise ModelError(
                "The task wants a text that matches a regular expression, which servers do not accept alike. Ask this eval of a model with "
                "`backend: transformers`."
            )
        schema = json.loads(settings.grammar.value)
        is_strict = isinstance(schema, dict) and schema.get("additionalProperties") is False
        described = {"name": "answer", "schema": schema} | ({"strict": True} if is_strict else {})
        body["response_format"] = {"type": "json_schema", "json_schema": described}
        if not is_chat:
            body["json_schema"] = schema  # llama.cpp ignores `response_format` in completions
    return body
