"""Looks at the stored answers and scores of an eval for signs that its score measures something else. It asks no model.

Each threshold is such that chance or a usual benchmark does not reach it. A check that cannot tell says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

import numpy as np
import scipy  # whose parts load when first used
from numpy.typing import NDArray

from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.prompts.lint import SHOWN_SAMPLES
from eval_dagster.records import Check, Finding, Status
from eval_dagster.stages.answer_columns import Answers
from eval_dagster.stages.answer_figures import ServerState
from eval_dagster.stages.score_columns import NONE, Floats, Labels, Places, Scores, base_name, flags
from eval_dagster.statistics.significance import position_bias
from eval_dagster.tasks.base import BaseTask
from eval_dagster.texts.figures import interval, number

ANSWER_CHECKS_VERSION = 2
"""Version of the checks. Raise it if a finding may change; stored answers are then looked at again."""
_MANY = 0.05
"""Part of the answers from which on a fault of single answers is a finding."""
_FEW = 0.01
"""Part of the samples from which on errors and shortened prompts are one."""
_NEARLY = 0.9
"""Part of the answers that is nearly all of them."""
_CHANCE = 1e-3
"""The most probable chance by which a check may find something."""
_LEAST_SAMPLES = 8
_WIDEST = 0.2
"""A 95 % interval of this width or more does not tell a score from guessing."""
_MOVED = 0.15
"""Part of the answers that have to be at another position without a preference for one."""
_LEAST_EXPECTED = 5
"""Answers that have to be expected at each position."""
_AT_CEILING = 0.98
"""Part of the range of the values that is its end."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The counts of the last result with other answers to the same samples."""

    row: MetricRow
    """Its headline."""
    when: str


def answer_findings(
    task: type[BaseTask[Any]],
    rows: Sequence[MetricRow],
    scores: Scores,
    answers: Answers,
    earlier: Earlier | None,
    states: Sequence[ServerState] = (),
) -> list[Finding]:
    """Check the answers and scores of an eval and a model.

    Args:
        task: The task of the eval.
        rows: Its metrics, with the columns about answers.
        scores: Its scores.
        answers: Its answers, as `read_answers` returns them.
        earlier: What the answers are compared with; None if there is no earlier result of the same samples.
        states: The states of the model's server, as `server_states` returns them.

    Returns:
        One finding a check, in the order of `Check`; none for a check that does not apply, such as a check of texts without texts.
    """
    row = next((each for each in rows if each["is_headline"]), None)
    of_samples = np.full(len(scores.samples.texts) + 1, np.nan)  # the last is for an answer without a score
    if row is not None:
        of_headline = scores.metrics.is_text(row["metric"])
        of_samples[scores.samples.codes[of_headline]] = scores.values[of_headline]
    values = of_samples[answers.samples]
    look = _Look(task=task, rows=rows, row=row, values=values, scores=scores, answers=answers, earlier=earlier, states=states)
    found: list[Finding] = []
    for check, of_check in _CHECKS.items():
        try:
            finding = of_check(look)
        except Exception as error:  # a check that fails costs no eval, and is no clean one
            finding = _unchecked(check, f"the check raised {type(error).__name__}: {error}")
        found += [finding] if finding is not None else []
    return found


@dataclass(frozen=True, kw_only=True)
class _Look:
    task: type[BaseTask[Any]]
    rows: Sequence[MetricRow]
    row: MetricRow | None
    """The headline."""
    values: Floats
    """The value of the headline for each answer; NaN without one."""
    scores: Scores
    answers: Answers
    earlier: Earlier | None
    states: Sequence[ServerState]


def _of_texts(look: _Look, check: Check, shares: Floats | None, *, seen: str, effect: str, advice: str) -> Finding | None:
    """A finding about single texts, if there are any. `shares` are the answers' shares of texts with a fault; None if no metric knows."""
    expected = int(look.answers.expects_text.sum())
    if not expected:
        return None
    known = np.flatnonzero(look.answers.expects_text & ~np.isnan(shares)) if shares is not None else np.empty(0, dtype=np.intp)
    if shares is None or not len(known):
        return _unchecked(check, f"none of the {expected} requests has an answer")
    concerned = known[shares[known] > 0]
    if not len(concerned) or sum(shares[known].tolist()) < _MANY * len(known):
        return _clean(check, len(known), len(concerned))
    said = f"in {len(concerned)} of {len(known)} samples, {seen}"
    return _found(look, check, concerned, len(known), seen=said, effect=effect, advice=advice)


