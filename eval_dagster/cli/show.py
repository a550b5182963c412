"""The commands `models` and `show`."""

import typer

from eval_dagster.cli.console import errors, print_records, print_table, say
from eval_dagster.cli.prompt_view import print_prompt
from eval_dagster.config.models import OpenAIModel, TransformersModel, VllmModel
from eval_dagster.errors import EvalDagsterError, ModelNotFoundError, RequirementError, UsageError
from eval_dagster.models.base import ExplainedHandle
from eval_dagster.models.known_ways import known_ways
from eval_dagster.models.usage import GenerationUsage, ScoringUsage
from eval_dagster.project import Project
from eval_dagster.rendered_prompt import RenderedPrompt
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.snapshot import materialize_snapshot
from eval_dagster.suggestions import did_you_mean

_UNKNOWN = "checked on load"


def list_models() -> None:
    """Print the models of evals.yaml, whether engine and files of each are there, and what would compute its answers.

    How it computes is checked on load; what the last load found holds for the same version. Exit status 2 if something is missing.
    """
    project = Project.open()
    rows, ways, problems = [], [], []
    for name, model in project.config.models.items():
        try:
            handle = project.handle(name)
            handle.check()
            version = handle.version()
            state = f"ready, version {version}"
            if isinstance(handle, ExplainedHandle):
                known = known_ways(project.home, name, version)
                scoring, generation = (known.get(kind, _UNKNOWN) for kind in (ScoringUsage.kind, GenerationUsage.kind))
                ways.append((name, handle.engine(), scoring, generation))
        except EvalDagsterError as error:
            missing: dict[type[EvalDagsterError], str] = {ModelNotFoundError: "not there", RequirementError: "not installed"}
            state = missing.get(type(error), "refused")
            problems.append(str(error))
        match model:
            case TransformersModel() | VllmModel():
                source = [str(part) for part in model.source.model_dump().values()]
                if isinstance(model, VllmModel) and model.adapter:
                    source += ["+", *(str(part) for part in model.adapter.model_dump().values())]
            case OpenAIModel():
                source = [model.base_url, model.model]
            case _:
                source = []
        dtype = model.dtype if isinstance(model, TransformersModel | VllmModel) else ""
        rows.append((name, model.backend, " ".join(source), dtype, model.prompt_format, state))
    print_table("Models", ("model", "backend", "source", "dtype", "prompt format", "state"), rows)
    if ways:
        print_records("What would compute them", ("model", "engine", "log-probabilities", "texts"), ways)
    for problem in problems:
        say(errors, "error", problem, style="red")
    if problems:
        raise typer.Exit(2)


def show_prompt(eval_name: str, model: str | None, sample: str) -> None:
    """Print the prompt of one sample of an eval: by its number, its id, or its own name. Samples of one name are all printed."""
    project = Project.open()
    model = model or next(iter(project.config.models))
    project.model(model)
    project.check([eval_name], [])
    materialize_snapshot(project, eval_name, "show")
    rendering = rendering_of(project, eval_name, model)
    number = int(sample) if sample.isascii() and sample.isdecimal() else None
    found: list[tuple[int, RenderedPrompt]] = []
    if number is not None:
        found = list(enumerate(render_eval(project, eval_name, rendering, most=number + 1)))[number : number + 1]
    if not found:  # the name of a sample may be a number
        prompts = list(enumerate(render_eval(project, eval_name, rendering)))
        found = [each for each in prompts if sample in (each[1].sample_id, each[1].sample_name)]
        if not found:
            names = [prompt.sample_name for _, prompt in prompts if prompt.sample_name]
            raise UsageError(
                f"eval {eval_name} has no sample {sample!r} among its {len(prompts)}{did_you_mean(sample, names)}; --sample takes "
                f"0 to {len(prompts) - 1}, a sample id, or the sample's own name (ID_FIELD of the task)"
            )
    for place, prompt in found:
        named = f"{prompt.sample_name}, {prompt.sample_id}" if prompt.sample_name else prompt.sample_id
        print_prompt(prompt, f"{eval_name} · {model} · sample {place} ({named})", num_fewshot=project.num_fewshot(eval_name))
