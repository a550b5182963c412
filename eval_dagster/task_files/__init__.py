"""Loads tasks from Python files and packages."""

from eval_dagster.task_files.loading import load_task, select_subjects
from eval_dagster.task_files.registries import registered_tasks

__all__ = ["load_task", "registered_tasks", "select_subjects"]
