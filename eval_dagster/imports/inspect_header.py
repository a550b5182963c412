"""The header of a log of inspect_ai: which task was run on which model, when, and how."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from eval_dagster.errors import DataError
from eval_dagster.imports.inspect_archive import Archive
from eval_dagster.imports.inspect_json import decoded
from eval_dagster.records import GenerationSettings
from eval_dagster.texts.visible_text import storable
from eval_dagster.versions.hashes import stable_hash, text_hash

_Json: TypeAlias = Any
"""A value of a setting of inspect_ai, or of an argument of a task."""
_HEADER, _START = "header.json", "_journal/start.json"
_MOST = 100
"""Most characters of a name."""
_FIRST_YEAR = 1970
_FORMAT = 2
"""The newest version of the format that is known."""


class _Scorer(msgspec.Struct):
    name: str
    options: Mapping[str, _Json] = {}


class _Dataset(msgspec.Struct):
    name: str | None = None
    location: str | None = None
    samples: int | None = None
    sample_ids: list[int | str] | None = None


class _Config(msgspec.Struct):
    epochs: int | None = None


class _Eval(msgspec.Struct):
    task: str
    model: str
    created: str
    eval_id: str = ""
    run_id: str = ""
    task_id: str = ""
    task_version: int | str = 0
    task_args_passed: Mapping[str, _Json] = {}
    dataset: _Dataset = msgspec.field(default_factory=_Dataset)
    model_args: Mapping[str, _Json] = {}
    model_base_url: str | None = None
    model_generate_config: Mapping[str, _Json] = {}
    packages: dict[str, str] = {}
    scorers: list[_Scorer] | None = None
    config: _Config = msgspec.field(default_factory=_Config)


class _Step(msgspec.Struct):
    solver: str
    params: Mapping[str, _Json] = {}


class _Plan(msgspec.Struct):
    steps: list[_Step] = []
    config: Mapping[str, _Json] = {}


class _Headline(msgspec.Struct):
    scorer: str
    score: str


class _Results(msgspec.Struct):
    headline: _Headline | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Header(msgspec.Struct):
    eval: _Eval
    version: int = _FORMAT
    status: str = "started"
    plan: _Plan = msgspec.field(default_factory=_Plan)
    results: _Results | None = None
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Header)


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log, as its header describes it."""

    eval_id: str
    """Identifies the log."""
    task: str
    """The task's name, with the package that has it."""
    arguments: str
    """The arguments that were passed to the task, as JSON."""
    model_name: str
    """The model's name in the log."""
    eval: str
    """The task's name as the name of an eval, with the arguments that were passed to it."""
    model: str
    """The model's name as evals.yaml can have it."""
    time: datetime
    """Time at which the evaluation began; UTC."""
    status: str
    """`success`, `error`, `cancelled`, or `started` if it has not ended, or was killed."""
    error: str | None
    """The error that ended the evaluation."""
    asked: int | None
    """Answers that the evaluation wanted: samples times epochs. Null if the log does not tell."""
    sample_ids: tuple[str, ...]
    """The ids of all samples, in their order. Empty if the log does not tell."""
    dataset: str
    scorers: tuple[str, ...]
    """Names of the scorers."""
    headline: str | None
    """The metric that the log names first. Null in older logs."""
    plan: str
    """Hash of the solvers with their parameters, and of the task's version."""
    generation: str
    """The settings of generation that the lake knows, as JSON."""
    model_version: str
    """Hash of the model, its settings, and the packages that asked it."""
    model_content: str
    """Hash of the model alone."""
    metric_versions: Mapping[str, str]
    """For each scorer the hash of its options."""


def read_log(archive: Archive) -> Log:
    """The description of a log, also of one that has not ended. Raises `DataError` if the archive has none, or an odd one."""
    name = _HEADER if _HEADER in archive.members else _START
    if name not in archive.members:
        raise DataError(f"which has neither {_HEADER} nor {_START}; expected a log of inspect_ai")
    try:
        header = decoded(_decoder, archive.read(archive.members[name]), "the header of a log of inspect_ai")
    except DataError as error:
        raise DataError(f"a log whose member {name} {error}") from error
    if header.version > _FORMAT:
        raise DataError(f"found a log of the format {header.version}; expected at most {_FORMAT}, which this release can read")
    try:
        return _log(header)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"a log whose member {name} has a value of another form than inspect_ai writes: {error}") from error


def _log(header: _Header) -> Log:
    made, config = header.eval, {**header.eval.model_generate_config, **header.plan.config}
    created = datetime.fromisoformat(made.created)
    created = created.astimezone(UTC) if created.tzinfo else created.replace(tzinfo=UTC)
    if created.year < _FIRST_YEAR:
        raise ValueError(f"its evaluation began in the year {created.year}")
    content = [made.model, made.model_args]
    samples, epochs = made.dataset.samples, made.config.epochs or 1
    headline = header.results.headline if header.results else None
    return Log(
        eval_id=made.eval_id or stable_hash([made.run_id, made.task_id, made.task, made.model, made.created]),
        task=made.task,
        arguments=json.dumps(dict(made.task_args_passed), sort_keys=True),
        model_name=made.model,
        eval=_eval_name(made.task, made.task_args_passed),
        model=plain_name(made.model),
        time=created,
        status=header.status,
        error=None if header.error is None else storable(header.error.message),
        asked=None if samples is None else samples * epochs,
        sample_ids=tuple(map(str, made.dataset.sample_ids or ())),
        dataset=storable(made.dataset.location or made.dataset.name or made.task),
        scorers=tuple(each.name for each in made.scorers or ()),
        headline=None if headline is None else _metric(headline),
        plan=stable_hash([made.task_version, [[step.solver, step.params] for step in header.plan.steps]]),
        generation=_settings(config).text,
        model_version=stable_hash([content, config, made.model_base_url, made.packages]),
        model_content=stable_hash(content),
        metric_versions={each.name: stable_hash([each.name, each.options]) for each in made.scorers or ()},
    )


def plain_name(name: str) -> str:
    """A name with the characters that names in evals.yaml may have: `openai_gpt-4o` of `openai/gpt-4o`. Long names end in a hash."""
    found = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "_", name)).lstrip("._-") or "unnamed"
    return found if len(found) <= _MOST else f"{found[: _MOST - 9]}-{text_hash(name)[:8]}"


def _eval_name(task: str, args: Mapping[str, _Json]) -> str:
    """The task's name without its package. Arguments that were passed make another eval: `arc.challenge-true`."""
    texts = [f"{key}-{_argument(value)}" for key, value in sorted(args.items())]
    return plain_name(".".join([task.rpartition("/")[2], *texts]))


def _argument(value: _Json) -> str:
    """The text of an argument. The text of a number or of another value, such as `"true"`, keeps its quotation marks."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True)


def _metric(headline: _Headline) -> str:
    scorer = headline.scorer.replace("/", ".")
    return scorer if headline.score in (headline.scorer, scorer) else f"{scorer}/{headline.score}"


def _settings(config: Mapping[str, _Json]) -> GenerationSettings:
    stops, most, top_k, top_p = (config.get(name) for name in ("stop_seqs", "max_tokens", "top_k", "top_p"))
    return GenerationSettings(
        max_tokens=None if most is None else int(most),
        top_k=None if top_k is None else int(top_k),
        top_p=None if top_p is None else float(top_p),
        stop_sequences=tuple(map(str, stops or ())),
        temperature=float(config.get("temperature") or 0.0),
        seed=int(config.get("seed") or 0),
    )
