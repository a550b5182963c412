"""A model that is a hash of its prompt: texts and log-probabilities are the same for the same prompt, and cost microseconds.

The log-probability of a token is that of the token after a prefix, whether the token is generated, forced by a bias or echoed.
"""

import math
import re
from random import Random
from statistics import NormalDist
from typing import Any
from zlib import crc32

_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
_WORDS = tuple(
    f" {word}"
    for word in ("the", "a", "of", "in", "red", "green", "blue", "sun", "moon", "river", "house", "stone", "bird", "tree", "three", "seven")
)
_UNIT = 2.0**-32


def is_given(luck: str, part: str, time: int, chance: float) -> bool:
    """Whether a prompt with this part gets its text when it is asked for so many times, from 1."""
    return Random(f"{luck} {part} {time}").random() < chance


class Vocabulary:
    """Ids of tokens, given in the order in which the tokens are first seen."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._tokens: list[str] = []

    def id_of(self, token: str) -> int:
        known = self._ids.get(token)
        if known is None:
            known = self._ids[token] = len(self._tokens)
            self._tokens.append(token)
        return known

    def tokens_of(self, ids: list[int]) -> list[str]:
        """Raises `IndexError` for an id that no text had yet."""
        return [self._tokens[each] for each in ids]


def split(text: str) -> list[str]:
    """Tokens: a word or a sign with the white space before it."""
    return _TOKEN.findall(text)


def prompt_tokens(body: dict[str, Any], vocabulary: Vocabulary) -> list[str]:
    """The tokens that a request asks to continue, chat messages as text."""
    if "messages" in body:
        return split("".join(f"<{each['role']}>{_content(each['content'])}\n" for each in body["messages"]) + "<assistant>")
    prompt = body["prompt"]
    return split(prompt) if isinstance(prompt, str) else vocabulary.tokens_of(prompt)


def _content(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class HashModel:
    """One state of the model; another salt is another model."""

    def __init__(self, salt: str, mean_tokens: float, sigma: float) -> None:
        self._salt = crc32(salt.encode())
        self._mu, self._sigma = math.log(mean_tokens) - sigma**2 / 2, sigma

    def state(self, prefix: str, salt: str = "") -> int:
        """What the next token depends on."""
        return crc32(prefix.encode(), crc32(salt.encode(), self._salt) if salt else self._salt)

    def best(self, state: int) -> str:
        """The token that a greedy text has next."""
        return _WORDS[state % len(_WORDS)]

    def logprob(self, state: int, token: str) -> float:
        """Of a token after a prefix: above log 0.5 for the best token, below it for all others."""
        share = crc32(token.encode(), state) * _UNIT
        return math.log(0.5 + 0.49 * share) if token == self.best(state) else -1 - 11 * share

    def length(self, state: int) -> int:
        """Tokens until the text ends: lognormal over prompts."""
        share = (crc32(b"length", state) + 0.5) * _UNIT
        return max(1, round(math.exp(self._mu + self._sigma * NormalDist().inv_cdf(share))))

    def generate(self, state: int, maximum: int | None) -> tuple[list[str], bool]:
        """The tokens of a text, and whether it ended by itself."""
        length = self.length(state)
        tokens = []
        for _ in range(length if maximum is None else min(length, maximum)):
            tokens.append(self.best(state))
            state = crc32(tokens[-1].encode(), state)
        return tokens, maximum is None or length <= maximum

    def logprobs(self, state: int, tokens: list[str], most: int) -> list[tuple[float, dict[str, float]]]:
        """For each token its log-probability after the state and the tokens before it, and the `most` probable words with their own."""
        found = []
        for token in tokens:
            words = sorted(((self.logprob(state, word), word) for word in _WORDS), reverse=True)[:most]
            found.append((self.logprob(state, token), {word: value for value, word in words}))
            state = crc32(token.encode(), state)
        return found
