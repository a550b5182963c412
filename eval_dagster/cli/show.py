"""The commands `models` and `show`."""

from eval_dagster.cli.console import print_table
from eval_dagster.cli.prompt_view import print_prompt
from eval_dagster.config.models import OpenAIModel, TransformersModel, VllmModel
from eval_dagster.errors import ModelNotFoundError, UsageError
from eval_dagster.project import Project
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.snapshot import materialize_snapshot


def list_models() -> None:
    """Print the models of evals.yaml, and whether each can be loaded."""
    project = Project.open()
    rows = []
    for name, model in project.config.models.items():
        try:
            project.handle(name).check()
            state = f"ready, version {project.handle(name).version()}"
        except ModelNotFoundError as error:
            state = f"not there: {error}"
        except UsageError as error:
            state = f"refused: {error}"
        match model:
            case TransformersModel() | VllmModel():
                source = [str(part) for part in model.source.model_dump().values()]
            case OpenAIModel():
                source = [model.base_url, model.model]
            case _:
                source = []
        dtype = model.dtype if isinstance(model, TransformersModel | VllmModel) else ""
        rows.append((name, model.backend, " ".join(source), dtype, model.prompt_format, state))
    print_table("Models", ("model", "backend", "source", "dtype", "prompt format", "state"), rows)


def show_prompt(eval_name: str, model: str | None, number: int) -> None:
    """Print the prompt of one sample of an eval."""
    project = Project.open()
    model = model or next(iter(project.config.models))
    project.model(model)
    project.check([eval_name], [])
    materialize_snapshot(project, eval_name, "show")
    prompts = render_eval(project, eval_name, rendering_of(project, eval_name, model), most=number + 1)
    if number >= len(prompts):
        raise UsageError(f"eval {eval_name} has {len(prompts)} samples; --sample takes 0 to {len(prompts) - 1}, found {number}")
    title = f"{eval_name} · {model} · sample {number} ({prompts[number].sample_id})"
    print_prompt(prompts[number], title, num_fewshot=project.num_fewshot(eval_name))
