"""Writes the reference pages that are made from code: evals.yaml, command line, SQL relations, Python API, tasks and metrics.

`make docs` runs it. The pages are committed, so that they can be read in the repository and a change of an interface shows in a diff;
`tests/test_docs_site.py` compares them with the code.
"""

import inspect
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import duckdb
import typer
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import eval_dagster
from eval_dagster.cli.app import app
from eval_dagster.config import aggregates, gate, models, schema
from eval_dagster.lake.catalog.index import open_index
from eval_dagster.lake.catalog.relations import build, relation_files
from eval_dagster.lake.files import Lake
from eval_dagster.lake.tables.columns import AggregateRow, MetricRow
from eval_dagster.lake.tables.events import EndpointAnswer
from eval_dagster.lake.tables.schemas import COMMON, RECORDS, column_texts
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, PerplexityMetric, response_kind
from eval_dagster.records import Loglikelihood
from eval_dagster.records.judgements import Look
from eval_dagster.task_defs import TASKS

DOCS = Path(__file__).resolve().parent
TEXTS: Mapping[str, Any] = yaml.safe_load((DOCS / "generated.yaml").read_text("utf-8"))
NOTE = "<!-- Written by docs/generate.py; run `make docs` after a change of the code. -->\n\n"

# ---- evals.yaml

SECTIONS: Mapping[str, type[BaseModel]] = {
    "The whole file": schema.Config,
    **{f"models: {backend}": section for backend, section in models.BUILT_IN.items()},
    "price": models.Price,
    "workers": models.WorkersConfig,
    "checkpoints: folder": models.FolderCheckpoints,
    "checkpoints: url": models.StoreCheckpoints,
    "checkpoints: hub": models.HubCheckpoints,
    "keep": models.KeepConfig,
    "source: hub": models.HubSource,
    "source: folder": models.FolderSource,
    "source: gguf": models.GGUFSource,
    "source: package": models.PackageSource,
    "source: url": models.StoreSource,
    "generation": models.GenerationConfig,
    "resources": models.Resources,
    "evals": schema.EvalConfig,
    "estimate": schema.EstimateConfig,
    "dataset": schema.EvalDataset,
    "variants": schema.VariantConfig,
    "suites": schema.SuiteConfig,
    "gate": gate.GateConfig,
    "aggregates": aggregates.AggregateConfig,
    "datasets": schema.DatasetsConfig,
    "mlflow": schema.TrackingConfig,
    "public_url": schema.PublicUrlConfig,
    "dagster": schema.DagsterConfig,
    "sandbox": schema.SandboxConfig,
}
"""The sections of evals.yaml by the headings of the page."""


def configuration_page() -> str:
    """The keys of evals.yaml, with their types, defaults and meanings."""
    return "\n".join(_section(title, section) for title, section in SECTIONS.items())