def _cut_off(look: _Look) -> Finding | None:
    row, effect = look.row, "the score is that of half answers too, and would be another one with more tokens"
    if row is not None and row["n_cut_off"] and row["value_completed"] is not None:
        ends = interval(row["value_lowest"], row["value_highest"])
        effect = f"the score is {number(row['value'])}; of the {row['n_completed']} samples whose answers ended it is "
        effect += number(row["value_completed"])
        effect += f"; with more tokens it lies in {ends}" if ends else ""
    return _of_texts(
        look,
        Check.CUT_OFF,
        look.answers.cut_off,
        seen="the answer was cut off at the limit of tokens",
        effect=effect,
        advice="raise max_tokens, or add the stop sequence that ends an answer; compare value_completed",
    )


_WRONG = "they count as wrong, whatever the model knows"


def _of(
    fault: Literal["empty", "refused", "repeated"], check: Check, *, seen: str, effect: str, advice: str
) -> Callable[[_Look], Finding | None]:
    """The check of a fault of single texts."""
    return lambda look: _of_texts(look, check, getattr(look.answers, fault), seen=seen, effect=effect, advice=advice)


def _shortened(look: _Look) -> Finding | None:
    concerned, total = np.flatnonzero(look.answers.is_shortened), len(look.answers)
    if len(concerned) < _FEW * total or not len(concerned):
        return _clean(Check.SHORTENED_PROMPTS, total, len(concerned))
    return _found(
        look,
        Check.SHORTENED_PROMPTS,
        concerned,
        total,
        seen=f"{len(concerned)} of {total} prompts were too long for the model, and were cut on the left",
        effect="the model does not see the first examples or the beginning of the question",
        advice="lower num_fewshot or max_tokens, or raise max_length if the model takes more",
    )


def _errors(look: _Look) -> Finding | None:
    has_error = np.zeros(len(look.scores.samples.texts) + 1, dtype=np.bool_)  # the last is for an answer without a score
    has_error[look.scores.samples.codes[look.scores.has_error]] = True
    concerned, total = np.flatnonzero(look.answers.has_error | has_error[look.answers.samples]), len(look.answers)
    if len(concerned) < _FEW * total or not len(concerned):
        return _clean(Check.ERRORS, total, len(concerned))
    return _found(
        look,
        Check.ERRORS,
        concerned,
        total,
        seen=f"{len(concerned)} of {total} samples have an error instead of a score",
        effect="the score is that of the others alone",
        advice="see their messages: eval-dagster sql errors",
    )


def _endpoint_changed(look: _Look) -> Finding | None:
    """Whether the answers name several models or states of the server, or are of another state than the last look at it found."""
    answers, seen = look.answers, list[str]()
    served, concerned = int(answers.is_served.sum()), np.zeros(len(answers), dtype=np.bool_)
    if not served:
        return None
    columns = {"served_model": answers.served_models, "server_fingerprint": answers.server_fingerprints}
    for (column, names), what in zip(columns.items(), ("models", "states of the server"), strict=True):
        labels = Labels.of(names.chunks)
        named = answers.is_served & (labels.codes != NONE)
        counts = np.bincount(labels.codes[named], minlength=1)
        if np.count_nonzero(counts) > 1:
            most = _most_common(labels.codes[named])
            concerned |= named & (labels.codes != most)
            told = f"the answers name {np.count_nonzero(counts)} {what} (`{column}`)"
            seen.append(f"{told}, {labels.text(most)} in {counts[most]} of {served} samples")
    changes = [each for each in look.states if each.since is not None]
    if changes:
        last = changes[-1]
        has_time, state = answers.is_served & (answers.answered_at != NONE), np.zeros(len(answers), dtype=np.intp)
        for number_of, each in enumerate(look.states):
            if each.since is not None:
                state[answers.answered_at >= _microseconds(each.since)] = number_of
        older = has_time & np.array([each.name != last.name for each in look.states])[state]
        concerned |= older
        if older.any():
            when = f"{last.since:%Y-%m-%d %H:%M} UTC"
            seen.append(f"{older.sum()} of {served} answers are older than the look of {when}, which found that the server had changed")
        elif not seen and has_time.sum() < served:
            return _unchecked(Check.ENDPOINT_CHANGED, f"the server changed, and {served - has_time.sum()} answers have no time")
    nameless = answers.is_served & ~flags(answers.server_fingerprints.is_valid()) & ~answers.has_error
    if not seen and not look.states and nameless.any():
        return _unchecked(Check.ENDPOINT_CHANGED, "the server does not name its state (`server_fingerprint`), and there was no look at it")
    if not seen:
        return _clean(Check.ENDPOINT_CHANGED, served, 0)
    is_mixed = concerned.sum() < served
    return _found(
        look,
        Check.ENDPOINT_CHANGED,
        np.flatnonzero(concerned),
        served,
        seen="; ".join(seen),
        effect="the score mixes answers of several models" if is_mixed else "the score is of a model that the server has no more",
        advice="set `pin` in evals.yaml, or change it, so that all is asked anew; `endpoint_states` has the looks",
    )


