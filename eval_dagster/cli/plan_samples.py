"""Prints what a suite can see, and the samples that it takes to see more: `plan --detect` and `plan --budget`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from eval_dagster.cli.console import errors, out, print_next
from eval_dagster.cli.tables import print_screenful
from eval_dagster.errors import UsageError
from eval_dagster.gate.planning import Planned, limits_within, plan_samples
from eval_dagster.project import Project
from eval_dagster.texts.figures import number

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|usd)", re.IGNORECASE)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that a night may cost."""

    amount: float
    """Seconds of workers, or US dollars."""
    unit: Literal["seconds", "cost"]
    text: str
    """The words of the user."""


def parse_budget(text: str) -> Budget:
    """Read an amount such as `20min`, `90s`, `1.5h` or `5usd`. Raises `UsageError` if it has another form."""
    found = _BUDGET.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"--budget: found {text!r}; expected an amount above 0 with its unit: 90s, 20min, 1.5h or 5usd")
    amount, unit = float(found[1]), found[2].lower()
    if unit == "usd":
        return Budget(amount=amount, unit="cost", text=text)
    return Budget(amount=amount * _SECONDS[unit], unit="seconds", text=text)


def print_samples(project: Project, suite: str, points: float, budget: Budget | None) -> None:
    """Print what each eval of a suite sees on each model, and the samples that it takes to see a fall of so many points."""
    rows, level = plan_samples(project, suite, points / 100)
    known = [row for row in rows if row.reason is None]
    for row in rows:
        if row.reason is not None:
            errors.print(f"not planned: {row.eval} on {row.model}: {row.reason}", style="yellow", soft_wrap=True)
    if not known:
        out.print(f"Nothing can be planned yet for {suite}: flips are measured between two states of a result.")
        print_next((f"run --suite {suite}", "evaluates the suite once more, if something has changed"))
        return
    see = f"to see {points:g}"
    columns = ("eval", "model", "samples", "flips", "sees", see, "cheapest", "margin", "to prove", "proven", "minutes", "dollars", "note")
    cells = [
        (
            *(row.eval, row.model, f"{row.samples:,}"),
            *("–" if row.flips is None else f"{row.flips:.1%}", number(row.sees), _count(row.to_see)),
            "–" if row.cheapest is None else f"{row.cheapest.samples:,} × {row.cheapest.texts} texts",
            *("–" if row.margin is None else f"{row.margin:g}", _count(row.to_prove)),
            "–" if row.proves is None else f"{row.proves:.0%}",
            "–" if row.seconds is None or row.to_see is None else f"{row.seconds * row.to_see / 60:,.1f}",
            "–" if row.cost is None or row.to_see is None else f"{row.cost * row.to_see:,.2f}",
            "; ".join(_notes(row)),
        )
        for row in known
    ]
    print_screenful(f"{suite}: what it can see", columns, cells, right=columns[2:12], choices="--suite")
    pairs = sum(row.pairs for row in known)
    out.print(
        f"Flips are of {pairs} pairs of successive states. 'sees' is the smallest fall that the last comparison would have seen in 8 of 10 "
        f"cases; '{see}' counts the samples that see a fall of {points:g} points in 8 of 10 nights, at the two-sided level {level:.2g} of "
        "each comparison of a night; 'to prove' those that prove in 8 of 10 quiet nights that no fall of the margin took place, and "
        "'proven' how often the samples that there are do.",
        soft_wrap=True,
    )
    if any(row.cheapest for row in known):
        out.print(
            "'cheapest' sees the same fall with more texts of fewer prompts (`num_samples`), at a temperature above 0; all nights that are "
            "compared need as many.",
            soft_wrap=True,
        )
    if budget is not None:
        _print_limits(known, level, budget)
    print_next((f"run --suite {suite}", "evaluates and judges the suite"), ("sql regressions", "what each comparison found"))


def _print_limits(rows: Sequence[Planned], level: float, budget: Budget) -> None:
    found = limits_within(rows, level=level, budget=budget.amount, unit=budget.unit)
    if found is None:
        what = "the cost" if budget.unit == "cost" else "the time"
        errors.print(
            f"no limits for {budget.text}: {what} of a sample is known of no eval, or the budget is too small to see a fall of 50 points",
            style="yellow",
            soft_wrap=True,
        )
        return
    fall, limits = found
    texts = {row.eval: row.texts for row in rows}
    whole = {row.eval for row in rows if row.most is not None and row.eval in limits and limits[row.eval].samples >= row.most}
    limited = {name: asked for name, asked in limits.items() if name not in whole or asked.texts != texts[name]}
    if limited:
        out.print(f"Within {budget.text} a night, these limits see a fall of {100 * fall:.1f} points:", soft_wrap=True)
    for name, asked in limited.items():
        settings = [f"limit: {asked.samples}"] if name not in whole else []
        settings += [f"num_samples: {asked.texts}"] if asked.texts != texts[name] else []
        out.print(f"  {name}: {{{', '.join(settings)}}}", highlight=False, markup=False)
    if whole:
        out.print(
            f"All samples of {', '.join(sorted(whole))} are asked within {budget.text}; what they see is in the table.", soft_wrap=True
        )
    if left := sorted({row.eval for row in rows} - set(limits)):
        out.print(f"Without a price, and so left out: {', '.join(left)}.", soft_wrap=True)


def _notes(row: Planned) -> Iterator[str]:
    if row.is_at_ceiling:
        yield "at the ceiling"
    if row.is_noise:
        yield "pure noise"
    if row.pooled > 1:
        yield f"pool of {row.pooled:.3g}"
    if row.most is not None and row.to_see is not None and row.to_see > row.most:
        yield f"has {row.most:,} samples"


def _count(samples: int | None) -> str:
    return "–" if samples is None else f"{samples:,}"
