"""The common beginning of two sequences of tokens."""


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens at the front of two sequences that are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
