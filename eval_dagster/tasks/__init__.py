"""The task API: base classes of benchmarks, their samples, and the styles of their prompts."""

from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.doc import Doc
from eval_dagster.tasks.doc_task import DocTask, doc_task
from eval_dagster.tasks.idk import IDKMixin
from eval_dagster.tasks.samples import TaskRow, build_samples
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle

__all__ = ["BPBStyle", "BaseTask", "ClozeStyle", "Doc", "DocTask", "IDKMixin", "MCStyle", "TaskRow", "build_samples", "doc_task"]
