"""Findings about an eval: in the footer of its prompts, and with its metrics, so that they can be shown without the task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import BaseMetric, bounds_of
from eval_dagster.prompts.lint import LINT_VERSION, SHOWN_SAMPLES
from eval_dagster.records import Check, Finding, Status
from eval_dagster.stages.score_columns import Scores
from eval_dagster.texts.figures import interval

FINDINGS_NOTE = "findings"
"""The note with the findings in a file of prompts, as JSON."""
_MANY_TIES = 0.05
"""Share of the samples from which ties are a finding. A model of low precision has some by chance."""


def findings_note(findings: Sequence[Finding]) -> str:
    """Findings as text, with the version of the checks."""
    return json.dumps({"version": LINT_VERSION, "findings": [asdict(each) for each in findings]}, ensure_ascii=False)


def stored_findings(prompts: LakeFile) -> list[Finding] | None:
    """The findings in a file of prompts. None if this version of the checks has not examined it."""
    note = json.loads(prompts.info.notes.get(FINDINGS_NOTE, "{}"))
    if note.get("version") != LINT_VERSION:
        return None
    return [_finding(each) for each in note["findings"]]


def findings_column(
    prompts: LakeFile,
    metrics: Sequence[MetricRow],
    scores: Scores,
    classes: Sequence[type[BaseMetric]],
    of_answers: Sequence[Finding],
) -> str | None:
    """All findings as JSON, for the headline's row of `metrics`. None if the prompts were not examined.

    `classes` are the metrics of the task, and `of_answers` what `answer_findings` returns.
    """
    found = stored_findings(prompts)
    if found is None:
        return None
    of_scores = [ties_finding(metrics, scores), bounds_finding(metrics, scores, classes)]
    return json.dumps([asdict(each) for each in [*found, *of_answers, *filter(None, of_scores)]], ensure_ascii=False)


def read_findings(column: str) -> list[Finding]:
    """The findings in the column `findings` of a row of `metrics`."""
    return [_finding(each) for each in json.loads(column)]


def _finding(stored: Mapping[str, Any]) -> Finding:
    return Finding(**{**stored, "check": Check(stored["check"]), "status": Status(stored["status"])})


def bounds_finding(metrics: Sequence[MetricRow], scores: Scores, classes: Sequence[type[BaseMetric]]) -> Finding | None:
    """Whether the headline's interval exceeds 0 to 1 although all values lie within, because its class declares no bounds."""
    row = next((row for row in metrics if row["is_headline"]), None)
    if row is None or row["ci_low"] is None or row["ci_high"] is None or 0.0 <= row["ci_low"] <= row["ci_high"] <= 1.0:
        return None
    name = row["metric"]
    values = scores.values[scores.metrics.is_text(name) & ~np.isnan(scores.values)]
    declared = [bounds_of(metric) for metric in classes if name == metric.NAME or name.startswith(f"{metric.NAME}/")]
    if not len(values) or not ((values >= 0.0) & (values <= 1.0)).all() or any(declared):
        return None
    return Finding(
        check=Check.NO_BOUNDS,
        status=Status.FOUND,
        n=len(values),
        n_of=len(values),
        seen=f"all {len(values)} values of {name} lie between 0 and 1, and its class declares no BOUNDS",
        effect=f"the interval, {interval(row['ci_low'], row['ci_high'])}, does not know where they end",
        advice="write BOUNDS = (0.0, 1.0), or what they can be, in the class of the metric",
    )


def ties_finding(metrics: Sequence[MetricRow], scores: Scores) -> Finding | None:
    """Whether a model leaves many choices equal, by the rows of the headline. None if the headline does not compare choices."""
    row = next((row for row in metrics if row["is_headline"]), None)
    if row is None or row["n_ties"] is None or not row["n"]:
        return None
    tied, total = row["n_ties"], row["n"]
    if tied < _MANY_TIES * total:
        return Finding(check=Check.TIES, status=Status.CLEAN, seen="", n=tied, n_of=total)
    shown = np.flatnonzero(scores.metrics.is_text(row["metric"]) & scores.is_tied)[:SHOWN_SAMPLES].tolist()
    samples = [scores.samples.text(code) for code in scores.samples.codes[shown]]
    return Finding(
        check=Check.TIES,
        status=Status.FOUND,
        n=tied,
        n_of=total,
        sample_id=samples[0] if samples else None,
        sample_name=scores.sample_names[shown[0]].as_py() if shown else None,
        sample_ids=samples,
        seen=f"the model finds several choices equally good in {tied} of {total} samples",
        effect="their score is that of a draw: 1/k of k choices, or for metrics of other packages that of the first choice",
        advice="look at its log-probabilities of such a sample; a model that answers from a table ties where the table has no answer",
    )
