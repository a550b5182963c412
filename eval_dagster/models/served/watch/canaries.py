"""Canaries: prompts that a server is asked in every run, to see whether it still answers alike."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.calls.answer_records import Choice
from eval_dagster.models.served.calls.answers import BadAnswerError, TextReader
from eval_dagster.models.served.calls.bodies import CHAT, Call, text_calls, without_nulls
from eval_dagster.models.served.calls.finish_reasons import Ending
from eval_dagster.models.served.calls.token_logprobs import read_token_logprobs
from eval_dagster.models.served.watch.change_test import Answer
from eval_dagster.records import GenerationSettings, Message, Request, Role

MOST_TOKENS = 12
"""Tokens of an answer. Longer greedy texts differ between runs of an unchanged server more often."""
VERSION = 1
"""Version of the calls of canaries and of how their answers are read. Raise it if these change: the earlier answers, which would differ
for that reason, are then no reference. Epochs go on."""
PROMPTS = (
    "The capital of Portugal is",
    "17 + 26 =",
    "def is_even(n):\n    return",
    "La capitale de l'Italie est",
    "Monday, Tuesday, Wednesday,",
    "The chemical symbol of silver is",
    "A train travels 60 km in 45 minutes. In one hour it travels",
    "for (int i = 0; i <",
    "Der Hund lief über die",
    "Shopping list:\n- bread\n- milk\n-",
    "Water boils at sea level at a temperature of",
    "9 * 8 =",
    "SELECT name FROM users WHERE",
    "El color del cielo es",
    "Once there was a fox who",
    "The planet with the most moons is",
    "1, 1, 2, 3, 5, 8, 13,",
    "<html>\n<head>\n<title>",
    "日本の首都は",
    "Dear Sir or Madam,\nI am writing to",
    "The author of War and Peace is",
    "The square root of 144 is",
    '{"name": "Anna", "age": 31, "city": "',
    "Столица России —",
)
"""Facts, arithmetic, code, other languages, lists and prose in turn, so that the first of them are of all kinds."""


def canaries_by_name(count: int) -> dict[str, str]:
    """The names of the first canaries. A name is the prompt; from the second version of the canaries on, it also has the version."""
    return {prompt if VERSION == 1 else f"{prompt} (version {VERSION})": prompt for prompt in PROMPTS[:count]}


def is_chat(config: OpenAIModel) -> bool:
    """Whether canaries are sent as messages: if the conversations of requests are."""
    return config.prompt_format == "chat" and config.send == "messages"


def canary_call(prompt: str, config: OpenAIModel, *, with_logprobs: bool) -> Call:
    """The call for an answer to a canary."""
    settings = GenerationSettings(max_tokens=MOST_TOKENS, temperature=config.generation.temperature)
    messages = (Message(Role.USER, prompt),) if is_chat(config) else None
    call = text_calls(Request(request_id="canary", prompt=prompt, messages=messages, generation=settings), config)[0]
    wanted: dict[str, Any] = {"logprobs": True if call.path == CHAT else 1} if with_logprobs else {}
    return Call(
        path=call.path, body=without_nulls({**wanted, **call.body}, config), read=partial(read_answer, reasons=config.finish_reasons)
    )


def read_answer(choice: Choice, reasons: Mapping[str, Ending]) -> Answer:
    """The answer in a choice, with its reasoning.

    Raises:
        BadAnswerError: It has no text.
    """
    found = TextReader(reasons=reasons)(choice)
    text = (found.reasoning or "") + found.text
    if not text:
        raise BadAnswerError("the answer is empty, which shows nothing about the model", helps_to_retry=False)
    try:
        tokens = read_token_logprobs(choice)
    except BadAnswerError:
        tokens = []
    values = [token.logprob for token in tokens]
    known: Sequence[float] = [value for value in values if value is not None]
    has_all = len(known) == len(values)
    return Answer(
        text=text,
        is_cut=found.finish_reason == "length",
        tokens=tuple(token.token for token in tokens) if has_all else (),
        logprobs=tuple(known) if has_all else (),
    )
