"""Looks at the prompts of an eval for signs that its score measures something else than its name says. It needs no model.

The checks read the stored prompts alone, whatever way the task is written in. Each threshold is such that chance or a usual benchmark does
not reach it; a check that has too few samples, or cannot see what it needs, says so.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from os.path import commonprefix
from statistics import median

import scipy  # whose parts load when first used

from eval_dagster.prompts.checks import absent_gold
from eval_dagster.prompts.parts import Asked, Place, asked_prompts, folded, places_of, shown_place, stands_at, stands_in
from eval_dagster.prompts.row_sample import RowSample
from eval_dagster.records import Check, Finding, ResponseType, Status
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.versions.hashes import stable_hash

LINT_VERSION = 3
"""Version of the checks. Raise it if a finding may change; stored prompts are then looked at again."""
_CHANCE = 1e-3
"""The most probable chance by which a check may find something."""
_NEARLY = 0.95
"""Part of the samples that is nearly all of them."""
_FEW = 0.01
"""Part of the samples from which on a fault of single rows is a finding."""
_MANY = 0.2
"""Part of the samples whose examples must tell the answer."""
_UNEQUAL = 1.5
"""The correct choice has so many times the characters of the others, or they of it."""
_BY_LENGTH = 0.8
"""Part of the samples for which the longest, or the shortest, choice is the correct one."""
_SAME_PLACE = 0.9
"""Part of the samples whose answer stands at the same place."""
_MOST_PLACES = 5
"""Places of answers that are looked at, the most frequent first."""
_FEW_ANSWERS = 0.25
"""Different correct answers for each sample: up to so many, they are classes."""
_SHORTEST = 3
"""Characters of a question. Shorter ones are found in others by chance."""
_LEAST_SAMPLES = 8
SHOWN_SAMPLES = 5
"""Samples that a finding names."""
_OTHERS = 5
"""Answers of other samples that are looked for in the place of the own one."""


def lint(prompts: Iterable[RenderedPrompt], *, num_fewshot: int, compares_texts: bool = False) -> list[Finding]:
    """Check the prompts of an eval for one model, as `lint_rows` does, all or an even sample of them."""
    rows = RowSample(num_fewshot=num_fewshot)
    for prompt in prompts:
        rows.add(prompt)
    return lint_rows(rows, compares_texts=compares_texts)


def lint_rows(rows: RowSample, *, compares_texts: bool = False) -> list[Finding]:
    """Check the prompts of some rows of an eval, or of all, for one model.

    Args:
        rows: The rows.
        compares_texts: Whether a metric of the task takes a choice for correct by its text (`BaseMetric.COMPARES_TEXTS`).

    Returns:
        One finding a check, in the order of `Check`; none for a check that does not apply, such as the check of choices without choices.
    """
    asked = asked_prompts([prompt for prompt in rows.prompts() if prompt.error is None], rows.num_fewshot)
    found = []
    for name, check in _CHECKS.items():
        try:
            found.append(check(asked, compares_texts))
        except Exception as error:  # a check that fails costs no eval, and is no clean one
            found.append(_unchecked(name, f"the check raised {type(error).__name__}: {error}"))
    part = "" if rows.is_whole else f"of {rows.n_kept:,} of {rows.n_rows:,} rows"
    return [
        replace(each, seen=", ".join(filter(None, [each.seen, part]))) if part and each.status is not Status.NOT_CHECKED else each
        for each in found
        if each is not None
    ]


# ---- the checks


def _gold_is_no_choice(asked: Sequence[Asked], compares_texts: bool) -> Finding | None:
    with_gold = [each for each in asked if each.choices and each.prompt.ground_truths]
    if not with_gold:
        return None
    lacking = [
        each
        for each in with_gold
        if absent_gold(each.prompt.ground_truths, each.choices) and (compares_texts or not each.prompt.gold_indices)
    ]
    if not lacking:
        return _clean(Check.GOLD_IS_NO_CHOICE, with_gold)
    hint = absent_gold(lacking[0].prompt.ground_truths, lacking[0].choices) or ""
    seen, _, advice = hint.replace("; did you mean", ";did you mean").partition(";")
    return _found(
        Check.GOLD_IS_NO_CHOICE,
        lacking,
        with_gold,
        seen=f"in {_of(lacking, with_gold)} samples, {seen}" if len(lacking) > 1 else seen,
        effect="a metric that compares texts scores them as wrong, whatever the model answers",
        advice=advice.strip(),
    )


def _examples_tell_gold(asked: Sequence[Asked], _: bool) -> Finding | None:
    if not any(each.shots for each in asked):
        return None
    known = [each for each in asked if each.shots and each.gold and each.prompt.response_type is not ResponseType.PERPLEXITY]
    apart = [each for each in known if each.examples]
    if len(apart) < len(known) or not known:
        return _unchecked(Check.EXAMPLES_TELL_GOLD, _why_not(asked, known))
    golds = Counter(gold for each in known for gold in each.gold)
    by_subject: dict[str, list[Asked]] = defaultdict(list)
    for each in known:
        by_subject[each.prompt.subject].append(each)
    if len(golds) == 1:
        return _unchecked(Check.EXAMPLES_TELL_GOLD, f"all {len(known)} samples have the same gold answer")
    telling, log_chance = [], 0.0
    for of_subject in by_subject.values():
        repeated = [
            any(all(target == gold if target else shown.endswith(gold) for shown, target in each.examples) for gold in each.gold)
            for each in of_subject
        ]
        if all(repeated):
            telling.append(of_subject)
            log_chance += sum(math.log(max(golds[gold] for gold in each.gold) / len(known)) for each in of_subject)
    # Any of the sets of so many subjects might have been the one.
    log_chance += math.log(math.comb(len(by_subject), len(telling)))
    told = [each for of_subject in telling for each in of_subject]
    if len(told) < _MANY * len(known) or log_chance > math.log(_CHANCE):
        return _clean(Check.EXAMPLES_TELL_GOLD, known)
    subjects = f"{len(telling)} of {len(by_subject)} subjects" if len(by_subject) > 1 else "the only subject"
    return _found(
        Check.EXAMPLES_TELL_GOLD,
        told,
        known,
        seen=f"all examples of {subjects} have one answer, which is the gold answer of all their samples ({_of(told, known)} samples)",
        effect="a model that repeats the examples' answer scores as if it knew",
        advice="let the subject be something else than the class, or draw the examples from all subjects; num_fewshot: 0 shows the score "
        "without them",
    )


def _example_is_question(asked: Sequence[Asked], _: bool) -> Finding | None:
    if not any(each.shots for each in asked):
        return None
    apart = [each for each in asked if each.examples and not each.prompt.request.images]
    if not apart or len(apart) < sum(each.shots > 0 for each in asked):
        return _unchecked(Check.EXAMPLE_IS_QUESTION, _why_not(asked, asked))
    same: list[Asked] = []
    for each in apart:
        question = folded(each.parts.question) if each.parts else ""
        # The first example may stand after an introduction.
        if len(question) >= _SHORTEST and any(
            shown == question or shown.endswith(f" {question}") or (not target and shown.startswith(f"{question} "))
            for shown, target in each.examples
        ):
            same.append(each)
    if len(same) < _FEW * len(apart) or not same:
        return _clean(Check.EXAMPLE_IS_QUESTION, apart)
    return _found(
        Check.EXAMPLE_IS_QUESTION,
        same,
        apart,
        seen=f"in {_of(same, apart)} samples, an example is the question itself, but for white space and case",
        effect="the model reads the answer before it is asked",
        advice="remove the rows from the examples' split, or let is_example refuse them",
    )


def _answer_in_prompt(asked: Sequence[Asked], _: bool) -> Finding | None:
    known = [each for each in asked if each.gold and each.prompt.response_type is not ResponseType.PERPLEXITY]
    if not known:
        return None
    if any(each.question is None for each in known):
        return _unchecked(Check.ANSWER_IN_PROMPT, _why_not(asked, known))
    if len(known) < _LEAST_SAMPLES:
        return _too_few(Check.ANSWER_IN_PROMPT, known)
    places: dict[Place, list[Asked]] = defaultdict(list)
    for each in known:
        for place in {place for gold in each.gold for place in places_of(each.question or "", gold)}:
            places[place].append(each)
    ranked = sorted(places.items(), key=lambda found: (-len(found[1]), not all(found[0]), found[0][1], found[0][0]))
    for place, telling in ranked[:_MOST_PLACES]:
        if _tells(telling, known, partial(stands_at, place)):
            return _answer_found(telling, known, shown_place(*place))
    # Wherever it stands: of the few answers that the eval has, or that a question has, only the correct one.
    golds = Counter(gold for each in known for gold in each.gold)
    has_labels = bool(known[0].choices) and len({each.prompt.request.choices for each in known}) == 1
    if has_labels or len(golds) <= _FEW_ANSWERS * len(known):
        telling = [each for each in known if any(stands_in(each.question or "", gold) for gold in each.gold)]
        if _tells(telling, known, stands_in):
            return _answer_found(telling, known, "and the wrong ones do not")
    return _clean(Check.ANSWER_IN_PROMPT, known)


def _tells(telling: Sequence[Asked], known: Sequence[Asked], stands: Callable[[str, str], bool]) -> bool:
    """Whether nearly all questions have their correct answer at a place, several answers do, and nearly no question a wrong one."""
    golds = Counter(gold for each in telling for gold in each.gold)
    if not telling or len(telling) < _SAME_PLACE * len(known) or golds.most_common(1)[0][1] > _SAME_PLACE * len(telling):
        return False
    misled = 0
    for each in telling:
        if len(each.choices) > 1:
            others = [choice for choice in map(folded, each.choices) if choice not in each.gold]
        else:  # the answers of other samples
            others = list(islice((gold for gold in golds if gold not in each.gold), _OTHERS))
        misled += any(stands(each.question or "", wrong) for wrong in others)
    return misled <= (1 - _SAME_PLACE) * len(telling)


def _answer_found(telling: Sequence[Asked], known: Sequence[Asked], where: str) -> Finding:
    return _found(
        Check.ANSWER_IN_PROMPT,
        telling,
        known,
        seen=f"in {_of(telling, known)} samples, the gold answer stands in the question, {where}",
        effect="a model that copies it scores as if it knew",
        advice="leave the field with the answer out of the prompt; if copying is what the benchmark asks for, nothing is wrong",
    )


def _gold_position(asked: Sequence[Asked], _: bool) -> Finding | None:
    several = [each for each in asked if len(each.choices) > 1]
    if not several:
        return None
    placed = [each for each in several if each.position is not None]
    if not placed:
        several_golds = any(len(each.prompt.gold_indices) > 1 for each in several)
        return None if several_golds else _unchecked(Check.GOLD_POSITION, "the prompts do not tell which choice is correct")
    share = max(1 / len(each.choices) for each in placed)
    if share ** (len(placed) - 1) > _CHANCE:
        return _too_few(Check.GOLD_POSITION, placed)
    (position, count), *_others = Counter(each.position for each in placed).most_common()
    if count < _NEARLY * len(placed) or scipy.special.bdtrc(count - 1, len(placed), share) / share > _CHANCE:
        return _clean(Check.GOLD_POSITION, placed)
    there = [each for each in placed if each.position == position]
    return _found(
        Check.GOLD_POSITION,
        there,
        placed,
        seen=f"the gold answer is choice {(position or 0) + 1} in {_of(there, placed)} samples",
        effect="a model that prefers this position, and a metric that takes the first of equal choices, score as if they knew",
        advice="shuffle the choices by a hash of the row, or name the position by a field of the row",
    )


def _length_tells_gold(asked: Sequence[Asked], _: bool) -> Finding | None:
    placed = [each for each in asked if each.position is not None]
    # Choices that are the same in all samples are labels.
    if not placed or len({frozenset(map(folded, each.choices)) for each in placed}) == 1:
        return None
    share = max(1 / len(each.choices) for each in placed)
    if share ** len(placed) > _CHANCE:
        return _too_few(Check.LENGTH_TELLS_GOLD, placed)
    for word, direction in (("longest", 1), ("shortest", -1)):
        telling = [each for each in placed if all(direction * ratio > 0 for ratio in _log_ratios(each))]
        ratio = median([direction * median(_log_ratios(each)) for each in telling]) if telling else 0.0
        chance = scipy.special.bdtrc(len(telling) - 1, len(placed), share)
        if len(telling) >= _BY_LENGTH * len(placed) and ratio >= math.log(_UNEQUAL) and chance <= _CHANCE:
            favour = "lower" if direction > 0 else "raise"
            return _found(
                Check.LENGTH_TELLS_GOLD,
                telling,
                placed,
                seen=f"the gold answer is the {word} choice in {_of(telling, placed)} samples, as a rule {math.exp(ratio):.1f} times "
                f"as {'long' if direction > 0 else 'short'} as the others",
                effect=f"its length alone tells it, and log-probabilities that are not divided by the length {favour} the score",
                advice="make wrong answers of the same length, and read the metric by characters or tokens beside the accuracy",
            )
    return _clean(Check.LENGTH_TELLS_GOLD, placed)


def _log_ratios(each: Asked) -> list[float]:
    """For each wrong choice, the logarithm of the correct one's length divided by its length."""
    lengths = [max(len(choice.strip()), 1) for choice in each.choices]
    gold = lengths[each.position or 0]
    return [math.log(gold / length) for index, length in enumerate(lengths) if index != each.position]


