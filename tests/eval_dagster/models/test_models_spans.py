"""What one row of logits gives its token: a score, or an error where there is no number."""

import pytest
import torch

from eval_dagster.models.transformers.scoring.spans import NOT_FINITE, SpanScore, score_tokens, span_score

GOLD, OTHER = 2, 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_at_the_token_that_is_no_number_is_never_a_score(value: float) -> None:
    logits = torch.zeros(2, 6)
    logits[1, GOLD] = value
    assert span_score(score_tokens(logits, [0, 1], [GOLD, GOLD])) is NOT_FINITE


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nor_is_one_at_another_token(value: float) -> None:
    logits = torch.zeros(1, 6)
    logits[0, OTHER] = value
    assert span_score(score_tokens(logits, [0], [GOLD])) is NOT_FINITE


def test_a_token_that_the_model_rules_out_beside_it_is_no_fault() -> None:
    logits = torch.zeros(1, 6)
    logits[0, OTHER] = float("-inf")
    score = span_score(score_tokens(logits, [0], [GOLD]))
    assert isinstance(score, SpanScore)
    assert score.logprobs == pytest.approx([-torch.log(torch.tensor(5.0)).item()])


@pytest.mark.parametrize("positions", [150, 200], ids=["every position", "some positions"])
def test_positions_may_be_asked_for_in_any_order_and_again(positions: int) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 10 * torch.randn(positions, 50, generator=draw)
    rows = [*torch.randperm(150, generator=draw).tolist(), 7, 7, 149]
    tokens = torch.randint(0, 50, (len(rows),), generator=draw).tolist()
    logprobs, chosen, greedy = zip(*score_tokens(logits, rows, tokens), strict=True)
    expected = torch.log_softmax(logits.double(), dim=-1)[rows, tokens].tolist()
    assert list(logprobs) == pytest.approx(expected, abs=1e-5)
    assert list(chosen) == logits[rows, tokens].tolist()
    assert list(greedy) == [logits[row].argmax().item() == token for row, token in zip(rows, tokens, strict=True)]
    assert 0 < sum(greedy) < len(rows)


def test_a_large_vocabulary_makes_no_log_probability_too_high() -> None:
    """Where one token is likely, tens of thousands of unlikely ones count too, each of which a sum that is large already would lose."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 50_000, generator=draw)
    logits[:, GOLD] = 20
    logprobs = [logprob for logprob, _, _ in score_tokens(logits, range(64), [GOLD] * 64)]
    expected = torch.log_softmax(logits.double(), dim=-1)[:, GOLD]
    assert torch.tensor(logprobs).double().sub(expected).mean().abs() < 2e-6
