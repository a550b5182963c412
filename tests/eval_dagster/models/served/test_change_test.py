"""The test for a change: its p-value is exact, an unchanged server passes it every night, and another model does not."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from eval_dagster.models.served.canaries import MOST_FIRST_TOKENS, Answer
from eval_dagster.models.served.watch import FLOOR, LEAST_FLOOR, Compared, Epoch, differences, find_change, step_of

TOKENS, WORDS, CANARIES = 12, 8, 20
VOCABULARY, LIKELY = 200, 20
"""Of the first token, and how many of them a server shows."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def scored(*logprobs: float, tokens: str = "abcdefghijkl") -> Answer:
    """The likely tokens at one place."""
    return Answer(text=tokens[0], tokens=tuple(tokens[: len(logprobs)]), logprobs=logprobs)


def test_the_p_value_is_that_of_all_permutations() -> None:
    rng = np.random.default_rng(3)
    questions = [
        Compared(before=[scored(*-rng.random(3)) for _ in range(2)], after=[scored(*-rng.random(3)) for _ in range(2)]) for _ in range(3)
    ]
    seen = [excess(each) for each in questions]
    labelled = [[excess(each) for each in relabelled(question)] for question in questions]
    sums = [sum(chosen) for chosen in itertools.product(*labelled)]
    expected = sum(value >= sum(seen) - 2e-3 for value in sums) / len(sums)
    assert 0 < expected < 1
    assert find_change(questions).p_value == pytest.approx(expected)


def relabelled(each: Compared) -> list[Compared]:
    answers = [*each.before, *each.after]
    pairs = itertools.combinations(range(4), 2)
    return [Compared(before=[answers[a] for a in pair], after=[answers[b] for b in range(4) if b not in pair]) for pair in pairs]


def excess(each: Compared) -> float:
    between, within = differences(each)
    return math.sqrt(max(0.0, between**2 - within**2 - FLOOR**2))


def difference(one: Answer, other: Answer) -> float:
    return differences(Compared(before=[one], after=[other] * 2))[0]


def test_another_likely_token_is_a_tie_only_if_both_are_as_probable() -> None:
    """A token with the log-probability -0.01 leaves 1 % to all others; one of them with -0.01 has moved far."""
    assert difference(scored(-0.70), scored(-0.69, tokens="z")) == pytest.approx(0.01)
    assert difference(scored(-0.01), scored(-0.01, tokens="z")) == 1.0
    assert difference(scored(-0.5, -2.0), scored(-0.5, -2.1, tokens="az")) == pytest.approx(math.sqrt(0.1**2 / 2)), "the last one"
    assert difference(scored(-0.5, -2.0), scored(-0.5, -2.0, tokens="az")) == 0


def test_shorter_lists_are_compared_as_far_as_they_go() -> None:
    """Tokens after the last one of the shorter list say nothing, unless they were more probable."""
    long = scored(-0.5, -1.5, -3.0, -4.0)
    assert difference(long, scored(-0.5, -1.5)) == 0
    assert difference(long, scored(-0.6, -1.5)) == pytest.approx(math.sqrt(0.1**2 / 2))
    assert difference(long, scored(-0.5, -2.5, tokens="ac")) == pytest.approx(math.sqrt((0.5**2 + 1.0**2) / 3))


@pytest.mark.parametrize(("step", "found"), [(0.125, 0.125), (0.1, 0.1), (0.03125, 0.03125), (1e-4, 0.0)])
def test_the_step_of_rounded_log_probabilities_is_seen(step: float, found: float) -> None:
    rng = np.random.default_rng(0)
    assert step_of([scored(*(-step * rng.integers(1, 9 / step, 12))) for _ in range(12)]) == found
    assert step_of([scored(*(-rng.uniform(0, 9, 12))) for _ in range(12)]) == 0
    assert step_of([scored(-0.3, -0.3)]) == 0
    assert step_of([]) == 0


