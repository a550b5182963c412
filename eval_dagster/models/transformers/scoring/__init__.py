"""Log-probabilities of choices and texts, computed over prefix trees."""

from eval_dagster.models.transformers.scoring.engine import PendingJob, ScoringEngine, ScoringJob, choices_job, perplexity_job

__all__ = ["PendingJob", "ScoringEngine", "ScoringJob", "choices_job", "perplexity_job"]
