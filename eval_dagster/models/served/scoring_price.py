"""Counts the calls and the tokens of scoring, for servers that need a call for each token."""

from eval_dagster.config.models import Price
from eval_dagster.models.served.scoring import ScorePlan
from eval_dagster.records import Request


class ScoringPrice:
    """The calls of many requests and the tokens of their prompts."""

    def __init__(self) -> None:
        self.calls = 0
        self._choices = self._texts = self._prompt_tokens = 0

    def add(self, request: Request, plan: ScorePlan) -> None:
        """Count a request."""
        self._texts += request.perplexity
        self._choices += 0 if request.perplexity else len(plan.scored) + len(plan.alone)
        self.calls += sum(plan.calls_of_pair)
        self._prompt_tokens += plan.sent_tokens

    def line(self, model: str, price: Price | None) -> str:
        """One line for a reader, with the cost where there is a price. Tokens that the server has in its cache may cost less."""
        what = [f"{number:,} {name}" for number, name in ((self._choices, "choices"), (self._texts, "texts")) if number]
        cost = ""
        if price is not None:
            dollars = (self._prompt_tokens * price.input + self.calls * price.output) / 1_000_000
            cost = f" (${dollars:,.2f})" if dollars >= 0.01 else " (less than $0.01)"
        return (
            f"scoring {' and '.join(what)} by {model} needs {self.calls:,} calls of one token, {self._prompt_tokens:,} prompt tokens{cost}"
        )
