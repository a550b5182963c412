"""Metrics are computed from columns: in little memory, and whatever order the files have."""

import tracemalloc
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import table_of
from eval_dagster.lake.format.parquet_files import read_rows, write_parquet
from eval_dagster.lake.lineage import asked_versions
from eval_dagster.metrics.completion import ExactNumber
from eval_dagster.records import Check, Status
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.answer_checks import answer_findings
from eval_dagster.stages.answer_columns import Answers, read_answers
from eval_dagster.stages.answer_figures import with_answer_figures
from eval_dagster.stages.score_columns import Labels, Scores, read_scores, scores_in
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.hashes import stable_hash

MANY = 60_000


class Sums(BaseTask[str]):
    NAME = "Sums"
    METRICS = (ExactNumber,)


def files_of(folder: Path, count: int) -> tuple[Path, Path, Path]:
    """Prompts, responses and scores of questions of which each seventh is cut off, and each fifth wrong."""
    prompts, outputs, scores = (folder / f"{name}.parquet" for name in ("prompts", "responses", "scores"))
    ids = [f"s{n * 7919 % 1_000_003:015d}" for n in range(count)]
    texts = [["The sum is"] if n % 7 == 0 else [f"The sum is {n + 7 if n % 5 else n}"] for n in range(count)]
    asked = [
        {"sample_id": name, "source_id": name, "messages": f"What is {n} + 7? «é»", "gold": [f" {n + 7}"], "response_type": "completion"}
        for n, name in enumerate(ids)
    ]
    given = [
        {"sample_id": name, "text": text, "finish_reason": ["length" if n % 7 == 0 else "stop"], "truncated_tokens": 0}
        for n, (name, text) in enumerate(zip(ids, texts, strict=True))
    ]
    scored = [
        {
            "sample_id": name,
            "source_id": name,
            "cluster": name,
            "subject": ("odd", "even")[n % 2],
            "metric": "exact_number",
            "value": float(n % 7 != 0 and n % 5 != 0),
            "explanation": None if n % 7 == 0 else f'{{"answer": ["{n + 7 if n % 5 else n}"]}}',
        }
        for n, name in enumerate(ids)
    ]
    for path, table, rows in ((prompts, "prompts", asked), (outputs, "responses", given), (scores, "scores", scored)):
        write_parquet(path, table_of(table, rows))
    return prompts, outputs, scores


def shuffled(path: Path) -> Path:
    """The same rows in another file, in another order."""
    rows = read_rows(path)
    order = np.random.default_rng(0).permutation(len(rows))
    other = path.with_name(f"shuffled-{path.name}")
    write_parquet(other, table_of(path.stem, [rows[place] for place in order]))
    return other


def columns_of(answers: Answers, scores: Scores) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(Answers):
        column = getattr(answers, field.name)
        if field.name == "samples":
            found[field.name] = [scores.samples.text(code) for code in column]
        elif isinstance(column, Labels):
            found[field.name] = [column.text(code) for code in column.codes]
        elif isinstance(column, np.ndarray):
            found[field.name] = column.tolist()
        elif isinstance(column, pa.ChunkedArray):
            found[field.name] = column.to_pylist()
    return {**found, **{name: shares.tolist() for name, shares in answers.unparsed.items()}}


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    prompts, outputs, scored = files_of(tmp_path, 200)
    found = []
    for given, scores_file in ((outputs, scored), (shuffled(outputs), shuffled(scored))):
        scores = read_scores(scores_file)
        found.append(columns_of(read_answers(Sums, prompts, given, scores_file, scores), scores))
    assert repr(found[0]) == repr(found[1])
    assert found[0]["cut_off"] == [float(n % 7 == 0) for n in range(200)]
    assert found[0]["shown"][:8] == [None, "8", "9", "10", "11", "5", "13", None]


def test_a_prompt_without_an_answer_is_named(tmp_path: Path) -> None:
    prompts, outputs, scored = files_of(tmp_path, 5)
    rows = read_rows(outputs)
    write_parquet(outputs, table_of("responses", rows[:3] + rows[4:]))
    with pytest.raises(LakeError, match=f"has no answer to the sample {rows[3]['sample_id']}; materialize model_outputs"):
        read_answers(Sums, prompts, outputs, scored, read_scores(scored))


@pytest.mark.long
def test_many_samples_take_little_memory(tmp_path: Path) -> None:
    prompts, outputs, scored = files_of(tmp_path, MANY)
    tracemalloc.start()
    scores = read_scores(scored)
    rows = metric_rows(Sums, scores)
    answers = read_answers(Sums, prompts, outputs, scored, scores)
    figures = with_answer_figures(Sums, rows, scores, answers)
    found = {each.check: each for each in answer_findings(Sums, figures, scores, answers, None)}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A row of scores as a dictionary has more than a kilobyte; a batch of responses is there as dictionaries.
    assert peak + pa.total_allocated_bytes() < 20e6 + 400 * MANY
    [row] = [each for each in figures if each["aggregation"] == "micro" and each["subject"] is None]
    assert (row["n"], row["n_cut_off"]) == (MANY, len(range(0, MANY, 7)))
    assert found[Check.CUT_OFF].status is Status.FOUND
    assert found[Check.CUT_OFF].sample_ids == [each["sample_id"] for each in read_rows(prompts)[:35:7]]


def test_an_eval_without_samples_has_no_metrics(tmp_path: Path) -> None:
    prompts, outputs, scored = files_of(tmp_path, 0)
    scores = read_scores(scored)
    answers = read_answers(Sums, prompts, outputs, scored, scores)
    assert (len(scores), len(answers), metric_rows(Sums, scores)) == (0, 0, [])
    assert with_answer_figures(Sums, [], scores, answers) == []
    assert all(each.status is not Status.FOUND for each in answer_findings(Sums, [], scores, answers, None))


def test_the_version_of_the_questions_has_the_order_of_their_samples(tmp_path: Path) -> None:
    prompts, _, _ = files_of(tmp_path, 300)
    names = ("sample_id", "messages", "choices", "gold", "gold_index", "context")
    rows = sorted(read_rows(prompts), key=lambda row: str(row["sample_id"]))
    questions = [[[text.strip() for text in row[name]] if name == "gold" else row[name] for name in names] for row in rows]
    expected = stable_hash([row["sample_id"] for row in rows]), stable_hash(questions)
    assert asked_versions(prompts) == asked_versions(shuffled(prompts)) == expected
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_rows_of_scores_that_are_left_out_leave_no_trace() -> None:
    rows = [
        {"sample_id": f"s{n}", "metric": metric, "subject": subject, "value": float(n), "cluster": f"s{n}"}
        for n, (metric, subject) in enumerate([("b/x", "two"), ("a", "one"), ("b", "two"), ("a", "three")])
    ]
    scores = scores_in(rows)
    assert {name: places.tolist() for name, places in scores.bases.items()} == {"b": [0, 2], "a": [1, 3]}
    some = scores.where(np.array([False, True, False, True]))
    assert list(some.bases) == ["a"]
    assert [some.subjects.text(code) for code in some.subjects.used()] == ["one", "three"]
    assert some.values.tolist() == [1.0, 3.0]
    assert not pc.any(some.items.is_valid()).as_py()
