"""Deletes old results: the files that each policy keeps, with reasons."""

from eval_dagster.retention.pruning import CACHE, TRIALS, Policy, Prunable, Pruning, plan, prune
from eval_dagster.retention.retained import Keep, Reason

__all__ = ["CACHE", "TRIALS", "Keep", "Policy", "Prunable", "Pruning", "Reason", "plan", "prune"]
