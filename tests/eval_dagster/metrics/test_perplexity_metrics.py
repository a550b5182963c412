from math import exp, inf, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import PerplexityMetric, named_values
from eval_dagster.metrics.perplexity import (
    BitsPerByte,
    BitsPerByteLoglikelihood,
    BytePerplexity,
    CorpusPerplexityMetric,
    TokenPerplexity,
    WordPerplexity,
)
from eval_dagster.records import Loglikelihood, MetricContext
from eval_dagster.stages.scores import statistic_names

EVERY = [WordPerplexity, BytePerplexity, BitsPerByte, TokenPerplexity]


def text(value: float, content: str, tokens: int = 1, original: str | None = None) -> Loglikelihood:
    return Loglikelihood(
        loglikelihoods=[value],
        choices=[content],
        gold_indices=[0],
        token_loglikelihoods=[[value / tokens] * tokens],
        context=None if original is None else MetricContext(original_text=original),
    )


def of_all(metric: type[CorpusPerplexityMetric], *texts: Loglikelihood) -> float:
    named = [named_values(metric.NAME, metric().calculate(each)) for each in texts]
    return float(metric.aggregate(np.array([sum(each[name] for each in named) for name in statistic_names(metric)])))


def test_all_texts_are_one() -> None:
    # 12 bits over 3 words and 1 bit over 1 word: 13 bits by 4 words. The mean of the texts' own perplexities would be (16 + 2) / 2.
    long, short = text(-12 * log(2), "one two three"), text(-log(2), "four")
    assert of_all(WordPerplexity, long, short) == pytest.approx(2 ** (13 / 4))
    assert [of_all(WordPerplexity, each) for each in (long, short)] == [pytest.approx(16), pytest.approx(2)]


def test_bits_and_perplexity_of_bytes() -> None:
    # "é" has two bytes, so 4 in all: 8 bits by 4 bytes.
    assert of_all(BitsPerByte, text(-8 * log(2), "aéb")) == pytest.approx(2)
    assert of_all(BytePerplexity, text(-8 * log(2), "aéb")) == pytest.approx(2**2)
    assert of_all(BytePerplexity, text(-3 * log(2), "\ud800")) == pytest.approx(2)  # half a character: three bytes
    # Long texts weigh more: (8 + 1) bits by (4 + 1) bytes; the mean of both would be (2 + 1) / 2.
    both = [text(-8 * log(2), "abcd"), text(-log(2), "a")]
    assert of_all(BitsPerByte, *both) == pytest.approx(9 / 5)
    means = [BitsPerByteLoglikelihood().calculate(each) for each in both]
    assert sum(means) / 2 == pytest.approx(3 / 2)


def test_a_model_that_guesses_has_the_perplexity_of_its_vocabulary() -> None:
    assert of_all(TokenPerplexity, text(5 * log(1 / 50), "any", 5), text(2 * log(1 / 50), "text", 2)) == pytest.approx(50)


def test_defect_8_padding_is_in_no_count() -> None:
    # Two and four tokens of probability 1/4: padded to four each, it would be 8 tokens, and 4 ** (6 / 8).
    assert of_all(TokenPerplexity, text(2 * log(1 / 4), "a", 2), text(4 * log(1 / 4), "b", 4)) == pytest.approx(4)


@pytest.mark.parametrize(
    ("content", "words"),
    # As `len(re.split(r"\s+", text))` of the harness: the empty ones at either end count.
    [("a b", 2), (" a  b\n", 4), ("a\N{NO-BREAK SPACE}b", 2), ("", 1), ("\n\n", 2), ("= Title = @-@ x", 5)],
)
def test_words_are_counted_as_in_the_harness(content: str, words: int) -> None:
    assert WordPerplexity().calculate(text(-1.0, content)) == {"log_probability": -1.0, "words": words}


def test_what_the_text_was_made_of_is_counted() -> None:
    assert BytePerplexity().calculate(text(-1.0, "don't", original="do n't")) == {"log_probability": -1.0, "bytes": 6}
    assert WordPerplexity().calculate(text(-1.0, "don't", original="do n't")) == {"log_probability": -1.0, "words": 2}
    assert BytePerplexity().calculate(text(-1.0, "abc", original="")) == {"log_probability": -1.0, "bytes": 0}


def test_of_several_correct_choices_the_most_probable_counts() -> None:
    response = Loglikelihood(
        loglikelihoods=[-1.0, -9.0, -4.0],
        choices=["no", "four", "éé e"],
        gold_indices=[1, 2],
        token_loglikelihoods=[[-1.0], [-9.0], [-4.0] * 3],
    )
    assert [list(metric().calculate(response).values()) for metric in EVERY] == [[-4.0, 2], [-4.0, 6], [-4.0, 6], [-4.0, 3]]


def test_edges() -> None:
    for metric in EVERY:
        assert np.isnan(metric.aggregate(np.array([[0.0, 0.0], [-1.0, 0.0]]))).all()
        assert issubclass(metric, PerplexityMetric)
        assert not metric.HIGHER_IS_BETTER
    # Too large for a float, and not an error: one impossible text must not take the others' number.
    assert WordPerplexity.aggregate(np.array([-1e6, 1.0])) == inf
    assert WordPerplexity.aggregate(np.array([[-2.0, 2.0], [-1e6, 1.0], [0.0, 3.0]])).tolist() == [pytest.approx(exp(1)), inf, 1]


@pytest.mark.parametrize("metric", EVERY)
@pytest.mark.parametrize(("value", "gold"), [(nan, [0]), (-inf, [0]), (-1.0, []), (-1.0, [1])])
def test_what_has_no_perplexity_raises(metric: type[CorpusPerplexityMetric], value: float, gold: list[int]) -> None:
    with pytest.raises(DataError, match="expected"):
        metric().calculate(Loglikelihood(loglikelihoods=[value], choices=["a"], gold_indices=gold, token_loglikelihoods=[[value]]))


def test_what_cannot_be_counted_raises() -> None:
    bare = Loglikelihood(loglikelihoods=[-1.0], gold_indices=[0])
    with pytest.raises(DataError, match="log-probabilities and no text; expected the text that was scored, to count its words or bytes"):
        BytePerplexity().calculate(bare)
    with pytest.raises(DataError, match="has the tokens of 0 texts, but 1 log-probabilities"):
        TokenPerplexity().calculate(bare)


TEXTS = st.lists(st.tuples(st.floats(-200, 0), st.text(min_size=1), st.integers(1, 9)).map(lambda parts: text(*parts)), min_size=1)


@pytest.mark.long
@pytest.mark.parametrize("metric", EVERY)
@given(texts=TEXTS, data=st.data())
def test_bounds_and_invariances(metric: type[CorpusPerplexityMetric], texts: list[Loglikelihood], data: st.DataObject) -> None:
    value = of_all(metric, *texts)
    assert value >= (0 if metric is BitsPerByte else 1)
    assert of_all(metric, *data.draw(st.permutations(texts))) == pytest.approx(value)
    assert of_all(metric, *texts, *texts) == pytest.approx(value)
    single = [of_all(metric, each) for each in texts]
    assert min(single) * (1 - 1e-9) <= value <= max(single) * (1 + 1e-9)


@given(texts=TEXTS)
def test_bits_are_the_logarithm_of_the_perplexity(texts: list[Loglikelihood]) -> None:
    assert 2 ** of_all(BitsPerByte, *texts) == pytest.approx(of_all(BytePerplexity, *texts))
