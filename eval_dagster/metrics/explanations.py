"""Why a score is what it is: the answer that a metric found, a judge's words, the output of a program."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Literal, TypeAlias

from eval_dagster.metrics.base import MetricResult, full_name
from eval_dagster.records import Score

Kind: TypeAlias = Literal["answer", "judge_prompt", "judge_response", "program_output", "tie"]
Explanation: TypeAlias = dict[str, list[str | None]]
"""The texts of each `Kind`, in the order in which they came: one for each text of the model that was scored. Null if none was found."""

MOST_CHARACTERS = 20_000
"""Most characters of a text that are kept. Of a longer one, the middle is left out."""
_collected: ContextVar[dict[str | None, Explanation] | None] = ContextVar("explanations", default=None)


def explain(kind: Kind, text: str | None, name: str | None = None) -> None:
    """Keep why the score that is being calculated is what it is. Elsewhere it has no effect.

    A metric calls this within `calculate`, a benchmark within `score`.

    Args:
        kind: `answer` for the answer that the metric found in the model's text, `judge_prompt` and `judge_response` for what a judge was
            asked and said, `program_output` for what a program wrote and how it ended, `tie` for several choices that are equally good:
            such a sample counts in `n_ties`.
        text: Null if the metric looked for an answer and found none.
        name: The full name of one of the metric's values; by default the first one has the explanation.
    """
    collected = _collected.get()
    if collected is not None:
        # `str`, since an explanation of another type must not cost the value.
        collected.setdefault(name, {}).setdefault(kind, []).append(None if text is None else shortened(str(text)))


def explain_results(metric_name: str, result: object) -> None:
    """Keep the judges' words and the programs' output of a result of `calculate` that has some."""
    for part in result if isinstance(result, list | tuple) else [result]:
        if isinstance(part, MetricResult):
            texts: dict[Kind, str | None] = {
                "judge_prompt": part.llm_judge_prompt,
                "judge_response": part.llm_judge_response,
                "program_output": part.code_execution_trace,
            }
            for kind, text in texts.items():
                if text is not None:
                    explain(kind, text, full_name(metric_name, part.metric_name))


@contextmanager
def explained() -> Iterator[dict[str | None, Explanation]]:
    """Collect what `explain` is called with in the block, by the name of the value."""
    collected: dict[str | None, Explanation] = {}
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def with_explanations(scores: Sequence[Score], collected: Mapping[str | None, Explanation]) -> list[Score]:
    """Scores with the collected explanations. One without a name, or with an unknown one, explains the first score."""
    names = {score.metric for score in scores}
    of_name: dict[str, Explanation] = {}
    for name, explanation in collected.items() if scores else ():
        own = of_name.setdefault(name if name in names else scores[0].metric, {})
        for kind, texts in explanation.items():
            own.setdefault(kind, []).extend(texts)
    return [replace(score, explanation=of_name[score.metric]) if score.metric in of_name else score for score in scores]


def shortened(text: str) -> str:
    """A text without its middle, if it is too long."""
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n… [{left_out:,} characters left out] …\n{text[-half:]}"
