"""Normalizations of texts and of log-probabilities, under the names of lighteval."""

import re
import string
from dataclasses import dataclass

from eval_dagster.errors import DataError
from eval_dagster.records import ModelResponse
from eval_dagster.tasks.doc import Doc

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_GSM8K_ANSWER = re.compile(r"#### (-?[0-9.,]+)")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_REMOVED = ("\n", r"\!")
_SHORTENED = (("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"))
_DROPPED = (r"\left", r"\right", r"^{\circ}", r"^\circ", r"\$")
_ROOT = re.compile(r"\\sqrt([^{])")


def helm_normalizer(text: str) -> str:
    """The words of a text in lower case, without punctuation and articles; numbers in one form. Words end at spaces and hyphens."""
    words = [_ARTICLE.sub(" ", _number(word.translate(_WITHOUT_PUNCTUATION))) for word in re.split(" |-", text.lower())]
    return " ".join(" ".join(word.split()) for word in words if word.split())


def _number(word: str) -> str:
    try:
        return str(float(word))
    except ValueError:
        return word


def harness_triviaqa_normalizer(text: str) -> str:
    """The text in lower case, without punctuation."""
    return text.lower().translate(_WITHOUT_PUNCTUATION)


def bigbench_normalizer(text: str) -> str:
    """The text with a line for each sentence."""
    return text.replace(" . ", ".\n")


def remove_braces(text: str) -> str:
    """The text without one brace at either end."""
    return text.removeprefix("{").removesuffix("}")


def remove_braces_and_strip(text: str) -> str:
    """The text without white space and then one brace at either end."""
    return remove_braces(text.strip())


def gsm8k_normalizer(text: str) -> str:
    """The number after the first `####`, without commas; `[invalid]` without one."""
    found = _GSM8K_ANSWER.search(text)
    return found[1].replace(",", "") if found else "[invalid]"


def math_normalizer(text: str) -> str:
    """The content of the last box in one spelling, by the rules of the MATH dataset (Hendrycks et al. 2021, arXiv:2103.03874).

    It is empty without a box. Spaces, units, degrees, percent and dollar signs are lost, as is a short left side of an equation.
    """
    text = _boxed(text)
    for part in _REMOVED:
        text = text.replace(part, "")
    for part, other in _SHORTENED:
        text = text.replace(part, other)
    for part in _DROPPED:
        text = text.replace(part, "")
    text, unit, _ = text.partition(r"\text{ ")
    text = (text.rstrip() if unit else text).replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    text = f"0{text}" if text.startswith(".") else text
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:
        text = right
    text = _with_fractions(_ROOT.sub(r"\\sqrt{\1}", text).replace(" ", ""))
    return _with_slash(r"\frac{1}{2}" if text == "0.5" else text)


def _boxed(text: str) -> str:
    """The content of the last box; empty if it is not closed or without `\\boxed`."""
    start = text.rfind(r"\boxed") if r"\boxed" in text else text.rfind(r"\fbox")
    depth = 0
    for end, letter in enumerate(text[start:] if start >= 0 else "", start):
        depth += (letter == "{") - (letter == "}")
        if letter == "}" and depth == 0:
            box = text[start : end + 1]
            opening = r"\boxed " if r"\boxed " in box else r"\boxed{"
            if not box.startswith(opening):
                return ""
            return box.removeprefix(opening) if opening.endswith(" ") else box.removeprefix(opening)[:-1]
    return ""


def _with_fractions(text: str) -> str:
    r"""The text with braces around both parts of a fraction: `\frac12` and `\frac1{2}` become `\frac{1}{2}`."""
    first, *rest = text.split(r"\frac")
    if any(len(part) < 2 and part != "{" for part in rest):
        return text
    parts = [part if part[0] == "{" else f"{{{part[0]}}}{part[1:] if part[1] == '{' else f'{{{part[1]}}}{part[2:]}'}" for part in rest]
    return r"\frac".join([first, *parts])


def _with_slash(text: str) -> str:
    r"""The text, and `\frac{1}{2}` for 1/2."""
    above, _, below = text.partition("/")
    try:
        is_fraction = text == f"{int(above)}/{int(below)}"
    except ValueError:
        return text
    return rf"\frac{{{above}}}{{{below}}}" if is_fraction else text


@dataclass
class LogProbPMINorm:
    """The log-probability minus the log-probability after the unconditioned query."""

    name: str = "norm_pmi"


@dataclass
class LogProbTokenNorm:
    """The log-probability for each token."""

    name: str = "norm_token"


@dataclass
class LogProbCharNorm:
    """The log-probability for each character."""

    name: str = "norm"
    ignore_first_space: bool = False
    """Whether a space before the choice does not count."""


LogProbNormalization = LogProbCharNorm | LogProbTokenNorm | LogProbPMINorm


def normalize_log_probs(normalization: LogProbNormalization | None, doc: Doc, response: ModelResponse) -> list[float]:
    """The log-probabilities of the choices, normalized.

    Raises:
        DataError: The response lacks what the normalization needs.
    """
    values = list(response.logprobs)[: len(doc.choices)]
    if isinstance(normalization, LogProbCharNorm):
        skipped = [normalization.ignore_first_space and choice.startswith(" ") for choice in doc.choices]
        return [value / (len(choice) - skip) for value, choice, skip in zip(values, doc.choices, skipped, strict=True)]
    if isinstance(normalization, LogProbTokenNorm):
        if len(response.token_logprobs) != len(values):
            raise DataError("the response has no tokens of its choices; expected them, to divide log-probabilities by their number")
        return [value / len(tokens) for value, tokens in zip(values, response.token_logprobs, strict=True)]
    if isinstance(normalization, LogProbPMINorm):
        if response.unconditioned_logprobs is None:
            raise DataError("the response has no unconditioned log-probabilities; expected a Doc with an unconditioned_query")
        return [value - other for value, other in zip(values, response.unconditioned_logprobs, strict=True)]
    return values
