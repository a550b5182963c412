"""The outcome of a command that evaluates."""

from collections import Counter
from dataclasses import dataclass, field

from eval_dagster.gate.records import GateResult


@dataclass(kw_only=True)
class RunSummary:
    """The outcome of a command's runs."""

    run_ids: list[str] = field(default_factory=list)
    """The runs in Dagster; none if everything was current and Dagster knew it."""
    failures: list[str] = field(default_factory=list)
    """One message for each partition that failed."""
    not_evaluated: list[str] = field(default_factory=list)
    """One message for each partition that a limit, such as a cap on the cost, kept from being evaluated."""
    cached: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were current."""
    made: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were materialized."""
    warnings: list[str] = field(default_factory=list)
    gate: GateResult | None = None
    """The judgement of the suite; null without a suite, or if the gate failed."""
    report: str | None = None
    """Path of the report's page."""
