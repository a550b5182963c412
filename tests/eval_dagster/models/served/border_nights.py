"""Simulated nights of a server with border inputs, judged as a look judges them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from scipy.special import expit

from eval_dagster.models.served.borders import (
    DRAWS,
    FIRST_DRAWS,
    LEVEL,
    MORE_DRAWS,
    MOST_INPUTS,
    SECOND_DRAWS,
    SUSPICION,
    TEMPERATURE,
    Borders,
    border_name,
    is_at_border,
)

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Noise = Callable[[np.random.Generator, int, int], Array | float]
"""The noise of logits, as a factor of its size: by a generator, the number of the night and a number of inputs."""


@dataclass(frozen=True)
class Nights:
    """The result of the nights of one server."""

    epochs: tuple[int, ...]
    """The nights on which an epoch began, from 0."""
    judged: int
    """Nights on which border inputs decided."""
    second_looks: int
    suspected: int
    calls: int
    """Calls of one token of all searches."""


def normal(rng: np.random.Generator, night: int, inputs: int) -> Array:
    """Noise of each logit and night by itself."""
    return rng.normal(0, 1, inputs)


def rare(rng: np.random.Generator, night: int, inputs: int) -> Array:
    """Noise on one night of ten alone."""
    return normal(rng, night, inputs) * (rng.random() < 0.1)


def late(rng: np.random.Generator, night: int, inputs: int) -> Array:
    """Noise from the sixteenth night on."""
    return normal(rng, night, inputs) * (night >= 15)


def nights_of(seed: int, noise: float, *, kind: Noise = normal, moved: float = 0, at: int = 31, nights: int = 31) -> Nights:
    """A server whose logits have noise of this size between nights (standard deviation), and move by `moved` on the night `at`.

    A gap is the difference of two logits, so that its noise and its move are greater by the root of 2. The gaps of prompts are uniform
    from -1 to 1, which is fewer near 0 than the demo model has.
    """
    rng, borders, gaps = np.random.default_rng(seed), Borders(), dict[str, float]()
    epochs, judged, second, suspected, calls = list[int](), 0, 0, 0, 0

    def draw(names: Sequence[str], tonight: dict[str, float], times: int) -> dict[str, list[str]]:
        shares = {name: expit((gaps[name] + tonight[name]) / TEMPERATURE) for name in names}
        return {name: ["a" if value < share else "b" for value in rng.random(times)] for name, share in shares.items()}

    for night in range(nights):
        day = (date(2026, 1, 1) + timedelta(days=night)).isoformat()
        if night == at:
            gaps = {name: gap + math.sqrt(2) * rng.normal(0, moved) for name, gap in gaps.items()}
        prompts = [border_name(f"{night} {index}") for index in range(borders.to_search)]
        gaps |= {name: rng.uniform(-1, 1) for name in prompts}
        asked = [*borders.tokens, *prompts]
        tonight = dict(zip(asked, math.sqrt(2) * noise * kind(rng, night, len(asked)) * np.ones(len(asked)), strict=True))
        draws = draw(list(borders.tokens), tonight, DRAWS)
        verdict = borders.judge(draws)
        judged += verdict.p_value is not None
        if verdict.p_value is not None and verdict.p_value < SUSPICION:
            more = draw(list(borders.tokens), tonight, MORE_DRAWS)
            draws = {name: [*drawn, *more[name]] for name, drawn in draws.items()}
            verdict, second = borders.judge(draws), second + 1
            suspected += verdict.p_value is not None and verdict.p_value < LEVEL
            if borders.confirms(draws, day, verdict.p_value):
                epochs.append(night)
                borders = Borders()
                continue
            prompts = []
        found: dict[str, list[str]] = {}
        for name in prompts:
            [drawn] = draw([name], tonight, FIRST_DRAWS).values()
            more = draw([name], tonight, SECOND_DRAWS) if len(set(drawn)) > 1 else {name: []}
            calls += len(drawn) + len(more[name])
            if is_at_border([*drawn, *more[name]]):
                found[name] = [*drawn, *more[name]]
            if len(borders.tokens) + len(found) == MOST_INPUTS:
                break
        borders = borders.after({**draws, **found}, len(prompts), day, verdict.p_value)
    return Nights(tuple(epochs), judged, second, suspected, calls)
