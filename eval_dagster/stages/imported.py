"""Results that were imported: a stage makes nothing, and shows what is there."""

from eval_dagster.errors import NotEvaluatedError, UsageError
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult, error_warning

IMPORT_COMMAND = "`eval-dagster import-inspect`"
"""The command that adds results, in the message that there are none."""


def imported_result(project: Project, stage: str, eval_name: str, model: str | None) -> StageResult:
    """The current result of a stage of an eval whose results are imported.

    Raises:
        NotEvaluatedError: No result was imported.
        LakeError: Its file is damaged.
    """
    file = project.lake.current(STAGES[stage], eval_name, model)
    if file is None:
        of = eval_name if model is None else f"{eval_name} on {model}"
        raise NotEvaluatedError(f"the results of {eval_name} are imported, and there are none of {of}; {IMPORT_COMMAND} adds them")
    warning = error_warning(eval_name, model, file) if stage == "sample_scores" and model is not None else None
    return StageResult(stage=stage, eval_name=eval_name, model=model, file=file, cached=True, warnings=[warning] if warning else [])


def require_task(project: Project, eval_name: str) -> None:
    """Raise `UsageError` for an eval whose results are imported: it has no dataset to make prompts of."""
    if eval_name in project.config.evals and project.is_imported(eval_name):
        raise UsageError(
            f"the results of {eval_name} are imported, and its prompts were made elsewhere; `eval-dagster samples {eval_name} MODEL` shows "
            "them with their answers"
        )
