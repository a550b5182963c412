"""Answers of the engines, kept with the version of the engine that gave them: `engine_goldens.json`.

A version of an engine stands for its numbers in the cache. So these may change only where it changes, or where a package does whose version
is part of a model's version, too.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_dagster.models.base import Model
from eval_dagster.records import Request

FILE = Path(__file__).with_name("engine_goldens.json")

ROUNDING = {"float32": 2e-4, "bfloat16": 0.05}
"""How far a log-probability or a logit may be off on another processor, relative to itself where it is above 1.

Measured without vector instructions (`ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41`) against those of an EPYC: 1e-5 in float32
over all architectures, 0.0044 in bfloat16; all texts were equal.
"""

_MOST = 40
"""Numbers of a list that are kept one by one."""

_FIELDS = {
    "logprobs": "logprobs",
    "tokens": "token_logprobs",
    "greedy": "argmax_logits_eq_gold",
    "prior": "unconditioned_logprobs",
    "logits": "logits",
    "text": "text",
    "output": "output_tokens",
    "finish": "finish_reason",
    "truncated": "truncated_tokens_count",
    "error": "error",
}


def answers_of(model: Model, requests: Sequence[Request]) -> dict[str, Any]:
    """What a model answers, by request, as JSON."""
    answers = {request.request_id: response for request, response in model.respond(requests)}
    found = {name: {short: getattr(answers[name], field) for short, field in _FIELDS.items()} for name in sorted(answers)}
    return {name: {key: _short(value) for key, value in fields.items() if value} for name, fields in found.items()}


def _short(value: Any) -> Any:
    """As JSON, in the digits that count; of many numbers their sum and some of them."""
    if isinstance(value, float):
        return round(value, 5)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value
    parts = [_short(part) for part in value]
    if len(parts) > _MOST and isinstance(parts[0], float):
        return [round(math.fsum(value), 5), *parts[:: _MOST // 2]]
    return parts


def differences(golden: Any, seen: Any, tolerance: float, where: str = "") -> Iterable[str]:
    """Where two JSON-like values differ, numbers that are no integers by more than the tolerance."""
    if isinstance(golden, float) and isinstance(seen, float):
        if not (math.isclose(golden, seen, rel_tol=tolerance, abs_tol=tolerance) or golden == seen):
            yield f"{where}: {golden:.6f} became {seen:.6f}"
    elif isinstance(golden, dict) and isinstance(seen, dict):
        for key in sorted({*golden, *seen}):
            yield from differences(golden.get(key), seen.get(key), tolerance, f"{where}/{key}")
    elif isinstance(golden, list) and isinstance(seen, list) and len(golden) == len(seen):
        for index, (one, other) in enumerate(zip(golden, seen, strict=True)):
            yield from differences(one, other, tolerance, f"{where}[{index}]")
    elif golden != seen:
        yield f"{where}: {golden!r} became {seen!r}"


def problem_of(
    name: str,
    seen: Mapping[str, Any],
    *,
    engine: str,
    version: int,
    packages: Mapping[str, Any],
    tolerance: float,
    update: bool,
    file: Path,
) -> str | None:
    """Compare answers with the golden ones, and write them where that is asked for and allowed. Returns what is wrong and what to do.

    Args:
        name: Of the case.
        seen: Its answers now.
        engine: Where its version stands.
        version: Of the engine, now.
        packages: Versions of the packages that the answers depend on, now.
        tolerance: For numbers.
        update: Whether to write the answers where they moved and the version did, too.
        file: The golden file.
    """
    goldens = json.loads(file.read_text("utf-8")) if file.exists() else {}
    golden = goldens.get(name)
    made_by = {"engine": version, "packages": dict(packages)}
    moved = list(differences(golden["answers"], seen, tolerance)) if golden else ["there is no golden answer"]
    if golden and not moved and golden["made_by"]["engine"] == version:
        return None
    shown = "; ".join(moved[:5]) + (f" and {len(moved) - 5} more" if len(moved) > 5 else "")
    if golden and moved and golden["made_by"] == made_by:
        return (
            f"{name}: answers moved and the version of the engine did not: {shown}. The cache would go on giving the old ones. "
            f"If this was not intended, undo it. Otherwise raise {engine} and run `make goldens`."
        )
    if update:
        goldens[name] = {"made_by": made_by, "answers": seen}
        file.write_text(_text(goldens), "utf-8")
        return None
    return (
        f"{name}: the golden answers are of {golden and golden['made_by']}, now it is {made_by}: {shown or 'no number moved'}. "
        "Look through the differences and run `make goldens`."
    )


def _text(goldens: Mapping[str, Any]) -> str:
    """One line a request, so that a diff can be read."""
    cases = []
    for name in sorted(goldens):
        lines = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(goldens[name]["answers"].items())]
        answers = "{\n" + ",\n".join(lines) + "\n  }"
        cases.append(
            f' {json.dumps(name)}: {{\n  "made_by": {json.dumps(goldens[name]["made_by"], sort_keys=True)},\n  "answers": {answers}\n }}'
        )
    return "{\n" + ",\n".join(cases) + "\n}\n"