def _equal_choices(asked: Sequence[Asked], _: bool) -> Finding | None:
    several = [each for each in asked if len(each.choices) > 1]
    if not several:
        return None
    equal = [each for each in several if len({choice.strip() for choice in each.choices}) < len(each.choices)]
    if not equal or len(equal) < _FEW * len(several):
        return _clean(Check.EQUAL_CHOICES, several)
    return _found(
        Check.EQUAL_CHOICES,
        equal,
        several,
        seen=f"in {_of(equal, several)} samples, two choices are the same text",
        effect="the model cannot tell them apart, so that one of them is right by chance",
        advice="remove the second one, or these rows",
    )


def _blank_texts(asked: Sequence[Asked], _: bool) -> Finding | None:
    told = [each for each in asked if each.prompt.ground_truths and each.prompt.response_type is not ResponseType.PERPLEXITY]
    unanswered = [each for each in told if not any(truth.strip() for truth in each.prompt.ground_truths)]
    # A list with an empty text is how tasks write a question without an answer, if they have many.
    if any(not each.prompt.truth_is_list for each in unanswered) or 0 < len(unanswered) <= _MANY * len(told):
        return _found(
            Check.BLANK_TEXTS,
            unanswered,
            told,
            seen=f"in {_of(unanswered, told)} samples, the gold answer is an empty text",
            effect="a model that answers is wrong there, and one that says nothing is right",
            advice="fill in the field of the row, or leave the row out; if such questions have no answer, nothing is wrong",
        )
    label, unasked = _empty_lines(asked)
    if not unasked or len(unasked) > _MANY * len(asked):
        return _clean(Check.BLANK_TEXTS, asked)
    return _found(
        Check.BLANK_TEXTS,
        unasked,
        asked,
        seen=f"in {_of(unasked, asked)} samples, nothing stands after {label!r} in the question"
        if label
        else f"in {_of(unasked, asked)} samples, the question is an empty text",
        effect="the model is not asked what the others are",
        advice="fill in the field of the row, or leave the row out",
    )


