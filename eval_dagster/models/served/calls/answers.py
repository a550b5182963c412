"""Parses the answers of a server, and rejects malformed ones with the reason."""

import importlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from eval_dagster.models.base import cut_at_stop
from eval_dagster.models.served.calls.answer_records import (
    FEW_ATTEMPTS,
    AnswerRecord,
    BadAnswerError,
    Choice,
    Ending,
    MalformedError,
    MessageRecord,
    Reply,
    Text,
    cut,
    ending_of,
)
from eval_dagster.records import Grammar

_MOST_TOKENS = 10_000_000
"""A larger count of tokens is a mistake of the server."""
_MOST_TIMES, _MOST_MORE, _FEW_MORE = 4, 100_000, 1024
"""Times the allowed tokens of a text, and more tokens, with reasoning and without, up to which a count is believed."""
_WORDS = 4
"""Fewest words of a question by which it is known in a text."""
BYTES_OF_TOKEN = 32
"""Most bytes that the tokens of a text have on average; a count of fewer tokens is not believed."""
_TOKENS_OF_NOTHING = 1
"""Most tokens of a text that is empty: its end."""
_PARTS = {"choices", "index", "message", "content", "text", "role", "finish_reason", "logprobs", "tokens", "token_logprobs", "top_logprobs"}
"""Names in an answer that may be there once."""
_KINDS = {"text": "text", "output_text": "text", "thinking": "thinking", "redacted_thinking": "thinking", "reasoning": "thinking"}
"""Kinds of the parts of a text, and whether they are of the text or of the reasoning before it."""
_STARTS = re.compile(r"^\s*(<s>|<bos>|<\|begin_of_text\|>|<\|startoftext\|>|<｜begin▁of▁sentence｜>)")
_ENDS = re.compile(
    r"((</s>|<eos>|<end_of_turn>|<\|(im_end|eot_id|eom_id|endoftext|end_of_text|end|return|eot|END_OF_TURN_TOKEN)\|>|<｜end▁of▁sentence｜>)\s*)+$"
)
"""Special tokens before and after a text."""
_FEW = 3
"""Tokens by which counts of the same text differ."""


def schema_problem(text: str, schema: str) -> str | None:
    """Why a text does not match a schema; None if it does. Without the package jsonschema, only that it is JSON is checked."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON ({error})"
    try:
        exceptions, validators = importlib.import_module("jsonschema.exceptions"), importlib.import_module("jsonschema.validators")
        registry = importlib.import_module("referencing").Registry()  # an empty one: the default fetches what a reference names
    except ImportError:
        return None
    wanted: Any = json.loads(schema)
    try:
        validators.validator_for(wanted, default=validators.Draft202012Validator)(wanted, registry=registry).validate(found)
    except exceptions.ValidationError as error:
        return f"at {error.json_path}: {error.message}"
    except Exception:  # the schema is one that the package cannot apply, such as one that refers to another document
        return None
    return None


def parsed(body: bytes) -> object:
    """The JSON of a response.

    Raises `BadAnswerError` if it is invalid, for instance with NaN or Infinity, or if it has two values for one key.
    """
    try:
        found: object = json.loads(body, parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        shown = cut(body.decode(errors="replace"))
        raise BadAnswerError(f"the server answered with {len(body)} bytes that are no JSON: {shown!r}") from None
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object. Log-probabilities may have a token twice, since different tokens are written alike."""
    found = dict(pairs)
    if len(found) < len(pairs) and any(name in _PARTS and value != found[name] for name, value in pairs):
        raise ValueError("a part of the answer is there twice")
    return found


def json_object(found: object) -> Mapping[str, object]:
    """A JSON object. Raises `BadAnswerError` if it is none."""
    if not isinstance(found, dict):
        raise BadAnswerError(f"the server answered with JSON that is no object: {cut(json.dumps(found))}")
    return found