def test_texts_that_were_cut_are_compared_as_far_as_they_go() -> None:
    whole, short, other = Answer(text="Paris is large."), Answer(text="Paris is", is_cut=True), Answer(text="Paris is")
    assert differences(Compared(before=[whole], after=[short, short])) == (0.0, 0.0)
    assert differences(Compared(before=[whole], after=[other, other])) == (1.0, 0.0)


@pytest.mark.parametrize(("changed", "is_noticed"), [(8, False), (14, True)])
def test_texts_alone_show_another_model_but_not_some_ties(changed: int, is_noticed: bool) -> None:
    same = [Compared(before=[Answer(text="a")] * 2, after=[Answer(text="a")] * 2)] * (CANARIES - changed)
    other = [Compared(before=[Answer(text="a")] * 2, after=[Answer(text="b")] * 2)] * changed
    assert find_change([*same, *other]).is_significant is is_noticed


def test_few_questions_show_nothing() -> None:
    change = find_change([Compared(before=[Answer(text="a")], after=[Answer(text="b")] * 2)] * 5)
    assert change.n_different == 5
    assert not change.is_significant
    assert not find_change([]).is_significant


# ---- nights


@dataclass(frozen=True)
class Server:
    """A server whose answers follow from logits, with noise of each answer and of each night."""

    logits: Array
    """Canaries, places, words. Servers with log-probabilities have one place."""
    fresh: float
    """Standard deviation of normal noise, drawn for each answer."""
    nightly: float
    """Greatest amount of uniform noise, drawn for each night: all answers of a night have it."""

    def night(self, rng: np.random.Generator, drift: Array | float = 0.0) -> dict[str, tuple[Answer, ...]]:
        nightly = self.logits + drift + rng.uniform(-self.nightly, self.nightly, self.logits.shape)
        read, mark = (self._likely, " (first token)") if self.logits.shape[1] == 1 else (self._texts, "")
        asked = [read(nightly + rng.normal(0, self.fresh, nightly.shape)) for _ in range(2)]
        return {f"{index}{mark}": pair for index, pair in enumerate(zip(*asked, strict=True))}

    def _likely(self, logits: Array) -> list[Answer]:
        values = (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))[:, 0]
        best = np.argsort(-values, axis=-1)[:, :LIKELY]
        return [
            Answer(text=str(words[0]), is_cut=True, tokens=tuple(map(str, words)), logprobs=tuple(map(float, row[words])))
            for words, row in zip(best, values, strict=True)
        ]

    def _texts(self, logits: Array) -> list[Answer]:
        """A text ends at the first token that is not the best without noise: all that follows differs."""
        chosen, usual = logits.argmax(-1), self.logits.argmax(-1)
        lengths = [
            next((index + 1 for index in range(TOKENS) if row[index] != other[index]), TOKENS)
            for row, other in zip(chosen, usual, strict=True)
        ]
        return [Answer(text="".join(map(str, row[:length]))) for row, length in zip(chosen, lengths, strict=True)]


def server(rng: np.random.Generator, fresh: float = 0.0, nightly: float = 0.0, has_logprobs: bool = True) -> Server:
    shape = (MOST_FIRST_TOKENS, 1, VOCABULARY) if has_logprobs else (CANARIES, TOKENS, WORDS)
    return Server(rng.normal(0, 2.5, shape), fresh, nightly)


def day(number: int) -> str:
    return f"2026-01-{number + 1:02}T03:00:00+00:00"


def rises(nights: Sequence[dict[str, tuple[Answer, ...]]]) -> list[int]:
    """The nights that begin an epoch, as a run decides by one look."""
    epoch, found = Epoch(), []
    for number, answers in enumerate(nights):
        asked = {
            name: Compared(before=epoch.reference[name], after=pair, allowance=epoch.allowance(name))
            for name, pair in answers.items()
            if name in epoch.reference
        }
        change, is_allowed = epoch.judge(list(asked.values()), answers)
        if change.is_significant:
            found.append(number)
            epoch = epoch.next(answers, day(number))
        else:
            epoch = epoch.after(answers, day(number), is_allowed=is_allowed)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("fresh", "nightly", "has_logprobs"),
    [
        (0.06, 0.06, True),
        (0.06, 0, True),
        (0, 0.06, True),
        (0.06, 0.06, False),
    ],
)
def test_thirty_nights_without_a_change_begin_no_epoch(fresh: float, nightly: float, has_logprobs: bool) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        same = server(rng, fresh, nightly, has_logprobs)
        assert rises([same.night(rng) for _ in range(30)]) == [], seed


