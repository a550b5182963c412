from collections import Counter
from collections.abc import Sequence
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import corpus_bleu, corpus_chrf, corpus_ter

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import named_values
from eval_dagster.metrics.translation import BLEU, TER, ChrF, SacreBLEUMetric
from eval_dagster.records import Completion
from eval_dagster.stages.scores import statistic_names
from eval_dagster.statistics.estimates import estimate_corpus

EVERY = [BLEU, ChrF, TER]
Pair = tuple[str, Sequence[str]]

# The example of sacrebleu's README.
SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]
README: list[Pair] = list(zip(SYSTEM, zip(*REFERENCES, strict=True), strict=True))


def statistics(metric: type[SacreBLEUMetric], text: str, truths: Sequence[str]) -> np.ndarray:
    named = named_values(metric.NAME, metric().calculate(Completion(completion_text=text, ground_truths=truths)))
    return np.array([named[name] for name in statistic_names(metric)])


def score(metric: type[SacreBLEUMetric], *pairs: Pair) -> float:
    return float(metric.aggregate(np.sum([statistics(metric, *pair) for pair in pairs], axis=0)))


def test_the_values_that_the_readme_of_sacrebleu_prints() -> None:
    # "BLEU = 48.53 82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)" and "chrF2 = 59.73"
    assert score(BLEU, *README) == pytest.approx(48.53, abs=0.005)
    assert score(ChrF, *README) == pytest.approx(59.73, abs=0.005)


def test_the_bleu_of_the_readme_by_hand() -> None:
    sums = dict(zip(BLEU.STATISTICS, np.sum([statistics(BLEU, *pair) for pair in README], axis=0), strict=True))
    assert (sums["length"], sums["reference_length"]) == (17, 18)
    precisions = [sums[f"correct_{n}"] / sums[f"total_{n}"] for n in range(1, 5)]
    assert precisions == pytest.approx([0.824, 0.5, 0.455, 0.375], abs=0.0005)
    assert 100 * exp(1 - 18 / 17) * exp(sum(map(log, precisions)) / 4) == pytest.approx(score(BLEU, *README))


def test_papinenis_modified_precision() -> None:
    # Papineni et al. 2002, example 2: "the" counts twice, since the first reference has it twice.
    sums = dict(
        zip(
            BLEU.STATISTICS,
            statistics(BLEU, "the the the the the the the", ["the cat is on the mat", "there is a cat on the mat"]),
            strict=True,
        )
    )
    assert (sums["correct_1"], sums["total_1"]) == (2, 7)
    # Example 1, candidates 1 and 2, without their periods: 17/18 and 8/14 of the words, 10/17 and 1/13 of the pairs.
    references = [
        "it is a guide to action that ensures that the military will forever heed party commands",
        "it is the guiding principle which guarantees the military forces always being under the command of the party",
        "it is the practical guide for the army always to heed the directions of the party",
    ]
    candidates = {
        "it is a guide to action which ensures that the military always obeys the commands of the party": [17, 18, 10, 17],
        "it is to insure the troops forever hearing the activity guidebook that party direct": [8, 14, 1, 13],
    }
    for candidate, expected in candidates.items():
        sums = dict(zip(BLEU.STATISTICS, statistics(BLEU, candidate, references), strict=True))
        assert [sums[name] for name in ("correct_1", "total_1", "correct_2", "total_2")] == expected


def test_snovers_translation_edit_rate() -> None:
    # Snover et al. 2006, section 3: one shift, two substitutions and one insertion by 13 words.
    reference = "SAUDI ARABIA denied THIS WEEK information published in the AMERICAN new york times"
    text = "THIS WEEK THE SAUDIS denied information published in the new york times"
    assert statistics(TER, text, [reference]).tolist() == [4, 13]
    assert score(TER, (text, [reference])) == pytest.approx(100 * 4 / 13)
    # The best of several correct texts, by their mean length.
    assert statistics(TER, "a b c", ["a b c", "x y z u v"]).tolist() == [0, 4]
    assert score(TER, ("a b c d", ["e"])) == 400