def _no_answer(look: _Look) -> Finding | None:
    if not look.answers.expects_text.any():
        return None
    names = look.answers.naming_metrics()
    if not names and not np.isnan(look.answers.cut_off).all():
        shown = look.row["metric"] if look.row else "the metric"
        return _unchecked(Check.NO_ANSWER_FOUND, f"{shown} does not say what the answer in a text is")
    shown = look.row["metric"] if look.row and look.row["metric"] in names else next(iter(names), "")
    return _of_texts(
        look,
        Check.NO_ANSWER_FOUND,
        look.answers.unparsed.get(shown),
        seen=f"{shown} finds no answer in a text that is neither empty nor cut off",
        effect=_WRONG,
        advice="read some: the prompt may not ask for the form of the answer, or the metric may not know the form; if the model says that "
        "it does not know, nothing is wrong",
    )


def _format_changed(look: _Look) -> Finding | None:
    row, earlier = look.row, look.earlier
    if row is None or earlier is None or row["n_cut_off"] is None:
        return None
    if earlier.row.get("n_cut_off") is None:
        return _unchecked(Check.FORMAT_CHANGED, f"the answers of {earlier.when} were not looked at")
    before_n, n = (each["n"] + each["n_errors"] for each in (earlier.row, row))
    words = {"n_cut_off": ("cut off", "cut_off"), "n_unparsed": ("without an answer", "unparsed"), "n_empty": ("empty", "empty")}
    for column, (what, name) in words.items():
        now, before = cast("int | None", row.get(column)), cast("int | None", earlier.row.get(column))
        if now is None or before is None or now / n - before / before_n < _MANY:
            continue
        if scipy.stats.fisher_exact([[now, n - now], [before, before_n - before]], alternative="greater").pvalue > _CHANCE:
            continue
        shares = look.answers.unparsed.get(base_name(row["metric"])) if name == "unparsed" else getattr(look.answers, name)
        concerned = np.flatnonzero(shares > 0) if shares is not None else np.empty(0, dtype=np.intp)
        return _found(
            look,
            Check.FORMAT_CHANGED,
            concerned,
            n,
            seen=f"{now} of {n} answers are {what}; of {earlier.when}, {before} of {before_n} were",
            effect="a difference from that result is one of the form of the answers, and may be none of what the model knows",
            advice="compare the settings of the generation, the chat template and the engine of both results",
        )
    return _clean(Check.FORMAT_CHANGED, n, 0)


def _one_answer(look: _Look) -> Finding | None:
    answers, has_value = look.answers, ~np.isnan(look.values)
    placed = np.flatnonzero((answers.chosen != NONE) & (answers.gold.counts > 0))
    known = placed if len(placed) else np.flatnonzero((answers.answers != NONE) & has_value)
    if not len(known):
        return None
    given = (answers.chosen if len(placed) else answers.answers).astype(np.int64)
    answer = _most_common(given[known])
    concerned = known[given[known] == answer]
    count = len(concerned)
    if len(known) < _LEAST_SAMPLES:
        return _unchecked(Check.ONE_ANSWER, f"{len(known)} samples are too few to tell a fault from chance")
    # Without positions, the correct answer of the others is not known, and may be this one.
    may_be_right = answers.gold.have(answer)[placed] if len(placed) else (look.values[known] > 0) | (given[known] != answer)
    right = int(may_be_right.sum())
    if count < _NEARLY * len(known) or scipy.special.bdtrc(count - 1, len(known), right / len(known)) > _CHANCE:
        return _clean(Check.ONE_ANSWER, len(known), 0)
    what = f"chooses choice {answer + 1}" if len(placed) else f"answers {answers.shown[int(concerned[0])].as_py()!r}"
    often = f"correct in {right}" if len(placed) else f"correct in at most {right}"
    return _found(
        look,
        Check.ONE_ANSWER,
        concerned,
        len(known),
        seen=f"the model {what} in {count} of {len(known)} samples, which is {often}",
        effect="the score is the frequency of this answer among the correct ones, and not what the model knows",
        advice="look at the prompt format and the end of the prompt; a model that is too small for letters may rank the choices' texts",
    )