@pytest.mark.parametrize(("fresh", "has_logprobs", "moved"), [(0, True, 0.2), (0.06, True, 0.25), (0.06, False, 2)])
def test_another_model_is_noticed_the_first_night(fresh: float, has_logprobs: bool, moved: float) -> None:
    """`moved` is the standard deviation by which all logits differ."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        one = server(rng, fresh, 0, has_logprobs)
        other = rng.normal(0, moved, one.logits.shape)
        nights = [one.night(rng, 0.0 if number < 3 else other) for number in range(6)]
        assert rises(nights) == [3], seed


@pytest.mark.parametrize("has_logprobs", [True, False])
@pytest.mark.parametrize("third", ["the first model again", "a third model"])
def test_each_of_two_changes_on_consecutive_nights_is_noticed(has_logprobs: bool, third: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        first, second, another = (server(rng, 0.06 if has_logprobs else 0.0, 0, has_logprobs) for _ in range(3))
        last = another if third == "a third model" else first
        assert rises([each.night(rng) for each in (first, second, last, last, first, second, second)])[:2] == [1, 2], seed


@pytest.mark.parametrize(("third", "noticed"), [("the first model again", 2), ("a third model", 3)])
def test_a_second_small_change_is_noticed_at_once_or_when_it_stays(third: str, noticed: int) -> None:
    """As of quantizations: a change of all logits by 0.2."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        one = server(rng, 0.06)
        second, another = (rng.normal(0, 0.2, one.logits.shape) for _ in range(2))
        last = another if third == "a third model" else 0.0
        assert rises([one.night(rng, drift) for drift in (0.0, second, last, last, last)]) == [1, noticed], seed


def share_noticed(fresh: float, nightly: float, has_logprobs: bool, moved: float, looks: int, quiet_nights: int = 0) -> float:
    """The share of looks, at servers of their own, that find a change of all logits by so much (standard deviation).

    `quiet_nights` are looks without a change between the first one and that look.
    """
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(looks):
        one = server(rng, fresh, nightly, has_logprobs)
        epoch = Epoch()
        for number in range(1 + quiet_nights):
            epoch = epoch.after(one.night(rng), day(number))
        after = one.night(rng, rng.normal(0, moved, one.logits.shape))
        change, _ = epoch.judge([Compared(before=epoch.reference[name], after=pair) for name, pair in after.items()], after)
        found += change.is_significant
    return found / looks


@pytest.mark.long
@pytest.mark.parametrize(("has_logprobs", "quiet_nights", "looks"), [(True, 0, 1000), (True, 3, 1000), (False, 0, 2000)])
@pytest.mark.parametrize(("fresh", "nightly"), [(0.06, 0), (0, 0.06), (0.06, 0.06)])
def test_twelve_thousand_looks_at_unchanged_servers_find_nothing(
    fresh: float, nightly: float, has_logprobs: bool, quiet_nights: int, looks: int
) -> None:
    """The sentence in docs/how-to/served-models.md."""
    assert share_noticed(fresh, nightly, has_logprobs, moved=0, looks=looks, quiet_nights=quiet_nights) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("has_logprobs", "moved", "least", "most"),
    [(True, 0.05, 0, 0.3), (True, 0.1, 0.8, 1), (True, 0.2, 0.98, 1), (False, 0.2, 0, 0.15), (False, 0.5, 0.7, 1), (False, 1, 0.98, 1)],
)
@pytest.mark.parametrize(("fresh", "nightly"), [(0, 0), (0.06, 0), (0, 0.06)])
def test_how_often_one_look_finds_a_change(
    fresh: float, nightly: float, has_logprobs: bool, moved: float, least: float, most: float
) -> None:
    """The table in docs/how-to/served-models.md."""
    assert least <= share_noticed(fresh, nightly, has_logprobs, moved, looks=200) <= most


