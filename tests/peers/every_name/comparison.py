"""A release of eval-framework through this project, and how it differs from what the release makes by itself."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from eval_dagster.errors import RequirementError, TaskDefinitionError
from eval_dagster.peers.packages import EvalFrameworkRegistry
from eval_dagster.prompts.formatters import ConcatFormatter, Llama3Formatter
from eval_dagster.records import Row, TaskSample
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, DatasetSplit, RenderSettings, ScoreError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import stand_in  # noqa: E402 - a folder of scripts, which the other environment runs, too

REAL = os.environ.get("REAL_ROWS")
_MOST_ROWS = 10**6 if REAL else stand_in.SAMPLES


def itself(
    python: str, output: Path, names: Sequence[str] = (), shots: str = "0,2", real: Path | None = None, seconds: float = 3000
) -> Any:
    """The results of the release by itself, by name and number of examples; its names alone if `shots` is `names`."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ({"REAL_ROWS": str(real)} if real else {})
    command = [python, str(HERE / "release_itself.py"), str(output), shots, *names]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=seconds)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(output.read_text())


@dataclass
class Compared:
    """How one name compares."""

    name: str
    prompts: int = 0
    values: int = 0
    errors: int = 0
    """Values that have an error on both sides."""
    differences: list[str] = field(default_factory=list)
    refused: str | None = None
    lacking: set[str] = field(default_factory=set)
    """What this machine or the sandbox lacks for some values."""

    def state(self) -> str:
        """One word."""
        if self.refused:
            return "refused"
        if self.differences:
            return "different"
        return "partly" if self.lacking else "equal"


def opened(split: DatasetSplit) -> list[Row]:
    """The rows of a split: as the reader of datasets gives them, with the types of JSON."""
    if real := os.environ.get("REAL_ROWS"):
        import pyarrow.parquet as parquet

        folder = Path(real) / split.path
        folder = folder / split.config if split.config else next(iter(sorted(folder.iterdir())))
        rows = parquet.read_table(next(folder.glob(f"{split.split}-*.parquet"))).to_pylist()
    else:
        rows = stand_in.rows_of(split.path, split.config)[split.split]
    return json.loads(json.dumps(rows))  # type: ignore[no-any-return]


def compared(registry: EvalFrameworkRegistry, name: str, by_shots: Mapping[str, Any]) -> Compared:
    """Compare one name at all numbers of examples, and its values without examples."""
    outcome = Compared(name)
    try:
        benchmark = registry.benchmark(name, Path())
    except TaskDefinitionError as problem:
        outcome.refused = str(problem)
        return outcome
    for shots, wanted in by_shots.items():
        if "error" in wanted:
            _refused_alike(benchmark, int(shots), wanted, outcome)
            continue
        samples = iter(wanted["samples"])
        asked: dict[str, tuple[BenchmarkRows, list[tuple[Row, list[TaskSample]]]]] = {}
        for subject in wanted["subjects"]:
            read = benchmark.read(subject, opened, fewshot=int(shots) > 0)
            rows = BenchmarkRows(evaluated=json.loads(json.dumps(read.evaluated)), examples=json.loads(json.dumps(read.examples)))
            own = asked[subject] = (rows, [])
            of_subject = [each for each in wanted["samples"] if each["subject"] == subject]
            for row, questions in _rendered(benchmark, subject, rows, int(shots), len(of_subject)):
                own[1].append((row, questions))
                for question in questions:
                    _prompt_differences(question, next(samples, {}), wanted, outcome, f"{shots} shots")
        if next(samples, None) is not None:
            outcome.differences.append(f"{shots} shots: fewer samples")
        for kind, theirs in wanted["values"].items():
            if not outcome.differences:
                _value_differences(benchmark, asked, kind, theirs, outcome)
    return outcome


def _refused_alike(benchmark: Any, shots: int, wanted: Mapping[str, Any], outcome: Compared) -> None:
    """The release refuses a number of examples: so does the description."""
    try:
        splits = benchmark.splits(benchmark.subjects[0], fewshot=shots > 0)
    except TaskDefinitionError as problem:
        if "0-shot only" not in str(problem):
            outcome.differences.append(f"{shots} shots: {problem}")
        return
    outcome.differences.append(f"{shots} shots: the release raises {wanted['error']}, and ours opens {splits}")


def _rendered(benchmark: Any, subject: str, rows: BenchmarkRows, shots: int, most: int) -> Iterator[tuple[Row, list[TaskSample]]]:
    """The questions about the rows, in both formats of prompts, up to a number of questions."""
    plain, llama3 = (
        benchmark.render(subject, rows, RenderSettings(num_fewshot=shots, seed=0, examples_per_sample=False, formatter=formatter))
        for formatter in (ConcatFormatter(), Llama3Formatter())
    )
    count = 0
    for row, questions, headed in zip(rows.evaluated, plain, llama3, strict=False):
        if isinstance(questions, BaseException):
            raise questions
        pairs = list(zip(questions, headed, strict=True))[: most - count]
        count += len(pairs)
        for question, other in pairs:
            object.__setattr__(question, "headed", other.prompt)
        yield row, [question for question, _ in pairs]
        if count >= most:
            return


