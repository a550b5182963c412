"""How eval-framework turns several attempts at a prompt into one value. Here `RepeatedMetric` and `pass_at_k` do that."""

from typing import Any, Protocol

from scipy.special import comb


class Aggregator(Protocol):
    """Turns all rows of a problem into one row."""

    name: str

    def __call__(self, response_df: Any, identifier_columns: list[str], **kwargs: Any) -> Any:
        """Return a table with one row for each problem."""
        ...


def closed_form_passatk(n: int, c: int, k: int) -> float:
    """The probability that one of `k` attempts is correct, if `c` of `n` are (Chen et al. 2021, arXiv:2107.03374)."""
    if n < k:
        return float(c > 0)
    return 1.0 if n - c < k else float(1.0 - comb(n - c, k) / comb(n, k))


class _Aggregator:
    def __call__(self, response_df: Any, identifier_columns: list[str], **kwargs: Any) -> Any:  # noqa: ARG002 - the protocol's
        """Return a table with one row for each problem: its value, and the first value of each other column."""
        others = {name: (name, "first") for name in response_df.columns if name not in (*identifier_columns, "value")}
        return response_df.groupby(identifier_columns).agg(**others, value=("value", self._value)).reset_index()

    def _value(self, values: Any) -> float:
        raise NotImplementedError


class PassAtK(_Aggregator):
    """pass@k of values that are 0 or 1."""

    def __init__(self, k: int = 1) -> None:
        self.k = k
        self.name = f"Pass@{k}"

    def _value(self, values: Any) -> float:
        return closed_form_passatk(len(values), int(values.sum()), self.k)


class IdentifierMean(_Aggregator):
    """The mean."""

    name = "IdentifierMean"

    def _value(self, values: Any) -> float:
        return float(values.mean())


class Identity:
    """All rows as they are."""

    name = "Identity"

    def __call__(self, response_df: Any, identifier_columns: list[str], **kwargs: Any) -> Any:  # noqa: ARG002 - the protocol's
        """Return the table."""
        return response_df
