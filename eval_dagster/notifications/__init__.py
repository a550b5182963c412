"""Notifications of nightly runs: their texts, and their delivery through Apprise."""

from eval_dagster.notifications.delivery import NoticeOutcome, notify
from eval_dagster.notifications.messages import (
    failure_notice,
    incomplete_notice,
    not_evaluated_notice,
    regression_notice,
    skipped_notice,
    trial_notice,
    unproven_notice,
)
from eval_dagster.notifications.outbox import Kind

__all__ = [
    "Kind",
    "NoticeOutcome",
    "failure_notice",
    "incomplete_notice",
    "not_evaluated_notice",
    "notify",
    "regression_notice",
    "skipped_notice",
    "trial_notice",
    "unproven_notice",
]