def _empty_lines(asked: Sequence[Asked]) -> tuple[str, list[Asked]]:
    """The label that all questions have in a line, and those that have nothing else there. Questions of images need no text."""
    known = [each for each in asked if each.parts and not each.prompt.request.images]
    lines = [[folded(line) for line in each.parts.question.strip("\n").split("\n")] for each in known if each.parts]
    if len({len(each) for each in lines}) != 1:
        lines = [[each[0]] for each in lines]  # the first line alone is the same part of all
    for of_line in zip(*lines, strict=True):
        label = re.sub(r"\w*$", "", commonprefix(of_line)).strip()  # noqa: RUF071 - characters
        empty = [each for each, line in zip(known, of_line, strict=True) if line == label and (label or not folded(each.question or ""))]
        if 0 < len(empty) < len(known):
            return label, empty
    return "", []


def _duplicates(asked: Sequence[Asked], _: bool) -> Finding | None:
    rows = _rows(asked)
    if rows is None:
        return _unchecked(Check.DUPLICATES, _why_not(asked, asked))
    by_gold: dict[tuple[str, frozenset[tuple[int, str]]], list[_Row]] = defaultdict(list)
    for row in rows:
        by_gold[row.key, row.gold].append(row)
    same = [row.first for group in by_gold.values() for row in group[1:]]
    total = [row.first for row in rows]
    if not same or len(same) < _FEW * len(total):
        return _clean(Check.DUPLICATES, total)
    return _found(
        Check.DUPLICATES,
        same,
        total,
        seen=f"{_of(same, total)} rows ask what an earlier one asks, with the same choices and gold answer",
        effect="they count several times, and the interval is narrower than the rows allow",
        advice="remove the repeated rows, or set CLUSTER_FIELD to a field that they share",
    )


