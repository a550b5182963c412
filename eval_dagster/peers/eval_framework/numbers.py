"""Sizes and similarities, by eval-framework's names."""

from collections.abc import Sequence

import numpy as np

_SMALL = 1e-9


def count_bytes(text: str, /, *, encoding: str = "utf-8") -> int:
    """The number of bytes of a text."""
    return len(text.encode(encoding))


def cosine_similarity(embedding_a: Sequence[float], embedding_b: Sequence[float]) -> float:
    """The cosine of the angle between two vectors."""
    return pairwise_cosine_similarity([embedding_a], [embedding_b])[0][0]


def pairwise_cosine_similarity(embeddings_a: Sequence[Sequence[float]], embeddings_b: Sequence[Sequence[float]]) -> list[list[float]]:
    """The cosine of each vector of the first list with each of the second: one list for each vector of the first."""
    first, second = (
        vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + _SMALL) for vectors in (np.array(embeddings_a), np.array(embeddings_b))
    )
    found: list[list[float]] = (first @ second.T).tolist()
    return found