@pytest.mark.parametrize("has_logprobs", [True, False])
def test_some_looks_at_a_noisy_server_find_a_change_alone(has_logprobs: bool) -> None:
    """The table in docs/how-to/served-models.md, with fewer looks."""
    noticed = [share_noticed(0.06, 0.06, has_logprobs, moved, looks=20) for moved in (0, 0.2, 2)]
    assert noticed[0] == 0
    assert (noticed[1] > 0.9) is has_logprobs
    assert noticed[2] == 1


def test_a_small_change_is_noticed_as_soon_as_the_noise_is_known() -> None:
    """As of a step of training. A change of the same size is noise if nights before had as much."""
    noticed = [share_noticed(0, 0, True, 0.02, looks=10, quiet_nights=nights) for nights in (0, 2, 3)]
    assert noticed == [0, 0, 1]
    assert share_noticed(0, 0.03, True, 0.02, looks=10, quiet_nights=5) == 0
    assert share_noticed(0, 0.003, True, 0, looks=10, quiet_nights=5) == 0


def test_looks_on_one_day_are_no_nights() -> None:
    rng = np.random.default_rng(0)
    one = server(rng)
    epoch = Epoch()
    for _ in range(4):
        epoch = epoch.after(one.night(rng), day(0))
    assert (epoch.nights, epoch.floor) == (0, FLOOR)
    epoch = epoch.after(one.night(rng, 0.01), day(1), is_quiet=False)
    assert (epoch.nights, epoch.noise) == (0, 0), "the pin hides a change, which is no noise"
    for number in range(2, 5):
        epoch = epoch.after(one.night(rng), day(number))
    assert (epoch.nights, epoch.floor) == (3, LEAST_FLOOR)


def test_rounded_log_probabilities_are_told_apart_from_a_change() -> None:
    """With steps of 0.25, a change by 0.03 moves some by a whole step. It is no change, even of a server without noise before."""
    rng = np.random.default_rng(2)
    one = server(rng)

    def rounded(answers: dict[str, tuple[Answer, ...]]) -> dict[str, tuple[Answer, ...]]:
        return {
            name: tuple(replace(each, logprobs=tuple(round(4 * value) / 4 for value in each.logprobs)) for each in pair)
            for name, pair in answers.items()
        }

    nights = [rounded(one.night(rng)) for _ in range(5)]
    small, large = (rng.normal(0, moved, one.logits.shape) for moved in (0.02, 0.5))
    assert rises([*nights, rounded(one.night(rng, small))]) == []
    assert rises([*nights, rounded(one.night(rng, large))]) == [5]


def test_a_slow_drift_counts_from_the_first_look() -> None:
    rng = np.random.default_rng(0)
    one = server(rng)
    step = rng.normal(0, 0.02, one.logits.shape)
    found = rises([one.night(rng, number * step) for number in range(15)])
    assert 3 <= found[0] < 12
    assert rises([one.night(rng, 0.0), one.night(rng, step)]) == [], "a step alone is noise"


def test_noise_between_restarts_begins_at_most_one_epoch() -> None:
    """Normal noise of 0.15 by night, which asking twice does not show, looks like another model once."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        one = server(rng)
        assert rises([one.night(rng, rng.normal(0, 0.15, one.logits.shape)) for _ in range(20)]) == [1], seed


def test_noise_of_rare_nights_begins_at_most_one_epoch() -> None:
    """A server without noise on most nights, and with uniform noise of 0.03 on one of ten, seems quiet until then."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        one = server(rng)
        nights = [one.night(rng, rng.uniform(-0.03, 0.03, one.logits.shape) if rng.random() < 0.1 else 0.0) for _ in range(30)]
        assert len(rises(nights)) <= 1, seed
