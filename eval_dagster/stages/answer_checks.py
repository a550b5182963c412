"""Looks at the stored answers and scores of an eval for signs that its score measures something else. It asks no model.

Each threshold is such that chance or a usual benchmark does not reach it. A check that cannot tell says so.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import scipy  # whose parts load when first used

from eval_dagster.lake.tables.columns import MetricRow, ScoreRow
from eval_dagster.prompts.lint import SHOWN_SAMPLES
from eval_dagster.records import Check, Finding, Status
from eval_dagster.stages.answer_figures import CheckedAnswer, ServerState, base_name
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
    scores: Sequence[ScoreRow],
    answers: Sequence[CheckedAnswer],
    earlier: Earlier | None,
    states: Sequence[ServerState] = (),
) -> list[Finding]:
    """Check the answers and scores of an eval and a model.

    Args:
        task: The task of the eval.
        rows: Its metrics, with the columns about answers.
        scores: Its scores.
        answers: Its answers, as `checked_answers` returns them.
        earlier: What the answers are compared with; None if there is no earlier result of the same samples.
        states: The states of the model's server, as `server_states` returns them.

    Returns:
        One finding a check, in the order of `Check`; none for a check that does not apply, such as a check of texts without texts.
    """
    row = next((each for each in rows if each["is_headline"]), None)
    values = {each["sample_id"]: each["value"] for each in scores if row and each["metric"] == row["metric"]}
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
    values: Mapping[str, float | None]
    """Values of the headline by sample."""
    scores: Sequence[ScoreRow]
    answers: Sequence[CheckedAnswer]
    earlier: Earlier | None
    states: Sequence[ServerState]


def _of_texts(
    look: _Look, check: Check, share: Callable[[CheckedAnswer], float | None], *, seen: str, effect: str, advice: str
) -> Finding | None:
    """A finding about single texts, if there are any."""
    expected = [each for each in look.answers if each.expects_text]
    known = [(each, part) for each in expected if (part := share(each)) is not None]
    if not expected:
        return None
    if not known:
        return _unchecked(check, f"none of the {len(expected)} requests has an answer")
    concerned = [each for each, part in known if part]
    if not concerned or sum(part for _, part in known) < _MANY * len(known):
        return _clean(check, len(known), len(concerned))
    return _found(check, concerned, len(known), seen=f"in {len(concerned)} of {len(known)} samples, {seen}", effect=effect, advice=advice)


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
        lambda each: each.cut_off,
        seen="the answer was cut off at the limit of tokens",
        effect=effect,
        advice="raise max_tokens, or add the stop sequence that ends an answer; compare value_completed",
    )


_WRONG = "they count as wrong, whatever the model knows"


def _of(
    fault: Literal["empty", "refused", "repeated"], check: Check, *, seen: str, effect: str, advice: str
) -> Callable[[_Look], Finding | None]:
    """The check of a fault of single texts."""
    return lambda look: _of_texts(look, check, lambda each: getattr(each, fault), seen=seen, effect=effect, advice=advice)


def _shortened(look: _Look) -> Finding | None:
    concerned, total = [each for each in look.answers if each.is_shortened], len(look.answers)
    if len(concerned) < _FEW * total or not concerned:
        return _clean(Check.SHORTENED_PROMPTS, total, len(concerned))
    return _found(
        Check.SHORTENED_PROMPTS,
        concerned,
        total,
        seen=f"{len(concerned)} of {total} prompts were too long for the model, and were cut on the left",
        effect="the model does not see the first examples or the beginning of the question",
        advice="lower num_fewshot or max_tokens, or raise max_length if the model takes more",
    )


def _errors(look: _Look) -> Finding | None:
    named = {row["sample_id"] for row in look.scores if row["error"] is not None}
    concerned, total = [each for each in look.answers if each.has_error or each.sample_id in named], len(look.answers)
    if len(concerned) < _FEW * total or not concerned:
        return _clean(Check.ERRORS, total, len(concerned))
    return _found(
        Check.ERRORS,
        concerned,
        total,
        seen=f"{len(concerned)} of {total} samples have an error instead of a score",
        effect="the score is that of the others alone",
        advice="see their messages: eval-dagster sql errors",
    )


def _endpoint_changed(look: _Look) -> Finding | None:
    """Whether the answers name several models or states of the server, or are of another state than the last look at it found."""
    served, seen, concerned = [each for each in look.answers if each.is_served], list[str](), set[str]()
    if not served:
        return None
    for column, what in (("served_model", "models"), ("server_fingerprint", "states of the server")):
        named = Counter(name for each in served if (name := getattr(each, column)) is not None)
        if len(named) > 1:
            (most, count), *_others = named.most_common()
            concerned |= {each.sample_id for each in served if getattr(each, column) not in (None, most)}
            seen.append(f"the answers name {len(named)} {what} (`{column}`), {most} in {count} of {len(served)} samples")
    changes = [each for each in look.states if each.since is not None]
    if changes:
        last = changes[-1]
        state_of = {
            each.sample_id: [state for state in look.states if state.since is None or state.since <= each.answered_at][-1]
            for each in served
            if each.answered_at is not None
        }
        older = {sample for sample, state in state_of.items() if state.name != last.name}
        concerned |= older
        if older:
            when = f"{last.since:%Y-%m-%d %H:%M} UTC"
            seen.append(f"{len(older)} of {len(served)} answers are older than the look of {when}, which found that the server had changed")
        elif not seen and len(state_of) < len(served):
            return _unchecked(Check.ENDPOINT_CHANGED, f"the server changed, and {len(served) - len(state_of)} answers have no time")
    if not seen and not look.states and any(each.server_fingerprint is None and not each.has_error for each in served):
        return _unchecked(Check.ENDPOINT_CHANGED, "the server does not name its state (`server_fingerprint`), and there was no look at it")
    if not seen:
        return _clean(Check.ENDPOINT_CHANGED, len(served), 0)
    is_mixed = len(concerned) < len(served)
    return _found(
        Check.ENDPOINT_CHANGED,
        [each for each in served if each.sample_id in concerned],
        len(served),
        seen="; ".join(seen),
        effect="the score mixes answers of several models" if is_mixed else "the score is of a model that the server has no more",
        advice="set `pin` in evals.yaml, or change it, so that all is asked anew; `endpoint_states` has the looks",
    )


def _no_answer(look: _Look) -> Finding | None:
    if not any(each.expects_text for each in look.answers):
        return None
    names = list(dict.fromkeys(name for each in look.answers for name in each.unparsed))
    if not names and any(each.cut_off is not None for each in look.answers):
        shown = look.row["metric"] if look.row else "the metric"
        return _unchecked(Check.NO_ANSWER_FOUND, f"{shown} does not say what the answer in a text is")
    shown = look.row["metric"] if look.row and look.row["metric"] in names else next(iter(names), "")
    return _of_texts(
        look,
        Check.NO_ANSWER_FOUND,
        lambda each: each.unparsed.get(shown),
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
        concerned = [
            each for each in look.answers if (each.unparsed.get(base_name(row["metric"])) if name == "unparsed" else getattr(each, name))
        ]
        return _found(
            Check.FORMAT_CHANGED,
            concerned,
            n,
            seen=f"{now} of {n} answers are {what}; of {earlier.when}, {before} of {before_n} were",
            effect="a difference from that result is one of the form of the answers, and may be none of what the model knows",
            advice="compare the settings of the generation, the chat template and the engine of both results",
        )
    return _clean(Check.FORMAT_CHANGED, n, 0)


def _one_answer(look: _Look) -> Finding | None:
    placed = [each for each in look.answers if each.chosen is not None and each.gold]
    texts = [each for each in look.answers if each.answer is not None and look.values.get(each.sample_id) is not None]
    if not placed and not texts:
        return None
    known = placed or texts
    given = Counter(each.chosen if placed else each.answer for each in known)
    answer, count = given.most_common(1)[0]
    concerned = [each for each in known if answer == (each.chosen if placed else each.answer)]
    if len(known) < _LEAST_SAMPLES:
        return _unchecked(Check.ONE_ANSWER, f"{len(known)} samples are too few to tell a fault from chance")
    if placed:
        right = sum(answer in each.gold for each in placed)
    else:  # the correct answer of the others is not known, and may be this one
        right = sum((look.values[each.sample_id] or 0) > 0 for each in concerned) + len(known) - count
    if count < _NEARLY * len(known) or scipy.special.bdtrc(count - 1, len(known), right / len(known)) > _CHANCE:
        return _clean(Check.ONE_ANSWER, len(known), 0)
    what = f"chooses choice {cast(int, answer) + 1}" if placed else f"answers {str(answer)[:40]!r}"
    often = f"correct in {right}" if placed else f"correct in at most {right}"
    return _found(
        Check.ONE_ANSWER,
        concerned,
        len(known),
        seen=f"the model {what} in {count} of {len(known)} samples, which is {often}",
        effect="the score is the frequency of this answer among the correct ones, and not what the model knows",
        advice="look at the prompt format and the end of the prompt; a model that is too small for letters may rank the choices' texts",
    )


def _position_bias(look: _Look) -> Finding | None:
    """Whether a position is preferred. Of several prompts about a row, the first one counts, since their answers are alike."""
    answers = list({each.source_id: each for each in reversed(look.answers)}.values())[::-1]
    placed = [(each, each.chosen, each.gold[0]) for each in answers if each.chosen is not None and len(each.gold) == 1]
    counts = Counter(each.n_choices for each, _, _ in placed)
    if placed:
        positions = counts.most_common(1)[0][0]
        placed = [each for each in placed if each[0].n_choices == positions]
    else:
        lettered = [(each, gold) for each in answers if each.expects_text and (gold := each.gold_letter) is not None]
        if not lettered or len(lettered) < sum(each.expects_text for each in answers):
            return None
        positions = max(gold for _, gold in lettered) + 1
        placed = [(each, each.letter, gold) for each, gold in lettered if each.letter is not None and each.letter < positions]
    one_answer = _one_answer(look)
    if positions < 2 or (one_answer is not None and one_answer.status is Status.FOUND):
        return None  # that says it
    if not placed:
        return _unchecked(Check.POSITION_BIAS, "no answer is at a known position")
    bias = position_bias([chosen for _, chosen, _ in placed], [gold for _, _, gold in placed], positions)
    if bias.least_expected < _LEAST_EXPECTED:
        return _unchecked(Check.POSITION_BIAS, f"{len(placed)} samples are too few to tell a preference for a position from chance")
    if bias.moved < _MOVED or bias.p_value > _CHANCE:
        return _clean(Check.POSITION_BIAS, len(placed), 0)
    concerned = [each for each, chosen, gold in placed if chosen == bias.position != gold]
    return _found(
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
    asked = [each for each in look.answers if each.n_choices > 1 and each.gold and look.values.get(each.sample_id) is not None]
    if row is None or row["value"] is None or not asked or row["subject"] is not None or not row["higher_is_better"]:
        return None
    accuracies = {1 / ties for ties in range(1, max(each.n_choices for each in asked) + 1)}
    if not {value for value in look.values.values() if value} <= accuracies:
        return None  # it does not count correct choices
    chance = sum(len(each.gold) / each.n_choices for each in asked) / len(asked)
    low, high = row["ci_low"], row["ci_high"]
    if low is None or high is None or (low <= chance <= high and high - low > _WIDEST):
        return _unchecked(Check.AT_CHANCE, f"{len(asked)} samples are too few to tell the score from {number(chance)}, that of guessing")
    if low > chance:
        return _clean(Check.AT_CHANCE, len(asked), 0)
    worse = "below that of guessing" if high < chance else "which guessing would give too"
    return _found(
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
    if row["n"] < _LEAST_SAMPLES:
        return _unchecked(Check.AT_CEILING, f"{row['n']} samples are too few to tell the best score from chance")
    return _found(
        Check.AT_CEILING,
        [each for each in look.answers if look.values.get(each.sample_id) is not None] or look.answers,
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


def _found(
    check: Check,
    concerned: Sequence[CheckedAnswer],
    total: int,
    *,
    seen: str,
    effect: str,
    advice: str,
    status: Status = Status.FOUND,
) -> Finding:
    return Finding(
        check=check,
        status=status,
        n=len(concerned),
        n_of=total,
        sample_id=concerned[0].sample_id if concerned else None,
        sample_name=concerned[0].sample_name if concerned else None,
        sample_ids=[each.sample_id for each in concerned[:SHOWN_SAMPLES]],
        seen=seen,
        effect=effect,
        advice=advice,
    )


def _clean(check: Check, total: int, n: int) -> Finding:
    return Finding(check=check, status=Status.CLEAN, seen="", n=n, n_of=total)


def _unchecked(check: Check, reason: str) -> Finding:
    return Finding(check=check, status=Status.NOT_CHECKED, seen=reason)
