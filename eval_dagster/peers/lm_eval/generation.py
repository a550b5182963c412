"""Settings of generation as lm-eval's tasks give them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import TaskDefinitionError

_MOST_TOKENS = 256
"""lm-eval's default."""


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The settings of the texts of an lm-eval task."""

    stop_sequences: tuple[str, ...]
    max_tokens: int
    temperature: float
    top_p: float | None
    top_k: int | None


def text_settings(name: str, given: Mapping[str, Any]) -> TextSettings:
    """The settings in `generation_kwargs`, read as lm-eval's model for transformers reads them.

    Raises:
        TaskDefinitionError: A setting has no counterpart here, beam search for instance.
    """
    rest = dict(given)
    until = rest.pop("until", None) or []
    numbers = [rest.pop(key, None) for key in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")]
    temperature, samples = float(rest.pop("temperature", 0.0) or 0.0), rest.pop("do_sample", None)
    if samples is False:
        temperature = 0.0
    elif samples and not temperature:
        temperature = 1.0
    if rest.pop("num_beams", 1) != 1:
        raise TaskDefinitionError(f"lm_eval:{name} wants beam search (num_beams), which eval_dagster has not")
    top_p, top_k = rest.pop("top_p", None), rest.pop("top_k", None)
    if rest:
        raise TaskDefinitionError(f"lm_eval:{name} has the generation_kwargs {', '.join(sorted(rest))}, which eval_dagster does not know")
    return TextSettings(
        stop_sequences=tuple(dict.fromkeys(text for text in ([until] if isinstance(until, str) else until) if text)),
        max_tokens=int(next((number for number in numbers if number is not None), _MOST_TOKENS)),
        temperature=temperature,
        top_p=top_p if temperature else None,
        top_k=top_k if temperature else None,
    )
