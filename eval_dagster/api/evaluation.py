"""Evaluation of tasks by a call, without evals.yaml."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval_dagster.api.choices import ChosenEval, ChosenModel, ModelChoice, TaskChoice, choose_eval, choose_models
from eval_dagster.api.results import Results, read_results
from eval_dagster.errors import UsageError
from eval_dagster.pipeline import evaluate as evaluate_partitions
from eval_dagster.progress.bars import RichReporter
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project, default_config_path
from eval_dagster.stages.partition import STAGES, StageFailure


def evaluate(
    task: TaskChoice | Sequence[TaskChoice],
    model: ModelChoice | Sequence[ModelChoice] | Mapping[str, ModelChoice],
    *,
    subjects: Sequence[str] | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
    seed: int = 0,
    name: str | None = None,
    home: Path | str | None = None,
    progress: bool = True,
    **settings: Any,
) -> Results:
    """Evaluate tasks with models, and read the results.

    The home is the command line's, or a new one: known answers come from its cache, and the results are in its lake, its SQL
    relations and its MLflow runs like all others. If the folder has an evals.yaml, its models can be named, and its mirror of datasets and
    its permission to run code apply.

    Args:
        task: A name such as `"mmlu"`, `"path/to/file.py:Class"`, or a class; or several of these.
        model: A name of evals.yaml, a folder, a GGUF file, `"organisation/name@commit"` of the Hub, a mapping as in evals.yaml, or a
            function from a `Request` to a text (or to one log-probability a choice); or several of these, in a list or under names.
        subjects: Subjects of the task; by default all.
        limit: Most samples of each subject; by default all.
        num_fewshot: Number of examples before each question; by default the customary number of the task.
        seed: Seeds the choice of examples, and sampling.
        name: Name of a single eval in the results; by default the task's name.
        home: The folder of all state; by default `EVAL_DAGSTER_HOME` or `.eval_dagster`.
        progress: Whether progress is shown on standard error.
        settings: Other keys of an eval in evals.yaml, such as `fewshot_sets`.

    Raises:
        UsageError: A task, a model or a setting is wrong, or nothing could be evaluated. The message names every problem.
    """
    open_project = Project.open if default_config_path().exists() else Project.bare
    project = open_project(home=Path(home) if home is not None else None)
    keys = {"subjects": subjects, "limit": limit, "num_fewshot": num_fewshot, "seed": seed, **settings}
    tasks = [task] if isinstance(task, str | type) else list(task)
    if name is not None and len(tasks) != 1:
        raise UsageError(f"found name={name!r} for {len(tasks)} tasks; expected one task, or no name")
    evals = {each.name: each for each in (choose_eval(task, keys, name, project) for task in tasks)}
    models = choose_models(model, project)
    _require_names_of_their_own(evals, models, project)
    chosen = _with(project, evals, models)
    partitions = [(eval_name, each.name) for each in models for eval_name in evals]
    chosen.check(list(evals), [each.name for each in models])
    reporter = RichReporter() if progress else SilentReporter()
    outcomes = list(evaluate_partitions(chosen, partitions, stages=set(STAGES), run_id=uuid.uuid4().hex, reporter=reporter))
    failures = [outcome for outcome in outcomes if isinstance(outcome, StageFailure)]
    failed = {(failure.eval_name, failure.model) for failure in failures}
    done = [partition for partition in partitions if partition not in failed]
    if not done:
        raise UsageError("\n".join(f"{each.stage} {each.eval_name}|{each.model}: {each.message}" for each in failures))
    return read_results(chosen.lake, done, failures)


def _require_names_of_their_own(evals: Mapping[str, ChosenEval], models: Sequence[ChosenModel], project: Project) -> None:
    """Results of evals.yaml are not replaced by another eval or model of the same name."""
    for name, chosen in evals.items():
        known = project.config.evals.get(name)
        if known is not None and (known != chosen.config or project.task(name) is not chosen.task):
            raise UsageError(
                f"evals.yaml has an eval {name!r} with other settings, whose published results this would replace; "
                f"name this one otherwise: name='{name}-trial'"
            )
    for model in models:
        known_model = project.config.models.get(model.name)
        if known_model is not None and (known_model != model.section or model.handle is not None):
            raise UsageError(f"evals.yaml has another model {model.name!r}; name this one otherwise: {{'another-name': ...}}")


def _with(project: Project, evals: Mapping[str, ChosenEval], models: Sequence[ChosenModel]) -> Project:
    """The project with these evals and models instead of the ones in its evals.yaml."""
    settings = {name: chosen.config.model_copy(update={"task": name}) for name, chosen in evals.items()}
    return replace(
        project,
        config=project.config.model_copy(update={"evals": settings, "models": {each.name: each.section for each in models}}),
        tasks={**project.tasks, **{name: chosen.task for name, chosen in evals.items()}},
        _handles={each.name: each.handle for each in models if each.handle is not None},
        _loaded_tasks={},
    )
