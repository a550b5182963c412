"""The commands `models`, `checkpoints` and `show`, and prompts as people see them."""

from collections.abc import Iterator
from typing import Annotated

import typer

from eval_dagster.cli.console import errors, out, print_records, print_table, say
from eval_dagster.cli.tables import print_screenful
from eval_dagster.config.models import ImportedModel, OpenAIModel, TransformersModel, VllmModel
from eval_dagster.errors import EvalDagsterError, ModelNotFoundError, RequirementError, UsageError
from eval_dagster.models.usage import GenerationUsage, ScoringUsage, known_ways
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, Role
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.imported import require_task
from eval_dagster.stages.shown_prompts import shown_prompts
from eval_dagster.stages.snapshot import materialize_snapshot
from eval_dagster.tasks.episodes import EpisodeTask
from eval_dagster.texts.figures import did_you_mean

_UNKNOWN = "checked on load"
_TAIL = 12
"""Characters at the end of a prompt that are shown with their white space."""


def list_models() -> None:
    """Print the models of evals.yaml, whether engine and files of each are there, and what would compute its answers.

    How it computes is checked on load; what the last load found holds for the same version. Exit status 2 if something is missing.
    """
    project = Project.open()
    rows, ways, problems = [], [], []
    for name, model in project.config.models.items():
        try:
            handle = project.handle(name)
            if not project.deletion(name):
                handle.check()
            version = handle.version()
            state = f"{'deleted' if project.deletion(name) else 'ready'}, version {version}"
            if isinstance(model, ImportedModel):
                state = "imported: cannot be asked"
            if engine := handle.engine():
                known = known_ways(project.home, name, version)
                scoring, generation = (known.get(kind, _UNKNOWN) for kind in (ScoringUsage.kind, GenerationUsage.kind))
                ways.append((name, engine, scoring, generation))
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
    print_screenful("Models", ("model", "backend", "source", "dtype", "prompt format", "state"), rows)
    if ways:
        print_records("What would compute them", ("model", "engine", "log-probabilities", "texts"), ways)
    for problem in problems:
        say(errors, "error", problem, style="red")
    if problems:
        raise typer.Exit(2)


def list_checkpoints(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A training run of evals.yaml; all if not given.")] = None,
) -> None:
    """Look for the checkpoints of training runs, record new ones, and print all with their states, the newest first.

    Raises:
        UsageError: evals.yaml has no such training run.
    """
    project = Project.open()
    runs = project.training_runs
    if run is not None and run not in runs:
        raise UsageError(f"unknown training run {run!r}{did_you_mean(run, runs)}; models with `checkpoints`: {', '.join(runs) or 'none'}")
    if not runs:
        out.print("No model of evals.yaml has `checkpoints`.")
    project.checkpoints()
    found = [each for each in Project.open().checkpoints() if run in (None, each.family)]
    for name in dict.fromkeys(each.family for each in found):
        rows = []
        for each in (each for each in found if each.family == name):
            is_evaluated = each.seen is not None and each.seen.evaluated_at is not None
            state = "evaluated" if each.state == "ready" and is_evaluated else each.state
            also = "evaluated before" if is_evaluated and state != "evaluated" else ""
            seen = f"{each.seen.seen_at:%Y-%m-%d %H:%M}" if each.seen else ""
            rows.append((f"{each.step:,}" if each.step >= 0 else "", state, seen, each.place, "; ".join(filter(None, (each.reason, also)))))
        print_screenful(f"Checkpoints of {name}", ("step", "state", "seen (UTC)", "place", "reason"), rows, right=("step",))
    for name in runs:
        if run in (None, name) and not any(each.family == name for each in found):
            out.print(f"{name}: no checkpoint is there yet.")


