"""Logits processors: they record the logits, and add noise so that the best token is a sample of the distribution."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eval_dagster.models.usage import GenerationUsage
from eval_dagster.records import GenerationSettings


class RawLogits:
    """Logits processor that changes nothing and records rows without a finite best logit, and the logits of chosen tokens."""

    def __init__(self, rows: int, device: str, *, keep: bool):
        """`keep` is whether the logits of the chosen tokens are recorded."""
        self.is_bad = torch.zeros(rows, dtype=torch.bool, device=device)
        """For each row, whether it ever had no finite best logit."""
        self._keep = keep
        self._chosen: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note the logits; return them as they are."""
        self.is_bad |= ~torch.isfinite(scores.amax(dim=-1))
        if self._keep:
            # Only now is it known which token the step before chose.
            self._note(input_ids)
            self._last = scores
        return scores

    def chosen(self, output: torch.Tensor) -> list[list[float]]:
        """The logit of each generated token, one list a row of `output`, padding after a row's end included."""
        self._note(output)
        self._last = None
        return torch.stack(self._chosen, dim=1).tolist() if self._chosen else [[]] * len(output)

    def _note(self, ids: torch.Tensor) -> None:
        if self._last is not None:
            self._chosen.append(self._last.gather(1, ids[:, -1:]).squeeze(1).float())


class PassCounter:
    """Logits processor that changes nothing and counts the passes of a padded batch as they come."""

    def __init__(self, usage: GenerationUsage, prompt_length: int):
        """`prompt_length` is the longest prompt's: the others are padded to it."""
        self._usage = usage
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Count the pass that gave these logits; return them as they are."""
        rows, length = input_ids.shape
        self._usage.passes += 1
        if length == self._prompt_length:
            self._usage.prompt_tokens_computed += rows * length
        else:
            self._usage.tokens_decoded += rows
        return scores


class GumbelNoise:
    """Logits processor that turns the argmax into a sample of the softmax (the Gumbel-max trick), with one random generator a row."""

    def __init__(self, generators: Sequence[torch.Generator]):
        """`generators` are of the CPU."""
        self._generators = generators

    def __call__(self, _input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        """Add the noise."""
        uniform = torch.stack([torch.rand(scores.shape[-1], generator=generator) for generator in self._generators])
        tiny = torch.finfo(uniform.dtype).tiny
        noise = -torch.log(-torch.log(uniform.clamp_(min=tiny)))
        return scores.float() + noise.to(scores.device)


def warpers(settings: GenerationSettings) -> list[Any]:
    """The logits processors that shape the distribution from which a token is drawn; none if the temperature is 0."""
    if settings.temperature == 0:
        return []
    processors: list[Any] = [TemperatureLogitsWarper(settings.temperature)]
    if settings.top_k is not None:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        processors.append(TopPLogitsWarper(settings.top_p))
    return processors
