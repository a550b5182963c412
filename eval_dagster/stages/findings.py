"""Findings about an eval: in the footer of its prompts, and with its metrics, so that they are shown without the task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from eval_dagster.lake.files import LakeFile
from eval_dagster.prompts.lint import LINT_VERSION
from eval_dagster.records import Check, Finding, Status

FINDINGS_NOTE = "findings"
"""The note of a file of prompts that holds the findings, as JSON."""
_MANY_TIES = 0.05
"""Part of the samples from which on ties are a finding. A model of low precision has some by chance."""


def findings_note(findings: Sequence[Finding]) -> str:
    """Findings as text, with the version of the checks."""
    return json.dumps({"version": LINT_VERSION, "findings": [asdict(each) for each in findings]}, ensure_ascii=False)


def stored_findings(prompts: LakeFile) -> list[Finding] | None:
    """The findings in a file of prompts; None where there are none of this version of the checks."""
    note = json.loads(prompts.info.notes.get(FINDINGS_NOTE, "{}"))
    if note.get("version") != LINT_VERSION:
        return None
    return [Finding(**{**each, "check": Check(each["check"]), "status": Status(each["status"])}) for each in note["findings"]]


def findings_column(prompts: LakeFile, metrics: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]]) -> str | None:
    """The findings of the prompts and of the answers to them, as JSON for the headline's row of `metrics`; None if nobody looked."""
    found = stored_findings(prompts)
    if found is None:
        return None
    ties = ties_finding(metrics, scores)
    return json.dumps([asdict(each) for each in [*found, *([ties] if ties else [])]], ensure_ascii=False)


def ties_finding(metrics: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]] = ()) -> Finding | None:
    """Whether a model leaves many choices equal, by the rows of the headline; None where it compares no choices."""
    row = next((row for row in metrics if row["is_headline"]), None)
    if row is None or row["n_ties"] is None or not row["n"]:
        return None
    tied, total = row["n_ties"], row["n"]
    if tied < _MANY_TIES * total:
        return Finding(check=Check.TIES, status=Status.CLEAN, seen="", n=tied, n_of=total)
    name = row["metric"]
    sample = next((each for each in scores if each["metric"] == name and '"tie"' in (each["explanation"] or "")), {})
    return Finding(
        check=Check.TIES,
        status=Status.FOUND,
        n=tied,
        n_of=total,
        sample_id=sample.get("sample_id"),
        sample_name=sample.get("sample_name"),
        seen=f"the model finds several choices equally good in {tied} of {total} samples",
        effect="their score is that of a draw: 1/k of k choices, or for metrics of other packages that of the first choice",
        advice="look at its log-probabilities of such a sample; a model that answers from a table ties where the table has no answer",
    )