def show_prompt(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model with the prompt format; by default the first one.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="NAME|ID|N", help="Own name of the sample, its id, or its number from 0; by default the first one."),
    ] = None,
) -> None:
    """Print the prompt of one sample of an eval: by its own name, its id or its number, the first one by default.

    Samples of one name are all printed, and by a number the variants of the prompt, too. A number that is a name means the name.
    """
    project = Project.open()
    model = model or next(iter(project.config.models))
    project.model(model)
    project.check([eval_name], [])
    require_task(project, eval_name)
    materialize_snapshot(project, eval_name, "show")
    place = 0 if sample is None else int(sample) if sample.isascii() and sample.isdecimal() else None
    prompts = shown_prompts(project, eval_name, model, place, is_name=sample is not None)
    found = [] if sample is None else prompts.called(sample)
    if place is not None and place < len(prompts.ids):
        if found and place not in found:
            other = prompts.names[place] or prompts.ids[place]
            out.print(f"{sample} is the own name of this sample; sample number {sample} is another: --sample {other}", soft_wrap=True)
        elif not found or found == [place]:  # by its number, in all variants
            found = prompts.variants_of(place)
    if not found:
        names = [name for name in prompts.names if name]
        raise UsageError(
            f"eval {eval_name} has no sample {sample!r} among its {len(prompts.ids)}{did_you_mean(str(sample), names)}; --sample takes "
            f"the sample's own name (ID_FIELD of the task), a sample id, or 0 to {len(prompts.ids) - 1}"
        )
    for number, prompt in zip(found, prompts.at(found), strict=True):
        named = f"{prompt.sample_name}, {prompt.sample_id}" if prompt.sample_name else prompt.sample_id
        print_prompt(prompt, f"{eval_name} · {model} · sample {number} ({named})", num_fewshot=project.num_fewshot(eval_name))
        if issubclass(task := project.task(eval_name), EpisodeTask):
            tools = ", ".join(each.__name__ for each in task.TOOLS) or "none"
            out.print(f"{'episode':<14}it begins with this; at most {task.MAX_TURNS} requests; tools: {tools}", soft_wrap=True)


def print_prompt(prompt: RenderedPrompt, title: str, *, num_fewshot: int) -> None:
    """Print the exact prompt of a model, the kind of answer, and the gold answer; or the error of a prompt that failed."""
    request = prompt.request
    out.rule(title, align="left")
    out.print(request.prompt, soft_wrap=True)
    out.rule(f"ends with {request.prompt[-_TAIL:]!r}", align="left")
    if request.choices is not None:
        out.print("scored, as continuations of the prompt:")
        rows = [(index, repr(choice), "✓" if index in prompt.gold_indices else "") for index, choice in enumerate(request.choices)]
        print_table(None, ("", "choice", "gold"), rows)
    for name, text in _facts(prompt, num_fewshot):
        out.print(f"{name:<14}{text}", soft_wrap=True)


def _facts(prompt: RenderedPrompt, num_fewshot: int) -> Iterator[tuple[str, str]]:
    request = prompt.request
    if prompt.error is not None:
        yield "error", prompt.error
    if prompt.variant is not None:
        yield "variant", prompt.variant
    if request.generation is not None:
        yield "generated", generation_words(request.generation)
    if request.perplexity:
        yield "scored", "every token of this text"
    elif request.choices is None:
        yield "gold", ", ".join(map(repr, prompt.ground_truths)) or "none"
    if request.unconditioned_prompt is not None:
        yield "unconditioned", f"the choices are scored after {request.unconditioned_prompt!r}, too"
    if prompt.is_system_merged:
        yield "system", "at the beginning of the first user turn (the chat template has no system role, or `system_role: merge`)"
    if request.images:
        yield "images", str(len(request.images))
    turns = sum(message.role is Role.USER for message in prompt.messages) - 1
    # The code that writes a whole prompt has no turns for its examples.
    names = f" ({', '.join(prompt.fewshot_ids)})" if prompt.fewshot_ids else ""
    yield "examples", f"{turns}{names}" if turns > 0 else str(num_fewshot or "none")
    yield "request", request.request_id


def generation_words(settings: GenerationSettings) -> str:
    """The number of texts, their ends and lengths, and how they are sampled."""
    length = "as many tokens as the context holds" if settings.max_tokens is None else f"at most {settings.max_tokens} tokens"
    parts = ["one text" if settings.num_samples == 1 else f"{settings.num_samples} texts", length]
    if settings.stop_sequences:
        parts.append(f"until {' or '.join(map(repr, settings.stop_sequences))}")
    if settings.grammar is not None:
        parts.append(f"of the form {settings.grammar.kind} {settings.grammar.value}")
    parts.append("greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}, seed {settings.seed}")
    drawn = {"top_k": settings.top_k, "top_p": settings.top_p}
    return ", ".join([*parts, *(f"{name} {value}" for name, value in drawn.items() if value is not None)])
