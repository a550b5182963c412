"""The results of a stage for a partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.file_reading import read_head, read_rows
from eval_dagster.texts.figures import counted

_SAMPLES = 5
_MOST_METRICS = 20
"""Rows of `scores` per sample that are searched for the headline metric."""
STAGES: Mapping[str, str] = {
    "dataset_snapshot": "samples",
    "rendered_prompts": "prompts",
    "model_outputs": "responses",
    "sample_scores": "scores",
    "task_metrics": "metrics",
}
"""Stage -> the table of the lake that it writes, in the order of the data flow."""
_MOST_KINDS = 3
_MOST_CHARACTERS = 400
"""Maximum characters of an error, because an exception may quote a whole text. The relation `errors` has the full text."""


def answer_text(response: Mapping[str, Any], choices: list[str] | None) -> str | None:
    """The answer of a model: its first text, or the choice with the highest log-probability. None if there is neither.

    `response` has the columns `text`, `text_post_processed` and `choice_logprobs` of `responses`; `choices` are the prompt's.
    """
    if response["text"]:
        return str((response["text_post_processed"] or response["text"])[0])
    logprobs = response["choice_logprobs"]
    return str(choices[max(range(len(logprobs)), key=logprobs.__getitem__)]) if choices and logprobs else None


def preview_samples(prompts: LakeFile, outputs: LakeFile, scores: LakeFile, headline: str) -> list[dict[str, Any]]:
    """The first samples under the metric `headline`, the short columns first. If a sample has several values, the first is shown."""
    asked = {
        row["sample_id"]: row
        for row in read_head(prompts.path, _SAMPLES, ["sample_id", "sample_name", "subject", "prompt", "choices", "gold"])
    }
    columns = ["sample_id", "text", "text_post_processed", "choice_logprobs"]
    answered = {row["sample_id"]: row for row in read_head(outputs.path, _SAMPLES, columns)}
    scored: dict[str, Mapping[str, Any]] = {}
    for row in read_head(scores.path, _SAMPLES * _MOST_METRICS, ["sample_id", "metric", "value", "error"]):
        if row["metric"] == headline or row["metric"].startswith(f"{headline}/"):
            scored.setdefault(row["sample_id"], row)
    return [
        {
            "score": scored[name]["value"],
            "answer": answer_text(answered[name], prompt["choices"]),
            "gold": prompt["gold"][0] if len(prompt["gold"] or []) == 1 else prompt["gold"],
            "question": prompt["prompt"],
            "error": scored[name]["error"],
            "metric": scored[name]["metric"],
            "subject": prompt["subject"],
            "sample_id": name,
            **({"sample_name": prompt["sample_name"]} if prompt.get("sample_name") else {}),
        }
        for name, prompt in asked.items()
        if name in answered and name in scored
    ]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A partition that is now current."""

    stage: str
    eval_name: str
    model: str | None
    file: LakeFile
    cached: bool
    """Whether the current file was already up to date, so nothing was computed."""
    preview: Sequence[Mapping[str, Any]] = ()
    """A few rows, shown in the user interfaces."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name -> URL of pages that show more."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Name -> a file in the home that shows more."""
    warnings: Sequence[str] = ()
    """Problems that did not prevent the result."""


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A partition that could not be made."""

    stage: str
    eval_name: str
    model: str | None
    message: str
    is_limited: bool = False
    """Whether a limit set by a person, such as a cap on the cost, kept requests from being sent. Then it is not a failure."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """If the model was asked, the counts of this run, named as in the files of `model_outputs`, and `requests_left`."""

    @property
    def status(self) -> Literal["failed", "not evaluated"]:
        """How the partition ended."""
        return "not evaluated" if self.is_limited else "failed"


def partition_key(eval_name: str, model: str | None) -> str:
    """The Dagster partition key of a result."""
    return f"{eval_name}|{model}" if model else eval_name


def error_warning(eval_name: str, model: str, scores: LakeFile) -> str | None:
    """The number of samples without a score under some metric, with reasons. None if all have one.

    Errors of one class are counted together, and the first one is shown with its cure. A sample with errors of several classes counts once
    in the total.
    """
    failed = int(scores.info.counts["errors"])
    if not failed:
        return None
    rows = [row for row in read_rows(scores.path, ["sample_id", "error"]) if row["error"] is not None]
    samples: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for row in rows:
        kind = row["error"].partition(":")[0]
        samples.setdefault(kind, set()).add(row["sample_id"])
        first.setdefault(kind, _short(row["error"]))
    total = int(scores.info.counts["samples"])
    which = f"all {total} samples have" if failed == total else f"{failed} of {total} samples {'has' if failed == 1 else 'have'}"
    return f"{partition_key(eval_name, model)}: {which} an error and no score: {_reasons(samples, first)}"


def _reasons(samples: dict[str, set[str]], first: dict[str, str]) -> str:
    """The errors by class, the most frequent first."""
    kinds: Sequence[str] = sorted(samples, key=lambda kind: -len(samples[kind]))
    if len(kinds) == 1:
        return first[kinds[0]]
    shown = [f"{len(samples[kind])} × {first[kind]}" for kind in kinds[:_MOST_KINDS]]
    left = len(kinds) - len(shown)
    return "; ".join([*shown, *([f"and {counted(left, 'other kind')}"] if left else [])])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