def _prompt_differences(question: TaskSample, theirs: Mapping[str, Any], wanted: Mapping[str, Any], outcome: Compared, where: str) -> None:
    if not theirs:
        outcome.differences.append(f"{where}: more samples")
        return
    is_choice = question.possible_completions is not None
    truth = theirs["ground_truth"]
    truths = [truth] if isinstance(truth, str) else list(truth or [])
    pairs = {
        "messages": ([[each.role.value, each.content] for each in question.messages], theirs["messages"]),
        "plain": (question.prompt, theirs["plain"]),
        "llama3": (getattr(question, "headed", None), theirs["llama3"]),
    }
    if is_choice:
        choices = list(question.possible_completions or ())
        gold = [position for position, choice in enumerate(theirs["choices"]) if choice in truths]
        pairs |= {"choices": (choices, theirs["choices"]), "gold": (list(question.gold_indices or ()), gold)}
    else:
        pairs |= {
            "ground_truth": (question.ground_truth, truth),
            "stops": (list(question.stop_sequences or ()), wanted["stops"]),
            "max_tokens": (question.max_tokens, wanted["max_tokens"]),
        }
    outcome.prompts += 1
    for part, (ours, expected) in pairs.items():
        if ours != expected:
            outcome.differences.append(f"{where}: {part}: {ours!r} is not {expected!r}")


def _answer(question: TaskSample, kind: str) -> Answer:
    prompt, context = str(question.prompt), dict(question.context)  # type: ignore[arg-type, call-overload]
    if question.possible_completions is not None:
        choices = list(question.possible_completions)
        truths = [choices[position] for position in question.gold_indices or ()]
        values = stand_in.loglikelihoods(kind, prompt, choices, truths)
        return Answer(prompt=prompt, choices=choices, loglikelihoods=values, is_greedy=[False] * len(choices), context=context)
    truth = question.ground_truth
    truths = [truth] if isinstance(truth, str) else list(truth or [])  # type: ignore[arg-type]
    return Answer(prompt=prompt, texts=[stand_in.text(kind, prompt, truths)], context=context)


def _value_differences(
    benchmark: Any,
    asked: Mapping[str, tuple[BenchmarkRows, list[tuple[Row, list[TaskSample]]]]],
    kind: str,
    theirs: Sequence[Mapping[str, Any]],
    outcome: Compared,
) -> None:
    remaining = iter(theirs)
    of_all = {metric.name: metric.aggregate for metric in benchmark.metrics if metric.aggregate is not None}
    items: dict[str, list[Any]] = {name: [] for name in of_all}
    expected_of_all: dict[str, list[float]] = {name: [] for name in of_all}
    for subject, (rows, several) in asked.items():
        answered = [(row, [_answer(question, kind) for question in questions]) for row, questions in several]
        try:
            with sandbox_policy(SandboxPolicy(allowed=True)):
                found = benchmark.score_all(subject, rows, answered)
        except RequirementError as problem:
            outcome.lacking.add(str(problem))
            return
        for (_, questions), ours in zip(several, found, strict=True):
            samples = [next(remaining) for _ in questions]
            expected = _of_row(samples)
            if isinstance(ours, Exception):
                outcome.differences.append(f"{kind}: {ours}")
                continue
            for name in of_all:
                items[name].append(ours[name])
                expected_of_all[name] += [value for sample in samples for value in sample.get(name, [])]
            _row_differences({name: value for name, value in ours.items() if name not in of_all}, expected, of_all, kind, outcome)
    for name, aggregate in of_all.items():
        if expected_of_all[name]:
            ours, mean = aggregate(items[name]), fmean(expected_of_all[name])
            outcome.values += 1
            if not math.isclose(ours, mean, abs_tol=1e-12):
                outcome.differences.append(f"{kind}: {name}: {ours} is not {mean}")


def _of_row(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means over the samples of a row; a text for an error."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        several = [sample[name] for sample in samples if name in sample]
        errors = [each[1] for each in several if each[0] == "error"]
        found[name] = errors[0] if errors else fmean(value for each in several for value in each)
    return found


def _row_differences(ours: Mapping[str, Any], expected: Mapping[str, Any], left: Mapping[str, Any], kind: str, outcome: Compared) -> None:
    for name in dict.fromkeys([*ours, *expected]):
        if name in left:
            continue
        mine, theirs = ours.get(name), expected.get(name)
        if isinstance(mine, ScoreError) and ("sandbox has Python's standard library" in mine.reason):
            outcome.lacking.add(mine.reason.partition(": ")[2])
        elif isinstance(mine, ScoreError) and isinstance(theirs, str):
            outcome.errors += 1
        elif isinstance(mine, float) and isinstance(theirs, float) and math.isclose(mine, theirs, abs_tol=1e-12):
            outcome.values += 1
        else:
            outcome.differences.append(f"{kind}: {name}: {mine!r} is not {theirs!r}")


def table(outcomes: Sequence[Compared]) -> str:
    """A line for each name, and the counts."""
    lines = []
    for each in outcomes:
        note = each.refused or "; ".join(sorted(each.lacking)) or (each.differences[0] if each.differences else "")
        counted = f"{each.prompts:5} prompts {each.values:6} values {each.errors:4} errors"
        lines.append(f"{each.name:40} {each.state():9} {counted}  {note[:300]}".rstrip())
    states = [each.state() for each in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("equal", "partly", "refused", "different") if state in states)
    return "\n".join([*lines, f"{len(outcomes)} names: {counts}"])


__all__ = ["Compared", "compared", "itself", "table"]
