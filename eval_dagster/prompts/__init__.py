"""Prompts: few-shot examples, rendering, formatters, and the checks of all of these."""

from eval_dagster.prompts.checks import formatting_problems
from eval_dagster.prompts.fewshot import FewshotPool
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample

__all__ = ["FewshotPool", "Rendering", "fewshot_pool", "formatter_for", "formatting_problems", "render_sample"]