def read_reply(found: Mapping[str, object], read: Callable[[Choice], object]) -> Reply:
    """The reply in a response to `/chat/completions` or `/completions`. `read` is given the choice with the index 0.

    Raises:
        BadAnswerError: It has no such choice, has another form than expected or is an error, or as `read` does.
    """
    usage = found.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    # A count is null if the server leaves it out, or gives one that cannot be.
    prompt, told, total = (_count(counts.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    output = told
    if prompt is not None and told is not None and total is not None:
        output = max(told, total - prompt)  # some servers count the tokens of the reasoning in the total alone
    reply = Reply(
        content=None,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=_part(counts.get("prompt_tokens_details"), "cached_tokens", prompt),
        reasoning_tokens=_part(counts.get("completion_tokens_details"), "reasoning_tokens", output),
    )
    try:
        kind = str(found.get("object"))
        is_failure = kind == "error" or kind.endswith(".chunk") or found.get("success") is False
        problem = found.get("error") or found.get("errors") or (found if is_failure else None)
        if problem:  # it counts even beside choices
            raise BadAnswerError(f"the server answered with an error under status 200: {cut(json.dumps(problem))}")
        if not found.get("choices"):
            raise BadAnswerError(f"the answer has no choices: {cut(json.dumps(found))}")
        try:
            answer = AnswerRecord.of(found)
            reply = replace(reply, model=answer.model, fingerprint=answer.system_fingerprint, answer_id=answer.id)
            first = [each for each in answer.choices if each.index == 0]
            if len(answer.choices) == 1 and answer.choices[0].index is None:
                first = [answer.choices[0]]
            if len(first) != 1:
                raise MalformedError(f"choices with the indices {[each.index for each in answer.choices]}; expected one with 0")
            hidden = reply.reasoning_tokens or (output or 0) - (told or 0)
            choice = first[0].model_copy(update={"prompt_tokens": prompt, "output_tokens": output, "hidden_tokens": hidden})
            return replace(reply, content=read(choice))
        except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
            raise BadAnswerError(f"the answer has another form than expected ({error}): {cut(json.dumps(found))}") from None
    except BadAnswerError as error:
        error.reply = reply
        raise


def _name_of(call: Mapping[str, object]) -> str:
    """The name of the tool that a call in the form of OpenAI is for."""
    function = call.get("function")
    return str(function.get("name")) if isinstance(function, Mapping) else ""


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads the text of a choice, cut at the first stop sequence.

    Some servers, such as llama.cpp, repeat the message that the text continues. It is not part of the text.
    """

    stop_sequences: Sequence[str] = ()
    """Those of the request."""
    cue: str = ""
    """The message that the text continues."""
    grammar: Grammar | None = None
    """The JSON schema that the text must match."""
    most: int | None = None
    """Most tokens of the text."""
    context: int | None = None
    """Tokens of a prompt and its answer, at most."""
    reasons: Mapping[str, Ending] = field(default_factory=dict)
    """Meanings of the server's own words for the end of a text."""
    has_tools: bool = False
    """Whether the request offers tools."""
    tool_choice: str = ""
    """As in `Request`."""
    question: str = ""
    """The last message of the request, or the whole prompt of completions."""

    def _require_choice(self, called: Sequence[str], choice: Choice) -> None:
        """Require the calls that `tool_choice` demands. Servers exist, such as llama.cpp, that leave it out without a word."""
        wanted = self.tool_choice
        if wanted == "none" and called:
            problem = f"calls {', '.join(called)}, where tool_choice allows no call"
        elif wanted == "required" and not called:
            problem = "calls no tool, which tool_choice demands"
        elif wanted not in ("", "none", "required") and set(called) != {wanted}:
            problem = f"calls {', '.join(called) or 'no tool'}, where tool_choice demands {wanted}"
        else:
            return
        message = f"the answer {problem}; the server does not force it: {cut(choice.shown)}"
        raise BadAnswerError(message, kind="ToolChoiceError", helps_to_retry=False)

    def __call__(self, choice: Choice) -> Text:
        """The text.

        Raises:
            BadAnswerError: It has no text, a refusal, a text that a filter stopped, that ended too early or for a reason that is not known,
                that begins with the question, or that does not match the schema; or it calls a tool that the request does not offer, or
                other tools than it demands.
        """
        turn = choice.message or MessageRecord(content=choice.text, reasoning=choice.reasoning, reasoning_content=choice.reasoning_content)
        ending = self._ending(choice, turn)
        reasoning = turn.reasoning or turn.reasoning_content
        calls = tuple(json.dumps(call) for call in turn.tool_calls or ())
        if calls and not self.has_tools:
            raise BadAnswerError(f"the server calls a tool that the request does not offer: {cut(choice.shown)}")
        text, thought = _joined(turn.content)
        if ending != "cut":
            self._require_choice([_name_of(call) for call in turn.tool_calls or ()], choice)
        reasoning = reasoning or thought
        if not text and ending == "cut" and not (reasoning or calls or choice.hidden_tokens):
            raise BadAnswerError(f"the text is cut before it begins, and nothing says that the model reasoned: {cut(choice.shown)}")
        if text is None and (reasoning or calls or ending == "cut"):  # all of its tokens were spent on reasoning
            text = ""
        if text is None:
            raise BadAnswerError(f"the answer has no text: {cut(choice.shown)}")
        text = _STARTS.sub("", text)
        written = text = _ENDS.sub("", text) if "<s>" not in text else text
        self._require_answer(choice, text)
        cue = self.cue.strip()
        if cue and text.lstrip().startswith(cue):
            text = text.lstrip()[len(cue) :]
        text, is_stopped = cut_at_stop(text, self.stop_sequences)
        is_cut = ending == "cut" and not is_stopped
        if is_cut:
            self._require_full(choice, written + (reasoning or ""))
        if not (written or reasoning or calls or is_cut):
            tokens = choice.output_tokens
            most = _TOKENS_OF_NOTHING + max((len(stop.encode()) for stop in self.stop_sequences), default=0)
            if tokens is not None and not 0 < tokens <= most:
                raise BadAnswerError(
                    f"the text is empty, but the server counts {tokens} tokens: {cut(choice.shown)}", most_attempts=FEW_ATTEMPTS
                )
        if self.grammar is not None and not (is_cut or calls or self.stop_sequences):  # what a stop sequence cuts may be half of an object
            problem = schema_problem(text, self.grammar.value)
            if problem is not None:
                raise BadAnswerError(
                    "the text does not match the JSON schema of the request, so the server ignores the schema: "
                    f"{problem}; the text: {cut(text)!r}",
                    kind="SchemaError",
                    helps_to_retry=False,
                )
        return Text(
            text=text,
            finish_reason="length" if is_cut else "stop",
            server_reason=choice.finish_reason,
            reasoning=reasoning,
            tool_calls=calls,
        )

    def _ending(self, choice: Choice, turn: MessageRecord) -> Ending:
        if turn.role not in (None, "", "assistant", "model"):
            raise BadAnswerError(f"the server answered with a message of the role {cut(turn.role)!r}; expected 'assistant'")
        if turn.refusal:
            raise BadAnswerError(f"the model refused to answer: {cut(str(turn.refusal))}", kind="RefusalError", helps_to_retry=False)
        ending = ending_of(choice.finish_reason, self.reasons)
        if ending == "complete" and choice.native_finish_reason:  # a gateway may have another word for it than its provider
            ending = ending_of(choice.native_finish_reason, self.reasons) or ending
        filters = choice.content_filter_results if isinstance(choice.content_filter_results, dict) else {}
        if ending == "refused" or any(isinstance(each, dict) and each.get("filtered") is True for each in filters.values()):
            stopped = f"a content filter of the server stopped the answer: {cut(choice.shown)}"
            raise BadAnswerError(stopped, kind="ContentFilterError", helps_to_retry=False)
        if ending == "interrupted" and choice.finish_reason is None and not choice.error:
            raise BadAnswerError(
                "the server gave no reason for the end of the text, so that it may be a part of one. If it never gives a reason, set "
                f'`finish_reasons: {{"null": complete}}` for this model in evals.yaml; the answer: {cut(choice.shown)}'
            )
        if choice.error or turn.error or ending == "interrupted":
            raise BadAnswerError(f"the server broke the answer off: {cut(choice.shown)}")
        if ending is None:
            word = json.dumps(choice.finish_reason)
            raise BadAnswerError(
                f"the server ended the text for a reason that is not known: {word}. If the text is complete then, set "
                f"`finish_reasons: {{{word}: complete}}` for this model in evals.yaml; the answer: {cut(choice.shown)}",
                kind="UnknownFinishReasonError",
                most_attempts=FEW_ATTEMPTS,
            )
        return ending

    def _require_full(self, choice: Choice, text: str) -> None:
        """Require that a text that is cut has the tokens that it may have, or ends if the context does."""
        tokens, prompt = choice.output_tokens, choice.prompt_tokens
        if tokens is None:  # a token has a byte at least
            tokens = len(text.encode()) + _FEW if text else self.most
        is_at_end = self.context is not None and prompt is not None and prompt + (tokens or 0) >= self.context - _FEW
        if self.most is not None and tokens is not None and tokens < self.most and not is_at_end:
            raise BadAnswerError(
                f"the server cut the text after {tokens} tokens, of {self.most} that it may have. If it allows no more, set `max_tokens` "
                "in `generation` to what it allows, or `max_length` to its context, for this model in evals.yaml; the answer: "
                f"{cut(choice.shown)}",
                most_attempts=FEW_ATTEMPTS,
            )

    def _require_answer(self, choice: Choice, text: str) -> None:
        """Require that a text that begins with the question has the tokens of both: else the server wrote the question, not the model."""
        words, most = len(self.question.split()), self.most if choice.output_tokens is None else choice.output_tokens
        if words >= _WORDS and text.lstrip().startswith(self.question.strip()) and most is not None and most < words:
            raise BadAnswerError(
                f"the server wrote the question of {words} words before the answer, and counts {most} tokens: {cut(choice.shown)}",
                most_attempts=FEW_ATTEMPTS,
            )


def _joined(content: str | Sequence[Mapping[str, object]] | None) -> tuple[str | None, str | None]:
    """The text and the reasoning of a content that is a list of parts, each null if there is none.

    Raises `BadAnswerError` for a refusal and for a part of another kind.
    """
    if content is None or isinstance(content, str):
        return content, None
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in content:
        kind = str(part.get("type", "text"))
        if kind == "refusal":
            raise BadAnswerError(f"the model refused to answer: {cut(str(part.get('refusal')))}", kind="RefusalError", helps_to_retry=False)
        name = _KINDS.get(kind)
        found = None if name is None else part.get(kind, part.get(name))
        if name is None or (name == "text" and not isinstance(found, str)):
            raise BadAnswerError(f"a part of the text is of the kind {cut(kind)!r}; expected text: {cut(json.dumps(part))}")
        texts[name] += [found] if isinstance(found, str) else []
    text, thought = ("".join(found) if found else None for found in texts.values())
    return text, thought


def believable(reply: Reply, bytes_sent: int, most_output: int | None, least_prompt: int = 1) -> Reply:
    """The reply without a count of tokens that cannot be: one that is far too small or too large for the prompt, or for the text.

    A prompt has fewer tokens than the call has bytes. A text may have some more tokens than it was allowed, if a server counts reasoning
    beside it.

    Args:
        reply: The reply.
        bytes_sent: Bytes of the body of the call.
        most_output: Most tokens of the text; None if nothing limits it.
        least_prompt: Fewest tokens that the prompt can have.
    """
    prompt, output, content = reply.prompt_tokens, reply.output_tokens, reply.content
    has_reasoning = bool(reply.reasoning_tokens) or (isinstance(content, Text) and content.reasoning is not None)
    most = None if most_output is None else _MOST_TIMES * most_output + (_MOST_MORE if has_reasoning else _FEW_MORE)
    least = math.ceil(len(content.text.encode(errors="replace")) / BYTES_OF_TOKEN) if isinstance(content, Text) else 0
    if prompt is not None and not least_prompt <= prompt <= bytes_sent:
        reply = replace(reply, prompt_tokens=None, cached_tokens=None)
    if output is not None and not (least <= output and (most is None or output <= most)):
        reply = replace(reply, output_tokens=None, reasoning_tokens=None)
    return reply


def _part(details: object, name: str, whole: int | None) -> int | None:
    """A count that is part of another one; null if it is not, or if the whole is unknown."""
    found = _count(details.get(name)) if isinstance(details, dict) else None
    return None if found is None or whole is None or found > whole else found


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None
