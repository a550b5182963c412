"""Whether a score can be trusted: what the checks of its prompts, answers and scores found, and its answers in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from eval_dagster.lake.files import Lake
from eval_dagster.records import OUTPUT_CHECKS, PROMPT_CHECKS, Finding, Status
from eval_dagster.results.materializations import MaterializationName
from eval_dagster.stages.findings import read_findings
from eval_dagster.texts.figures import number

_SHOWN = 0.01
"""Part of the samples from which on a count of answers is shown in words."""


class About(StrEnum):
    """The subject of a check."""

    PROMPTS = "prompts"
    """Rows and prompts."""
    OUTPUTS = "outputs"
    """Answers: cut off, empty, refusals, loops, shortened prompts, errors."""
    SCORES = "scores"
    """The metrics' reading of the answers."""


class Trust(StrEnum):
    """Whether the checks of a group let a score be trusted."""

    PASSED = "passed"
    """Something was checked, and no check found a sign that the score measures something else. There may be notes."""
    WARN = "warn"
    """A check found such a sign."""
    CANNOT_TELL = "cannot tell"
    """Nothing could be checked, or this release has not looked at the result."""


@dataclass(frozen=True, kw_only=True)
class GroupFindings:
    """The findings of a cell, an eval and a model, about one thing."""

    about: About
    findings: Sequence[Finding]

    @property
    def trust(self) -> Trust:
        """A finding with the status `found` is a warning. A note is none: it is true of sound benchmarks and models too."""
        statuses = {each.status for each in self.findings}
        if Status.FOUND in statuses:
            return Trust.WARN
        return Trust.PASSED if statuses & {Status.CLEAN, Status.NOTE} else Trust.CANNOT_TELL

    def with_status(self, status: Status) -> list[Finding]:
        """The findings that ended so."""
        return [each for each in self.findings if each.status is status]


def cell_findings(lake: Lake, eval_name: str, model: str) -> dict[About, GroupFindings] | None:
    """The findings of the current result of an eval and a model, in groups. None without a result.

    Raises:
        LakeError: The result is damaged.
    """
    point = MaterializationName(model=model).find(lake, eval_name)
    if point is None:
        return None
    column = next((row.get("findings") for row in point.metric_rows if row["is_headline"]), None)
    groups: dict[About, list[Finding]] = {about: [] for about in About}
    for each in [] if column is None else read_findings(column):
        groups[about(each.check)].append(each)
    return {about: GroupFindings(about=about, findings=findings) for about, findings in groups.items()}


def about(check: str) -> About:
    """The subject of a check, by its name."""
    if check in PROMPT_CHECKS:
        return About.PROMPTS
    return About.OUTPUTS if check in OUTPUT_CHECKS else About.SCORES


class AnswerFigures(TypedDict):
    """The columns of `metrics` and `leaderboard` that tell how a model answered. All but `n` and `n_errors` may be null."""

    n: int
    n_errors: int
    n_cut_off: int | None
    n_empty: int | None
    n_unparsed: int | None
    n_refused: int | None
    n_repeated: int | None
    n_shortened: int | None
    n_completed: int | None
    value_completed: float | None
    value_lowest: float | None
    value_highest: float | None
    n_not_asked: int | None
    estimate: str | None
    estimate_factor: float | None


_COUNTS: Mapping[str, str] = {
    "n_empty": "empty",
    "n_unparsed": "no answer found",
    "n_refused": "refused",
    "n_repeated": "in a loop",
    "n_shortened": "prompt shortened",
}


_HOW: Mapping[str | None, str] = {None: "stopped early", "history": "estimated by history", "plain": "estimated from an even draw"}


def answer_words(row: AnswerFigures) -> str:
    """How a model answered, if there is something to tell: the score without cut-off answers and its bounds, and parts of the samples.

    Parts below 1 % are left out. For instance `0.956 of 63 % that completed · between 0.600 and 0.970 · 10 % empty`.
    """
    total, words = row["n"] + row["n_errors"], list[str]()
    if row["n_not_asked"]:
        how = _HOW[row["estimate"]]
        worth = "" if row["estimate_factor"] is None else f", each worth {row['estimate_factor']:.2f}"
        words.append(f"{how}: {total:,} of {total + row['n_not_asked']:,} samples asked{worth}")
    if row["n_cut_off"] and row["n_cut_off"] >= _SHOWN * total:
        known = f"{number(row['value_completed'])} of " if row["value_completed"] is not None else ""
        words.append(f"{known}{_percent(total - row['n_cut_off'], total)} that completed")
        if row["value_lowest"] is not None and row["value_highest"] is not None:
            words.append(f"between {number(row['value_lowest'])} and {number(row['value_highest'])}")
    for column, what in _COUNTS.items():
        count = row[column]  # type: ignore[literal-required]
        if count and count >= _SHOWN * total:
            words.append(f"{_percent(count, total)} {what}")
    return " · ".join(words)


def part_words(asked: int, left: int, estimate_note: str | None = None) -> str:
    """How many samples of a result were asked if a night stopped early or it is an estimate, and what its figures leave out."""
    if estimate_note is not None:
        return f"an estimate: {estimate_note}"
    return (
        f"stopped early: {asked:,} of {asked + left:,} samples asked. The answers decided when to stop, which intervals and tests "
        "outside the gate do not know; a run without --suite asks the others"
    )


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %"
