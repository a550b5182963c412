"""What a page of a result holds, read back, and results to make pages of."""

import base64
import gzip
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from eval_dagster.results.samples import Compared, ResultSamples

AT = datetime(2026, 3, 2, 5, tzinfo=UTC)


def content_of(page: bytes) -> dict[str, Any]:
    """The content of a page."""
    found = re.search(rb'id="data">([^<]*)<', page)
    assert found is not None
    return dict(json.loads(gzip.decompress(base64.b64decode(found[1]))))


def result_of(samples: list[dict[str, Any]], *, total: int | None = None, notes: tuple[str, ...] = ()) -> ResultSamples:
    """A result of invented samples under the metric `exact_match`."""
    figures = {"value": 0.5, "stderr": 0.1, "ci_low": 0.3, "ci_high": 0.7, "n": len(samples), "n_errors": 0}
    metric = {
        "metric": "exact_match",
        "higher_is_better": True,
        "is_headline": True,
        "has_scores": True,
        "now": figures,
        "before": {**figures, "value": 0.75},
    }
    return ResultSamples(
        eval="trivia",
        model="mine",
        materialized_at=AT,
        run_id="night",
        against=Compared(model="mine", materialized_at=AT - timedelta(days=1), differs=("model",)),
        headline="exact_match",
        metrics=[metric],
        samples=samples,
        total=len(samples) if total is None else total,
        notes=notes,
    )


def sample_of(number: int, question: str, now: str, before: str, *, gold: str = "yes", **more: Any) -> dict[str, Any]:
    """A sample that is right where its answer is the gold one."""
    scores = [float(answer == gold) for answer in (now, before)]
    flip = {} if scores[0] == scores[1] else {"flip": "worse" if scores[0] < scores[1] else "better"}
    return {
        "sample_id": f"s{number:06}",
        "subject": f"part {number % 3}",
        "response_type": "completion",
        "turns": [["user", question]],
        "prompt": f"Instructions.\n\n{question}\nAnswer:",
        "gold": [gold],
        "now": {"text": [now], "finish_reason": ["stop"], "output_tokens": len(now.split()), "scores": {"exact_match": scores[0]}},
        "before": {"text": [before], "finish_reason": ["stop"], "scores": {"exact_match": scores[1]}},
        **flip,
        **more,
    }
