"""Canaries: prompts that a server is asked in every run, in one of two kinds, and how their answers are read.

From a server that gives log-probabilities, the first token alone is asked for, with the likely tokens at its place (Chauvin et al. 2025,
arXiv:2512.03816). From any other server a short text is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Choice, Ending, read_likely_tokens
from eval_dagster.models.served.calls.answers import TextReader
from eval_dagster.models.served.calls.bodies import CHAT, Call, text_calls, without_nulls
from eval_dagster.records import GenerationSettings, Message, Request, Role

MOST_TOKENS = 12
"""Tokens of a text. Longer greedy texts differ between runs of an unchanged server more often."""
MOST_FIRST_TOKENS = 12
"""Canaries whose first token is asked for. Their likely tokens show more than the texts of all canaries."""
LIKELY_TOKENS = (20, 5)
"""Likely tokens that a server is asked for, the next number if it refuses one. Most servers and providers allow one of these."""
VERSION = 1
"""Version of the calls of canaries and of how their answers are read. Raise it if these change: the earlier answers, which would differ
for that reason, are then no reference. Epochs go on."""
_ONE = "first token"
"""The mark in the names of canaries whose first token is asked for."""
_CERTAIN = -1e-6
"""The greatest log-probability that says something. A server that shows the probabilities after it chose writes 0."""
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


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to a question: its text, or the likely tokens at one place with their log-probabilities."""

    text: str
    is_cut: bool = False
    """Whether the text ends because it may not be longer."""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural logarithms, one for each of the tokens."""

    @property
    def says_something(self) -> bool:
        """Whether it has log-probabilities of more than a certain token."""
        return min(self.logprobs, default=0.0) < _CERTAIN


def canaries_by_name(count: int, *, first_tokens: bool) -> dict[str, str]:
    """The prompts of the first canaries by their names.

    A name is the prompt, with the kind of its answer unless that is a text, and with the version of the canaries from the second one on.
    """
    marks = [_ONE] if first_tokens else []
    marks += [f"version {VERSION}"] if VERSION > 1 else []
    mark = f" ({', '.join(marks)})" if marks else ""
    return {prompt + mark: prompt for prompt in PROMPTS[: min(count, MOST_FIRST_TOKENS) if first_tokens else count]}


def asks_for_likely_tokens(name: str) -> bool:
    """Whether a canary of this name is asked for its first token. Earlier releases asked for log-probabilities of texts."""
    return f" ({_ONE}" in name


def is_chat(config: OpenAIModel) -> bool:
    """Whether canaries are sent as messages: if the conversations of requests are."""
    return config.prompt_format == "chat" and config.send == "messages"


def canary_call(prompt: str, config: OpenAIModel, *, likely: int = 0, drawn_at: float | None = None, seed: int = 0) -> Call:
    """The call for a text; for the first token and its place's likely tokens if a number of `likely` ones is given.

    With a temperature `drawn_at` it is the call for a first token that is drawn with a seed.
    """
    temperature = config.generation.temperature if drawn_at is None else drawn_at
    settings = GenerationSettings(max_tokens=MOST_TOKENS if not likely and drawn_at is None else 1, temperature=temperature, seed=seed)
    messages = (Message(Role.USER, prompt),) if is_chat(config) else None
    call = text_calls(Request(request_id="canary", prompt=prompt, messages=messages, generation=settings), config)[0]
    wanted: dict[str, object] = {}
    if likely:
        wanted = {"logprobs": True, "top_logprobs": likely} if call.path == CHAT else {"logprobs": likely}
    read = read_first_token if likely else read_text
    return Call(path=call.path, body=without_nulls({**wanted, **call.body}, config), read=partial(read, reasons=config.finish_reasons))


def read_text(choice: Choice, reasons: Mapping[str, Ending]) -> Answer:
    """The text in a choice, with its reasoning.

    Raises:
        BadAnswerError: It has no text.
    """
    found = TextReader(reasons=reasons)(choice)
    text = (found.reasoning or "") + found.text
    if not text:
        raise BadAnswerError("the answer is empty, which shows nothing about the model", helps_to_retry=False)
    return Answer(text=text, is_cut=found.finish_reason == "length")


def read_first_token(choice: Choice, reasons: Mapping[str, Ending]) -> Answer:
    """The likely tokens at the first place of a choice. Without any, the text of the choice.

    The first token may be the end of the text, or a part of a character: the likely ones say all.

    Raises:
        BadAnswerError: It has neither.
    """
    try:
        likely = read_likely_tokens(choice)
    except BadAnswerError:
        return read_text(choice, reasons)
    return Answer(text=choice.text or "", is_cut=True, tokens=tuple(likely), logprobs=tuple(likely.values()))