def _section(title: str, section: type[BaseModel]) -> str:
    texts = column_texts(section)
    lines = [f"## {title}", "", _one_line(inspect.getdoc(section) or ""), "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.model_fields.items():
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        meaning = texts.get(name) or field.description
        if not meaning:
            raise ValueError(f"{section.__name__}.{name} has no docstring; write one below the field")
        lines.append(f"| `{name}` | {_type_text(section.__annotations__.get(name, field.annotation))} | {default} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel) or value in ((), {}):
        return "empty" if value in ((), {}) else "see its section"
    return f"`{yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True).splitlines()[0]}`"


def _type_text(kind: Any) -> str:
    """A type in the words of YAML."""
    if kind is None or kind is type(None):
        return "null"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if hasattr(kind, "__metadata__"):
        return _type_text(arguments[0])
    if origin in (tuple, list):
        return f"list of {_type_text(arguments[0])}"
    if origin is dict:
        return f"mapping of name to {_type_text(arguments[1])}"
    if origin is not None:
        return " or ".join(dict.fromkeys(_type_text(each) for each in arguments if each is not type(None)))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        title = next((title for title, section in SECTIONS.items() if section is kind), kind.__name__)
        return f"[{title}](#{_anchor(title)})"
    return {"str": "text", "int": "integer", "float": "number", "bool": "`true` or `false`"}.get(kind.__name__, kind.__name__)


# ---- command line


def cli_page() -> str:
    """The commands with their arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = [_command(name, command) for name, command in _commands(group) if not command.hidden]
    return "\n".join(parts)


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group, those of groups in it after them."""
    for name in group.commands:
        command = group.get_command(None, name)
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")


def _command(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"eval-dagster {name}", max_content_width=10_000, terminal_width=10_000)
    usage = _one_line(command.get_usage(context).removeprefix("Usage: "))
    lines = [f"## {name}", "", _one_line(command.help or ""), "", "```text", usage, "```", ""]
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    if records:
        lines += ["| argument or option | meaning |", "|---|---|", *(f"| {_code(term)} | {_cell(text)} |" for term, text in records), ""]
    return "\n".join(lines)


# ---- relations

MACROS = {"paired_difference": "paired_difference('model_a', 'model_b')"}
FUNCTIONS = {"mean_interval": "mean_interval(avg(x), stddev_samp(x), count(x))", "wilson_interval": "wilson_interval(sum(x), count(x))"}
"""Macros that give a value."""


def relations_page() -> str:
    """The relations with their grain and columns, as a catalog without results has them."""
    questions = {name: path.read_text().splitlines()[0].removeprefix("-- One row per ") for name, path in relation_files().items()}
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        lake = Lake(Path(folder))
        with open_index(lake) as index:
            build(connection, lake, index)
        functions = [_function(name, questions.pop(name)) for name in FUNCTIONS]
        used: set[str] = set()
        parts = [_relation(connection, name, grain, used) for name, grain in sorted({**TEXTS["tables"], **questions}.items())]
    if unused := TEXTS["columns"].keys() - used:
        raise ValueError(f"docs/generated.yaml has meanings that no relation takes: {', '.join(sorted(unused))}; take them out")
    return "\n".join([*parts, *functions])


def _function(name: str, meaning: str) -> str:
    text = meaning.removeprefix("-- ")
    call = f"A macro: `{FUNCTIONS[name]}` gives a struct with `low` and `high`, in any statement, also with `group by`."
    return f"## {name}\n\n{text}\n\n{call}\n"


def _relation(connection: duckdb.DuckDBPyConnection, name: str, grain: str, used: set[str]) -> str:
    shown = MACROS.get(name, name)
    told = texts_of(name)
    lines = [f"## {name}", "", f"One row per {grain.rstrip('.')}."]
    if name in MACROS:
        lines += ["", f"A macro: `from {shown}`."]
    lines += ["", "| column | type | meaning |", "|---|---|---|"]
    for column, kind, *_ in connection.execute(f"describe from {shown}").fetchall():
        key = f"{name}.{column}" if f"{name}.{column}" in TEXTS["columns"] else column
        meaning = told.get(column) or TEXTS["columns"].get(key) or COMMON.get(column)
        if column not in told and key in TEXTS["columns"]:
            used.add(key)
        if meaning is None:
            raise ValueError(
                f"the column {column} of {name} has no meaning; write a docstring in its record, or add it to docs/generated.yaml"
            )
        lines.append(f"| `{column}` | `{_sql_type(kind)}` | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def texts_of(name: str) -> dict[str, str]:
    """The meanings of a relation's columns, by the docstrings of its table's records."""
    views = {"aggregates": (AggregateRow,), "change_points": (Look,), "endpoint_answers": (EndpointAnswer,)}
    if name.startswith("leaderboard"):  # it has columns of `metrics`
        return {column: text for column, text in column_texts(MetricRow).items() if column not in TEXTS["columns"]}
    return column_texts(*{**RECORDS, **views}.get(name.removesuffix("_history"), ()))


def _sql_type(kind: str) -> str:
    return kind.lower().replace("timestamp with time zone", "timestamptz")


# ---- Python API


def python_page() -> str:
    """Directives of mkdocstrings for the public names of the package and for the base classes."""
    classes = {title: names.split() for title, names in TEXTS["classes"].items()}
    shown = {name for names in classes.values() for name in names}
    public = [name for name in _public_names() if name not in shown and not _is_built_in_metric(name)]
    parts = [*(f"::: {name}\n" for name in public)]
    for title, names in classes.items():
        parts += [f"## {title}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(parts)


def _public_names() -> Iterator[str]:
    """Where the functions and classes of `eval_dagster.__all__` are defined, by dotted name, functions first."""
    for name in sorted(eval_dagster.__all__, key=lambda name: (not name.islower(), name)):
        value = getattr(eval_dagster, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{value.__module__}.{value.__qualname__}"


# ---- metrics


def metrics_page() -> str:
    """The built-in metrics by topic: the answers that each takes, its values, and its source."""
    topics = {module: topic for topic, names in TEXTS["metric_topics"].items() for module in names.split()}
    rows: dict[str, list[str]] = {topic: [] for topic in TEXTS["metric_topics"]}
    for name in filter(_is_built_in_metric, _public_names()):
        metric = getattr(eval_dagster, name.rpartition(".")[2])
        topic = topics.get(metric.__module__.rpartition(".")[2])
        if topic is None:
            raise ValueError(f"the module of {name} has no topic; add it to metric_topics in docs/generated.yaml")
        rows[topic].append(_metric(metric))
    head = "| class | name | takes | best | value | meaning | source |\n|---|---|---|---|---|---|---|\n"
    return "".join(f"\n## {topic}\n\n{head}{''.join(lines)}" for topic, lines in rows.items())


def _is_built_in_metric(name: str) -> bool:
    """Whether a dotted name is that of a public metric that a task can list."""
    module, _, short = name.rpartition(".")
    value = getattr(sys.modules[module], short, None)
    return inspect.isclass(value) and issubclass(value, BaseMetric) and isinstance(getattr(value, "NAME", None), str)


def _metric(metric: type[BaseMetric[Any]]) -> str:
    takes = "log-probabilities of choices" if response_kind(metric) is Loglikelihood else "a text"
    if issubclass(metric, PerplexityMetric):
        takes = "log-probabilities of a text or of choices"
    best = f"{'highest' if metric.HIGHER_IS_BETTER else 'lowest'}{'' if metric.BEST is None else f' ({metric.BEST:g})'}"
    value = "0 or 1" if metric.IS_PROPORTION else "of all samples together" if issubclass(metric, CorpusMetric) else "mean of numbers"
    if metric.BOUNDS is not None and not metric.IS_PROPORTION:
        low, high = (f"{end:g}" for end in metric.BOUNDS)
        value += f", from {low}" + ("" if high == "inf" else f" to {high}")
    text = inspect.getdoc(metric) or ""
    if text.startswith("By "):  # it completes what its base says
        text = f"{inspect.getdoc(metric.__base__)} {text}"
    return f"| `{metric.__name__}` | `{metric.NAME}` | {takes} | {best} | {value} | {_cell(text)} | {_sources(metric, text)} |\n"


def _sources(metric: type[BaseMetric[Any]], text: str) -> str:
    """Links to the papers that the docstring names, or that of its module."""
    found = re.findall(_PAPER, text) or re.findall(_PAPER, inspect.getdoc(sys.modules[metric.__module__]) or "")
    links = [f"[{arxiv}](https://arxiv.org/abs/{arxiv})" if arxiv else f"[{acl}](https://aclanthology.org/{acl})" for arxiv, acl in found]
    return ", ".join(dict.fromkeys(links))


_PAPER = r"arXiv:(\d{4}\.\d{4,5})|\b([A-Z]\d{2}-\d{4})\b"
"""The number of a paper at arXiv, or in the ACL Anthology."""

# ---- tasks


def tasks_page() -> str:
    """The registry by topic: what each task asks for, how it is reported, and where its rows are."""
    topics = {module: topic for topic, names in TEXTS["topics"].items() for module in names.split()}
    rows: dict[str, list[str]] = {topic: [] for topic in TEXTS["topics"]}
    for name, task in sorted(TASKS.items()):
        headline = (task.HEADLINE_METRIC or task.METRICS[0]).NAME
        asked = f"{task.RESPONSE_TYPE.value} | {task.customary().num_fewshot} | `{headline}` | {_cell(task.DATASET_PATH)}"
        rows[topics[task.__module__.split(".")[-1]]].append(f"| `{name}` | {asked} |\n")
    head = "| task | asks for | shots | metric | rows |\n|---|---|---|---|---|\n"
    return "".join(f"\n## {topic}\n\n{head}{''.join(lines)}" for topic, lines in rows.items())


# ----


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    """Code in a table. A bar ends a cell in one renderer and needs no backslash in another; both know its entity."""
    return f"`{text}`" if "|" not in text else f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>"


def _bar(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _cell(text: str) -> str:
    """Text in a table. Brackets and angles outside of code are no markup."""
    parts = _bar(text).split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;").replace("[", "\\[") for index, part in enumerate(parts))


def _anchor(title: str) -> str:
    return "-".join(word.strip(":.").lower() for word in title.split())


PAGES = {
    "configuration.md": configuration_page,
    "cli.md": cli_page,
    "relations.md": relations_page,
    "python.md": python_page,
    "tasks.md": tasks_page,
    "metrics.md": metrics_page,
}


def written(name: str) -> str:
    """The whole text of a page."""
    return f"{NOTE}{TEXTS['introductions'][name]}\n{PAGES[name]().strip()}\n"


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        page, text = DOCS / "reference" / name, written(name)
        if not page.is_file() or page.read_text(encoding="utf-8") != text:  # tests may read it at the same moment
            page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
