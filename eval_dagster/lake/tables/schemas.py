"""The schemas of the lake's tables, made of the fields of their records. The SQL relations have the same column names."""

import ast
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from eval_dagster.lake.tables.columns import AnswerRow, MetricRow, PromptRow, ResponseRow, SampleRow, ScoreRow
from eval_dagster.lake.tables.events import Attempt, CheckpointRow, EndpointStateRow, HumanLabel, NoticeRow
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.history_looks import HistoryLook
from eval_dagster.records.judgements import Acceptance, ChangedSample, FreshSample, Judged, JudgedInRun, Look, NightPlan, Regression

_TYPES: Mapping[object, pa.DataType] = {
    str: pa.string(),
    float: pa.float64(),
    int: pa.int64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us", tz="UTC"),
}

RECORDS: Mapping[str, tuple[type, ...]] = {
    "samples": (SampleRow,),
    "prompts": (PromptRow,),
    "responses": (ResponseRow,),
    "scores": (ScoreRow,),
    "metrics": (MetricRow,),
    "attempts": (Attempt,),
    "notices": (NoticeRow,),
    "acceptances": (Acceptance,),
    "human_labels": (HumanLabel,),
    "endpoint_states": (EndpointStateRow,),
    "checkpoints": (CheckpointRow,),
    "confirmations": (JudgedInRun, FreshSample),
    "regressions": (JudgedInRun, Regression),
    "aggregate_regressions": (JudgedInRun, AggregateRegression),
    "sample_changes": (Judged, ChangedSample),
    "looks": (Judged, Look),
    "night_plans": (NightPlan,),
    "history_looks": (HistoryLook,),
}
"""All tables of the lake that make up the catalog, with the records whose fields are their columns."""


def schema_of(*records: type) -> pa.Schema:
    """The Arrow schema of a table, by the annotations of dataclasses and typed dictionaries. All columns can be null.

    If several records have a field of one name, the first one counts. `Annotated` names an Arrow type.

    Raises:
        TypeError: A field has a type that files cannot hold.
    """
    hints = {name: hint for record in reversed(records) for name, hint in get_type_hints(record, include_extras=True).items()}
    names = dict.fromkeys(name for record in records for name in get_type_hints(record))
    return pa.schema([pa.field(name, _arrow_type(hints[name])) for name in names])


COMMON: Mapping[str, str] = {
    "eval": "Name of the eval in evals.yaml.",
    "model": "Name of the model in evals.yaml.",
    "suite": "Name of the suite in evals.yaml.",
    "sample_id": "Identifies the sample by the hash of its subject and content.",
    "sample_name": "The sample's own name: the value of the task's `ID_FIELD`, or the `id` of its `Doc`. Null without one. Several samples "
    "may have one name.",
    "source_id": "The sample of the dataset that this one is made of. They differ if a row gives several questions.",
    "subject": "Subject of the benchmark. Null for all subjects together.",
    "request_id": "Hash of all that is sent to the model.",
    "metric": "Name of the metric.",
    "error": "Class and message of what went wrong. Null if nothing did.",
    "materialized_at": "Time of the materialization.",
    "judged_at": "Time of the judgement.",
    "run_id": "The run.",
    "ci_low": "Lower end of the 95 % interval.",
    "ci_high": "Upper end of the 95 % interval.",
    "p_value": "Two-sided p-value.",
    "higher_is_better": "Whether a higher value is better.",
}
"""The meanings of columns that many tables have."""


def column_texts(*records: type) -> dict[str, str]:
    """The meanings of a table's columns: the docstrings below the fields of its records. Those of `COMMON` are not among them."""
    texts = [_field_texts(record) for record in reversed(records)]
    return {column: text for each in texts for column, text in each.items()}


def _field_texts(record: type) -> dict[str, str]:
    return _texts_of(record.__name__, ast.parse(inspect.getsource(sys.modules[record.__module__])), record)


def _texts_of(name: str, module: ast.Module, section: type) -> dict[str, str]:
    # A typed dictionary does not keep its bases, so they are read from the source if they are of the same module.
    body = next((node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if body is None:
        parent = next(each for each in section.__mro__ if each.__name__ == name)
        return _field_texts(parent) if parent.__module__.startswith("eval_dagster") else {}
    known = {each.__name__ for each in section.__mro__} | {node.name for node in module.body if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for base in body.bases:
        if isinstance(base, ast.Name) and base.id in known:
            found |= _texts_of(base.id, module, section)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _arrow_type(hint: Any) -> pa.DataType:
    origin, arguments = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin is Annotated:
        return arguments[1]
    if origin in (Union, types.UnionType, NotRequired):
        return _arrow_type(arguments[0])
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return pa.string()
    if origin in (list, tuple):
        return pa.list_(_arrow_type(arguments[0]))
    if is_typeddict(hint) or is_dataclass(hint):
        return pa.struct(list(schema_of(hint)))
    if hint not in _TYPES:
        raise TypeError(f"a column of type {hint} has no Arrow type; name one by Annotated")
    return _TYPES[hint]


TABLES = {name: schema_of(*records) for name, records in RECORDS.items()}
SUITE_TABLES = {name: TABLES[name] for name in ("regressions", "aggregate_regressions", "sample_changes", "looks")}
"""The tables with one partition per suite. Files of one judgement have the same name in all of them; `regressions` is written last. Suites
without aggregates have no file of them.
"""
RESPONSE_CACHE = schema_of(AnswerRow)

EARLIER_REASONS = {
    "first result": ("there is no earlier result to compare with;",),
    "not evaluated": ("failed at ", "was not evaluated ", "there is no result yet;"),
}
"""Judgements without an outcome have one verdict for everything that was not compared: `not comparable`. Readers replace it with one of
these verdicts, by the beginning of its reason.
"""
