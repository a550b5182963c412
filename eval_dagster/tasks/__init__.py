"""The task API: base classes of benchmarks, their samples, and the styles of their prompts."""

from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.doc import Doc, DocTask, doc_task
from eval_dagster.tasks.samples import TaskRow, build_samples
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle

__all__ = ["BPBStyle", "BaseTask", "ClozeStyle", "Doc", "DocTask", "IDKMixin", "MCStyle", "TaskRow", "build_samples", "doc_task"]