def _contradictions(asked: Sequence[Asked], _: bool) -> Finding | None:
    if not any(each.gold for each in asked):
        return None
    rows = _rows(asked)
    if rows is None:
        return _unchecked(Check.CONTRADICTIONS, _why_not(asked, asked))
    golds: dict[str, set[frozenset[tuple[int, str]]]] = defaultdict(set)
    for row in rows:
        if row.gold:
            golds[row.key].add(row.gold)
    torn = {key for key, several in golds.items() if any(not (one & other) for one in several for other in several)}
    found, total = [row.first for row in rows if row.key in torn], [row.first for row in rows]
    if not found or len(found) < _FEW * len(total):
        return _clean(Check.CONTRADICTIONS, total)
    return _found(
        Check.CONTRADICTIONS,
        found,
        total,
        seen=f"{_of(found, total)} rows ask what another one asks, with another gold answer",
        effect="no model can be right on all of them",
        advice="correct the rows, or show what tells them apart in the prompt",
    )


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row of the dataset by its prompts."""

    key: str
    """Equal for rows that ask the same."""
    gold: frozenset[tuple[int, str]]
    """The correct answers, each with the number of its prompt."""
    first: Asked


def _rows(asked: Sequence[Asked]) -> list[_Row] | None:
    """The rows; None if a question cannot be told from the examples."""
    by_row: dict[str, list[Asked]] = defaultdict(list)
    for each in asked:
        if each.question is None:
            return None
        by_row[each.prompt.source_id].append(each)
    found = []
    for of_row in by_row.values():
        parts = [
            [each.question, sorted(map(folded, each.choices)), [image.hex() for image in each.prompt.request.images]] for each in of_row
        ]
        gold = frozenset((number, gold) for number, each in enumerate(of_row) for gold in each.gold)
        found.append(_Row(key=stable_hash(parts), gold=gold, first=of_row[0]))
    return found


_CHECKS: Mapping[Check, Callable[[Sequence[Asked], bool], Finding | None]] = {
    Check.GOLD_IS_NO_CHOICE: _gold_is_no_choice,
    Check.EXAMPLES_TELL_GOLD: _examples_tell_gold,
    Check.EXAMPLE_IS_QUESTION: _example_is_question,
    Check.ANSWER_IN_PROMPT: _answer_in_prompt,
    Check.GOLD_POSITION: _gold_position,
    Check.LENGTH_TELLS_GOLD: _length_tells_gold,
    Check.EQUAL_CHOICES: _equal_choices,
    Check.BLANK_TEXTS: _blank_texts,
    Check.DUPLICATES: _duplicates,
    Check.CONTRADICTIONS: _contradictions,
}


# ---- findings


def _found(check: Check, concerned: Sequence[Asked], total: Sequence[Asked], *, seen: str, effect: str, advice: str) -> Finding:
    return Finding(
        check=check,
        status=Status.FOUND,
        n=len(concerned),
        n_of=len(total),
        sample_id=concerned[0].prompt.sample_id,
        sample_name=concerned[0].prompt.sample_name,
        sample_ids=[each.prompt.sample_id for each in concerned[:SHOWN_SAMPLES]],
        seen=seen,
        effect=effect,
        advice=advice,
    )


def _clean(check: Check, total: Sequence[Asked]) -> Finding:
    return Finding(check=check, status=Status.CLEAN, seen="", n=0, n_of=len(total))


def _unchecked(check: Check, reason: str) -> Finding:
    return Finding(check=check, status=Status.NOT_CHECKED, seen=reason)


def _too_few(check: Check, total: Sequence[Asked]) -> Finding:
    return _unchecked(check, f"{len(total)} samples are too few to tell a fault from chance")


def _why_not(asked: Sequence[Asked], known: Sequence[Asked]) -> str:
    """Why examples were not compared."""
    if not known:
        return "the prompts do not tell the gold answer"
    if any(each.prompt.request.images for each in asked):
        return "questions with images are not compared"
    return "the prompt is one text, in which the examples cannot be told from the question"


def _of(concerned: Sequence[Asked], total: Sequence[Asked]) -> str:
    return f"{len(concerned)} of {len(total)}"
