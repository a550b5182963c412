"""The first samples of an eval with question, answer, gold and score side by side."""

from collections.abc import Mapping
from typing import Any

from eval_dagster.lake.files import LakeFile, read_head

_SAMPLES = 5
_MOST_METRICS = 20
"""Rows of `scores` a sample that are searched for the headline metric."""


def answer_text(response: Mapping[str, Any], choices: list[str] | None) -> str | None:
    """The answer of a model: its first text, or the choice of the highest log-probability; None if there is neither.

    `response` has the columns `text`, `text_post_processed` and `choice_logprobs` of `responses`; `choices` are those of the prompt.
    """
    if response["text"]:
        return str((response["text_post_processed"] or response["text"])[0])
    logprobs = response["choice_logprobs"]
    return str(choices[max(range(len(logprobs)), key=logprobs.__getitem__)]) if choices and logprobs else None


def preview_samples(prompts: LakeFile, outputs: LakeFile, scores: LakeFile, headline: str) -> list[dict[str, Any]]:
    """The first samples under the metric `headline`, the short columns first. Of several values of a sample the first is shown."""
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