def _position_bias(look: _Look) -> Finding | None:
    """Whether a position is preferred. Of several prompts about a row, the first one counts, since their answers are alike."""
    answers, gold = look.answers, look.answers.gold.first()
    own = _first_of_rows(answers.sources.codes)
    placed = own[(answers.chosen[own] != NONE) & (answers.gold.counts[own] == 1)]
    if len(placed):
        positions, chosen = _most_common(answers.n_choices[placed]), answers.chosen
        placed = placed[answers.n_choices[placed] == positions]
    else:
        asked = own[answers.expects_text[own]]
        lettered = asked[answers.gold_letters[asked] != NONE]
        if not len(lettered) or len(lettered) < len(asked):
            return None
        chosen, gold = answers.letters, answers.gold_letters
        positions = int(gold[lettered].max()) + 1
        placed = lettered[(chosen[lettered] != NONE) & (chosen[lettered] < positions)]
    one_answer = _one_answer(look)
    if positions < 2 or (one_answer is not None and one_answer.status is Status.FOUND):
        return None  # that says it
    if not len(placed):
        return _unchecked(Check.POSITION_BIAS, "no answer is at a known position")
    bias = position_bias(chosen[placed], gold[placed], positions)
    if bias.least_expected < _LEAST_EXPECTED:
        return _unchecked(Check.POSITION_BIAS, f"{len(placed)} samples are too few to tell a preference for a position from chance")
    if bias.moved < _MOVED or bias.p_value > _CHANCE:
        return _clean(Check.POSITION_BIAS, len(placed), 0)
    concerned = placed[(chosen[placed] == bias.position) & (gold[placed] != bias.position)]
    return _found(
        look,
        Check.POSITION_BIAS,
        concerned,
        len(placed),
        seen=f"the model chooses choice {bias.position + 1} in {bias.n} of {len(placed)} samples, {len(concerned)} of them wrong; without "
        f"a preference it would in {bias.expected:.0f} (p = {bias.p_value:.1g})",
        effect="the score depends on the position of the correct answers, and not only on what the model knows",
        advice="ask with several orders of the choices (`variants`), or rank the choices' texts instead of letters; if the choices are "
        "classes such as yes and no, the model prefers one of them",
    )


def _at_chance(look: _Look) -> Finding | None:
    row = next((each for each in look.rows if look.row and each["metric"] == look.row["metric"] and each["aggregation"] == "micro"), None)
    n_choices, counts = look.answers.n_choices, look.answers.gold.counts
    asked = np.flatnonzero((n_choices > 1) & (counts > 0) & ~np.isnan(look.values))
    if row is None or row["value"] is None or not len(asked) or row["subject"] is not None or not row["higher_is_better"]:
        return None
    accuracies = {1 / ties for ties in range(1, int(n_choices[asked].max()) + 1)}
    values = look.scores.values[look.scores.metrics.is_text(row["metric"])]
    if not set(np.unique(values[~np.isnan(values) & (values != 0)]).tolist()) <= accuracies:
        return None  # it does not count correct choices
    chance = sum((counts[asked] / n_choices[asked]).tolist()) / len(asked)
    low, high = row["ci_low"], row["ci_high"]
    if low is None or high is None or (low <= chance <= high and high - low > _WIDEST):
        return _unchecked(Check.AT_CHANCE, f"{len(asked)} samples are too few to tell the score from {number(chance)}, that of guessing")
    if low > chance:
        return _clean(Check.AT_CHANCE, len(asked), 0)
    worse = "below that of guessing" if high < chance else "which guessing would give too"
    return _found(
        look,
        Check.AT_CHANCE,
        asked,
        len(asked),
        status=Status.NOTE,
        seen=f"the score, {number(row['value'])} ({interval(low, high)}), is {worse}: {number(chance)}",
        effect="it does not rank the model, and hides a fault of the gold answers or of the prompt",
        advice="read some samples; a model may not know more, and other models tell whether the benchmark can be answered",
    )