def test_chrf_by_hand() -> None:
    # "abc" and "abd": 2 of 3 letters, 1 of 2 pairs, 0 of 1 triple, none longer, and precision equal to recall: (2/3 + 1/2 + 0) / 3.
    assert score(ChrF, ("abc", ["abd"])) == pytest.approx(100 * (2 / 3 + 1 / 2) / 3)
    # Recall weighs more: of "ab" and "abcdef" all letters are in the longer one.
    assert score(ChrF, ("abcdef", ["ab"])) > score(ChrF, ("ab", ["abcdef"]))
    # White space does not count, case does.
    assert score(ChrF, ("a b c", ["abc"])) == 100
    assert score(ChrF, ("ABC", ["abc"])) == 0


def test_a_corpus_is_no_mean_of_its_samples() -> None:
    alone = [score(BLEU, pair) for pair in README]
    assert score(BLEU, *README) != pytest.approx(sum(alone) / 3, abs=0.5)


@pytest.mark.parametrize("metric", EVERY)
def test_the_right_text_is_best_and_an_empty_one_worst(metric: type[SacreBLEUMetric]) -> None:
    right: Pair = ("the cat is on the mat", ["the cat is on the mat"])
    assert score(metric, right, right) == pytest.approx(metric.BEST)
    empty = score(metric, ("", ["the cat is on the mat"]))
    assert empty == (100 if metric is TER else 0)
    assert metric.HIGHER_IS_BETTER is (metric is not TER)
    with pytest.raises(DataError, match="no gold answer"):
        statistics(metric, "the cat", [])


def test_a_bootstrap_may_draw_many_corpora_at_once() -> None:
    for metric in EVERY:
        rows = np.array([statistics(metric, *pair) for pair in README])
        cube = np.array([[rows.sum(axis=0), rows[0]], [rows[1], rows[2]]])
        values = metric.aggregate(cube)
        assert values.shape == (2, 2)
        assert values[0, 0] == score(metric, *README)
        assert values[1, 0] == score(metric, README[1])


def test_defect_7_the_error_bar_of_bleu_is_the_spread_of_corpora() -> None:
    # A corpus of 60 samples drawn again and again from all there are: how far its BLEU spreads is what the error bar estimates.
    generator = np.random.default_rng(0)
    words = ["the", "cat", "is", "on", "a", "mat", "and", "dog", "ran", "to", "it"]
    pool = []
    for _ in range(400):
        truth = [str(word) for word in generator.choice(words, 9)]
        text = [word if generator.random() < 0.8 else "no" for word in truth]
        pool.append(statistics(BLEU, " ".join(text), [" ".join(truth)]))
    rows = np.array(pool)
    spread = np.std([BLEU.aggregate(rows[generator.integers(0, 400, 60)].sum(axis=0)) for _ in range(300)])
    estimate = estimate_corpus(rows[:60], BLEU.aggregate)
    assert estimate.stderr == pytest.approx(spread, rel=0.35)


WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "Cat", "été", "你好", ".", "5"]), max_size=9).map(" ".join)
PAIRS = st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=2, max_size=2)), min_size=1, max_size=5)


@pytest.mark.long
@given(pairs=PAIRS, data=st.data())
def test_sacrebleu_finds_the_same_for_the_whole_corpus(pairs: list[Pair], data: st.DataObject) -> None:
    texts, references = [text for text, _ in pairs], [list(column) for column in zip(*(truths for _, truths in pairs), strict=True)]
    shuffled = data.draw(st.permutations(pairs))
    for metric, corpus in ((BLEU, corpus_bleu), (ChrF, corpus_chrf), (TER, corpus_ter)):
        value = score(metric, *pairs)
        assert value == pytest.approx(corpus(texts, references).score)
        assert value >= 0
        assert value <= 100 + 1e-9 or metric is TER
        assert score(metric, *shuffled) == pytest.approx(value)
    # Of two correct texts that are equally far, chrF takes the first; BLEU counts what is in either.
    assert score(BLEU, *((text, truths[::-1]) for text, truths in pairs)) == pytest.approx(score(BLEU, *pairs))
    assert score(BLEU, *((text, [*truths, truths[0]]) for text, truths in pairs)) == pytest.approx(score(BLEU, *pairs))


@given(text=WORDS, truth=WORDS)
def test_bleu_counts_every_word_as_often_as_it_stands_in_both(text: str, truth: str) -> None:
    sums = dict(zip(BLEU.STATISTICS, statistics(BLEU, text, [truth]), strict=True))
    assert sums["correct_1"] == (Counter(text.split()) & Counter(truth.split())).total()
    assert (sums["total_1"], sums["reference_length"]) == (len(text.split()), len(truth.split()))
