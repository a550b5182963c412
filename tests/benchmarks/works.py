"""What is measured: the requests of five pieces of work, the same strings for both sides."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from eval_dagster.errors import EvalDagsterError
from eval_dagster.project import Project
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.snapshot import materialize_snapshot

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED") or ROOT.parent / "shared")
_STOPS = ("Question:", "</s>", "<|im_end|>")
_TEXT_TOKENS = 3_000


@dataclass(frozen=True, kw_only=True)
class Work:
    """A row of the table."""

    name: str
    title: str
    times: float
    """How many times as fast as lm-eval it shall be."""
    settings: dict[str, Any] | None = None
    """The eval whose prompts are asked, as in evals.yaml; none for the generated texts."""
    apart: str = ""
    """What, beside the number of questions, is not as an eval has it that names its task alone."""
    new_tokens: int = 128
    """Most tokens of a generated text."""
    texts: int = 20
    """Generated texts whose log-probability is asked, where no eval is."""
    memory: float = 1.2
    """The most of lm-eval's peak memory above the weights that it may take."""

    def title_at(self, scale: float) -> str:
        return self.title if scale == 1 else f"{self.title} (x {scale:g})"


WORKS = (
    Work(
        name="mmlu_few",
        title="MMLU 5-shot, 3 subjects x 20 questions",
        times=6,
        settings={"task": "mmlu", "subjects": ["anatomy", "astronomy", "marketing"], "limit": 20},
    ),
    Work(name="mmlu_all", title="MMLU 5-shot, 57 subjects x 5 questions", times=3, settings={"task": "mmlu", "limit": 5}),
    Work(name="hellaswag", title="HellaSwag 0-shot, 200 questions", times=2.2, settings={"task": "hellaswag", "limit": 200}),
    Work(
        name="gsm8k",
        title="GSM8K 5-shot, 32 questions, 128 new tokens",
        times=2,
        settings={"task": "gsm8k", "limit": 32},
        apart="128 new tokens rather than 256, and lm-eval's stop sequences",
    ),
    Work(name="perplexity", title="Rolling perplexity, 20 texts of 3,000 tokens", times=1, apart="invented texts", memory=0.5),
)

GPU_WORKS = (
    Work(name="mmlu", title="MMLU 5-shot, 57 subjects x 20 questions", times=4, settings={"task": "mmlu", "limit": 20}),
    Work(name="hellaswag", title="HellaSwag 0-shot, 500 questions", times=2, settings={"task": "hellaswag", "limit": 500}),
    Work(
        name="gsm8k", title="GSM8K 5-shot, 64 questions, 256 new tokens", times=1, settings={"task": "gsm8k", "limit": 64}, new_tokens=256
    ),
    Work(name="perplexity", title="Rolling perplexity, 50 texts of 3,000 tokens", times=1, texts=50),
)
"""What is measured of the engines on a GPU."""


class MissingRowsError(Exception):
    """The dataset of a work is not there."""


def requests_of(work: Work, scale: float, tokenizer: Any, home: Path) -> dict[str, Any]:
    """The requests of a work as both sides read them: `kind`, `items` of one context each, and how text is generated.

    Raises:
        MissingRowsError: Says where they were looked for.
    """
    if work.settings is None:
        texts = list(_texts(max(1, round(work.texts * scale)), tokenizer))
        return {"kind": "perplexity", "items": [{"context": text} for text in texts]}
    limit = max(1, round(work.settings["limit"] * scale))
    prompts = _prompts(work.name, {**work.settings, "limit": limit}, home)
    if prompts[0].request.choices is None:
        items: list[dict[str, Any]] = [{"context": prompt.request.prompt} for prompt in prompts]
        return {"kind": "text", "items": items, "stops": list(_STOPS), "max_tokens": work.new_tokens}
    items = [
        {"context": prompt.request.prompt, "continuations": list(prompt.request.choices), "gold": list(prompt.gold_indices)}
        for prompt in prompts
    ]
    return {"kind": "choices", "items": items}


def _prompts(name: str, settings: dict[str, Any], home: Path) -> list[Any]:
    """An eval's prompts as plain text. Examples and their number are those of an eval that does not say otherwise."""
    mirror = SHARED / "datasets"
    if not mirror.is_dir():
        raise MissingRowsError(f"no dataset rows: {mirror} is not there (EVAL_DAGSTER_SHARED names its parent)")
    config = home / "evals.yaml"
    content = {"models": {"any": {"backend": "scripted"}}, "evals": {name: settings}, "datasets": {"mirror": str(mirror)}}
    config.write_text(yaml.safe_dump(content), "utf-8")
    project = Project.open(config_path=config, home=home)
    try:
        project.check([name], ["any"])
    except EvalDagsterError as error:
        raise MissingRowsError(str(error)) from error
    materialize_snapshot(project, name, "benchmark")
    return list(render_eval(project, name, rendering_of(project, name, "any")))


def _texts(count: int, tokenizer: Any) -> Iterator[str]:
    """Texts of invented sentences, each of nearly the same number of tokens."""
    random = Random("perplexity")
    words = ["the", "river", "of", "stone", "and", "a", "lamp", "in", "winter", "engine", "letters", "harbour", "was", "copper", "near"]
    for _ in range(count):
        sentences = (" ".join(random.choices(words, k=random.randint(5, 15))).capitalize() + "." for _ in range(_TEXT_TOKENS // 5))
        yield tokenizer.decode(tokenizer.encode(" ".join(sentences), add_special_tokens=False)[:_TEXT_TOKENS])