def _at_ceiling(look: _Look) -> Finding | None:
    row = look.row
    if row is None or row["value"] is None or row["bound_low"] is None or row["bound_high"] is None:
        return None
    low, high = row["bound_low"], row["bound_high"]
    if not math.isfinite(high - low) or high <= low:
        return None
    reached = (row["value"] - low if row["higher_is_better"] else high - row["value"]) / (high - low)
    if reached < _AT_CEILING:
        return _clean(Check.AT_CEILING, row["n"], 0)
    known = np.flatnonzero(~np.isnan(look.values))
    if row["n"] < _LEAST_SAMPLES:
        return _unchecked(Check.AT_CEILING, f"{row['n']} samples are too few to tell the best score from chance")
    return _found(
        look,
        Check.AT_CEILING,
        known if len(known) else np.arange(len(look.answers)),
        row["n"],
        status=Status.NOTE,
        seen=f"the score, {number(row['value'])}, is the best that there is, or nearly",
        effect="it tells good models from each other no more, and an answer that the prompt gives away looks like this too",
        advice="read some samples; if they are answered well, take a harder benchmark",
    )


_CHECKS: Mapping[Check, Callable[[_Look], Finding | None]] = {
    Check.CUT_OFF: _cut_off,
    Check.EMPTY_ANSWERS: _of(
        "empty",
        Check.EMPTY_ANSWERS,
        seen="the answer is empty",
        effect=_WRONG,
        advice="look at the end of the prompt and at the stop sequences, one of which may come first; with a chat model, at its template",
    ),
    Check.REFUSALS: _of(
        "refused",
        Check.REFUSALS,
        seen="the model refuses to answer",
        effect=_WRONG,
        advice="read some; if refusing is what the benchmark asks for, nothing is wrong",
    ),
    Check.REPEATED_TEXT: _of(
        "repeated",
        Check.REPEATED_TEXT,
        seen="the text ends in a loop of the same words",
        effect="the text has no answer at its end, and takes all tokens",
        advice="look at the prompt format and the chat template; for a base model, add a stop sequence",
    ),
    Check.SHORTENED_PROMPTS: _shortened,
    Check.ERRORS: _errors,
    Check.ENDPOINT_CHANGED: _endpoint_changed,
    Check.NO_ANSWER_FOUND: _no_answer,
    Check.FORMAT_CHANGED: _format_changed,
    Check.ONE_ANSWER: _one_answer,
    Check.POSITION_BIAS: _position_bias,
    Check.AT_CHANCE: _at_chance,
    Check.AT_CEILING: _at_ceiling,
}


def _most_common(numbers: NDArray[Any]) -> int:
    """The most common number; of several, the one that comes first."""
    distinct, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    most = np.flatnonzero(counts == counts.max())
    return int(distinct[most[first[most].argmin()]])


def _first_of_rows(sources: NDArray[np.int32]) -> Places:
    """The first answer about each row of the dataset, in the order of the last ones."""
    _, first = np.unique(sources, return_index=True)
    _, last = np.unique(sources[::-1], return_index=True)
    return first[np.argsort(-last)]


def _microseconds(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _found(
    look: _Look,
    check: Check,
    concerned: Places,
    total: int,
    *,
    seen: str,
    effect: str,
    advice: str,
    status: Status = Status.FOUND,
) -> Finding:
    samples = [look.answers.sample_ids[place].as_py() for place in concerned[:SHOWN_SAMPLES].tolist()]
    return Finding(
        check=check,
        status=status,
        n=len(concerned),
        n_of=total,
        sample_id=samples[0] if samples else None,
        sample_name=look.answers.sample_names[int(concerned[0])].as_py() if samples else None,
        sample_ids=samples,
        seen=seen,
        effect=effect,
        advice=advice,
    )


def _clean(check: Check, total: int, n: int) -> Finding:
    return Finding(check=check, status=Status.CLEAN, seen="", n=n, n_of=total)


def _unchecked(check: Check, reason: str) -> Finding:
    return Finding(check=check, status=Status.NOT_CHECKED, seen=reason)
