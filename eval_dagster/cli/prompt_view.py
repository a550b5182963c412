"""Prints prompts for people."""

from collections.abc import Iterator

from eval_dagster.cli.console import out, print_table
from eval_dagster.records import GenerationSettings, Role
from eval_dagster.records.rendered_prompt import RenderedPrompt

_TAIL = 12
"""Characters at the end of a prompt that are shown with their white space."""


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
