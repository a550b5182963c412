"""The tree of prefixes: what pieces are laid out, what each of their tokens may see, and how little is computed twice."""

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.models.transformers.encoding.tokenization import common_prefix
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree

Tokens = tuple[int, ...]

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


def pieces(
    tree: PrefixTree, *, tokens: int, chain: int | None = None, scored: int = 10**6, scored_of: Sequence[int] | None = None
) -> Iterator[Piece]:
    first = base = 0
    ones = [1] * len(tree.sequences)
    while first < len(tree.sequences):
        piece = tree.piece(first, base, PieceLimits(tokens=tokens, chain=chain or tokens, scored=scored), scored_of or ones)
        assert piece.base == base
        yield piece
        first, base = piece.last, piece.keep


def nodes(sequences: Sequence[Tokens]) -> int:
    return len({sequence[: end + 1] for sequence in sequences for end in range(len(sequence))})


@given(st.lists(few_tokens, min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 10))
def test_each_token_sees_its_own_path_and_each_sequence_is_laid_out(drawn: list[Tokens], limit: int, more: int) -> None:
    sequences = sorted(set(drawn))
    tree = PrefixTree(sequences)
    assert tree.nodes() == nodes(sequences)
    cached: list[int] = []
    laid: set[tuple[int, int]] = set()
    ended = 0
    for piece in pieces(tree, tokens=limit, chain=limit + more):
        assert len(piece.tokens) <= limit + (more if len(piece.blocks) == 1 else 0)
        assert len(cached) == piece.base
        bounds = [*(block.offset for block in piece.blocks[1:]), len(piece.tokens)]
        for block, bound in zip(piece.blocks, bounds, strict=True):
            for index in range(block.offset, bound):
                depth = block.start + index - block.offset
                laid.add((block.sequence, depth))
                seen = [other for other in range(index + 1) if index < piece.ends[other]]
                assert tuple(cached + [piece.tokens[other] for other in seen]) == sequences[block.sequence][: depth + 1]
                assert [piece.positions[other] for other in seen] == list(range(piece.base, depth + 1))
        is_chain = all(end == len(piece.tokens) for end in piece.ends)
        assert piece.is_plain() == (is_chain and piece.base == 0)
        assert piece.last in (ended, *(block.sequence + 1 for block in piece.blocks))
        ended = piece.last
        cached = [*cached, *piece.tokens][: piece.keep]
        assert not cached or tuple(cached) == sequences[piece.last][: piece.keep]
    # What a sequence is the first to bring is laid out as its own: there it is scored.
    assert laid >= {(index, depth) for index, sequence in enumerate(sequences) for depth in range(tree.shared[index], len(sequence))}


@given(st.lists(few_tokens, min_size=1, max_size=30))
def test_what_fits_one_piece_is_computed_once(drawn: list[Tokens]) -> None:
    sequences = sorted(set(drawn))
    (piece,) = pieces(PrefixTree(sequences), tokens=10**6)
    assert len(piece.tokens) == nodes(sequences)


@given(few_tokens, few_tokens)
def test_a_common_prefix_is_the_longest_one(one: Tokens, other: Tokens) -> None:
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


def some(draw: random.Random, least: int, most: int) -> Tokens:
    return tuple(draw.choices(range(10_000), k=draw.randint(least, most)))


def choice_sequences(draw: random.Random, *, groups: int, shots: int, each: int, question: int, choice: int) -> list[Tokens]:
    """Inputs of choices: groups that share their examples, questions, and four choices of each."""
    line = some(draw, 8, 8)
    found = []
    for _ in range(groups):
        examples = line + some(draw, shots, shots + shots // 5)
        for _ in range(each):
            asked = examples + some(draw, question // 2, question * 3 // 2)
            found += [asked + some(draw, choice // 2, choice * 3 // 2) for _ in range(4)]
    return sorted(set(found))


@pytest.mark.parametrize(
    "work",
    [
        {"groups": 3, "shots": 600, "each": 20, "question": 100, "choice": 0},
        {"groups": 57, "shots": 600, "each": 5, "question": 100, "choice": 0},
        {"groups": 57, "shots": 1500, "each": 2, "question": 200, "choice": 12},
        {"groups": 200, "shots": 0, "each": 1, "question": 45, "choice": 25},
        {"groups": 10, "shots": 0, "each": 40, "question": 45, "choice": 25},
        {"groups": 2, "shots": 30, "each": 100, "question": 60, "choice": 400},
    ],
    ids=["few groups", "MMLU", "long examples", "HellaSwag", "topics", "long choices"],
)
@pytest.mark.parametrize("limit", [512, 1024, 8192])
def test_little_is_computed_twice(limit: int, work: dict[str, int]) -> None:
    sequences = choice_sequences(random.Random(5), **work)
    tree = PrefixTree(sequences)
    made = list(pieces(tree, tokens=limit))
    computed = sum(len(piece.tokens) for piece in made)
    assert computed <= 1.05 * tree.nodes()
    # Nor is it cut into crumbs: pieces of a few tokens would be computed once, too, but each costs a pass.
    assert len(made) <= 2.5 * computed / limit + 2


def test_a_long_text_is_cut_into_even_parts_that_hold_no_more_scores_than_allowed() -> None:
    text = some(random.Random(1), 2000, 2000)
    made = list(pieces(PrefixTree([text]), tokens=1024, scored=600, scored_of=[2000]))
    assert [len(piece.tokens) for piece in made] == [500] * 4
    assert [piece.base for piece in made] == [0, 500, 1000, 1500]


def test_a_long_sequence_is_cut_less_often_than_several_share_a_piece() -> None:
    draw = random.Random(4)
    sequences = sorted([some(draw, 2000, 2000), *(some(draw, 100, 100) for _ in range(20))])
    made = list(pieces(PrefixTree(sequences), tokens=500, chain=1000))
    assert max(len(piece.tokens) for piece in made if len(piece.blocks) > 1) == 500
    assert sorted(len(piece.tokens) for piece in made)[-2:] == [1000, 1000]


def test_a_piece_ends_where_its_scores_would_be_too_many() -> None:
    draw = random.Random(2)
    sequences = sorted(some(draw, 20, 20) for _ in range(10))
    made = list(pieces(PrefixTree(sequences), tokens=1024, scored=35, scored_of=[10] * 10))
    assert [len(piece.blocks) for piece in made] == [3, 3, 3, 1]


def test_a_pass_costs_more_than_a_token_computed_twice() -> None:
    draw = random.Random(3)
    sequences = sorted([(0, *some(draw, 19, 19)), *((1, *some(draw, 19, 19)) for _ in range(99))])
    first, *_ = pieces(PrefixTree(sequences), tokens=500)
    # To end after the first sequence would waste nothing but a pass; further on the common token of the others is lost.
    assert len(first.blocks) > 20
