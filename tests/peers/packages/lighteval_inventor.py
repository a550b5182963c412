"""Rows that a prompt function of lighteval can read. It runs in the environment of lighteval.

Fields are found by trying: a row reports the field that it lacks, and a field gets other values until lighteval's own task makes documents.
"""

import ast
import importlib
import inspect
import itertools
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import lighteval
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.requests import SamplingMethod

from tests.peers.lm_eval.invented_values import ALL, Field, Fields, kinds, text, value
from tests.peers.packages.lighteval_rows import FAMILIES, ROWS

MOST_TRIES = 1000
COUNT = 8
"""Rows of a split."""
_OWN = {
    "empty": lambda _rng, _number: "",
    "none": lambda _rng, _number: None,
    "pair": lambda rng, number: [text(rng, number), text(rng, number)],
    "two_sentences": lambda rng, number: f"{text(rng, number)}. {text(rng, number)}",
    "blanks": lambda rng, number: f"{text(rng, number)}\n\n{text(rng, number)}\n\n{text(rng, number)}",
    "score": lambda rng, _number: rng.randrange(100) / 100,
}
"""Kinds of values beside those of `invented_values`."""
KINDS = [*ALL, "dict", *_OWN]


class LacksFieldError(KeyError):
    """A row has no such field."""

    def __init__(self, path: Sequence[str], name: object) -> None:
        super().__init__(name)
        self.path, self.name = tuple(path), name


class _Row(dict[str, Any]):
    """A row, or a mapping in it, that says where a field is missing."""

    path: tuple[str, ...] = ()

    def __missing__(self, name: str) -> Any:
        raise LacksFieldError(self.path, name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and not super().__contains__(name):
            raise LacksFieldError(self.path, name)
        return super().__contains__(name)


def _watched(given: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(given, dict):
        made = _Row({name: _watched(each, (*path, name)) for name, each in given.items()})
        made.path = path
        return made
    return [_watched(each, path) for each in given] if isinstance(given, list) else given


class Inventor:
    """Searches for fields with which a task makes documents."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.constants = _constants(config.prompt_function)
        self.tries = 0

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by split. Raises `LookupError` where none were found."""
        best = self._tried({})
        while best[0] < _PERFECT:
            better = next((tried for each in self._changes(best[1]) if (tried := self._tried(each))[0] > best[0]), None)
            if better is None:
                break
            best = better
        if best[0] < _ENOUGH:
            raise LookupError(f"no rows after {self.tries} tries; fields {best[1]}; the last problem: {best[2]}")
        return self._made(best[1])

    def _changes(self, fields: Fields) -> Iterator[Fields]:
        """Other kinds for one field, then for two."""
        singles = []
        for path, field in _walked(fields):
            singles += [(path, kind) for kind in dict.fromkeys((*kinds(path[-1]), *KINDS)) if kind != field.kind]
        pairs = ([a, b] for a, b in itertools.combinations(singles, 2) if a[0] != b[0])
        for change in itertools.chain([[each] for each in singles], pairs):
            if self.tries > MOST_TRIES:
                return
            yield _changed(fields, dict(change))

    def _tried(self, fields: Fields) -> tuple[tuple[float, ...], Fields, str]:
        """How far lighteval came with these fields, after those that it missed were added."""
        for _ in range(40):
            self.tries += 1
            try:
                return self._quality(fields), fields, ""
            except LacksFieldError as error:
                added = _with_field(fields, error)
                if added is None:
                    return _reached(error, self.config), fields, repr(error)
                fields = added
            except (Exception, SystemExit) as error:
                return _reached(error, self.config), fields, repr(error)
        return (0.0,), fields, "more than 40 fields"

    def _made(self, fields: Fields) -> dict[str, list[dict[str, Any]]]:
        return {split: [self._row(fields, split, number) for number in range(COUNT)] for split in splits_of(self.config)}

    def _row(self, fields: Fields, split: str, number: int) -> dict[str, Any]:
        rng = Random(f"{self.config.name}/{split}/{number}")
        row: dict[str, Any] = {}
        for name, field in sorted(fields.items(), key=lambda pair: pair[1].kind == "member"):
            row[name] = self._value(field, name, rng, number, row)
        return row

    def _value(self, field: Field, name: str, rng: Random, number: int, row: Mapping[str, Any]) -> Any:
        if field.kind in ("dict", "list_of_dicts"):
            made = [{key: self._value(each, key, rng, number, row) for key, each in field.inner.items()} for _ in range(3)]
            return made[0] if field.kind == "dict" else made
        if field.kind in _OWN:
            return _OWN[field.kind](rng, number)
        return value(field, name, rng, number, row, self.constants)

    def _quality(self, fields: Fields) -> tuple[float, ...]:
        """The share of good documents, and how many differ."""
        data = self._made(fields)
        task = LightevalTask(self.config)
        task.dataset = {split: [_watched(row) for row in json.loads(json.dumps(rows))] for split, rows in data.items()}
        docs, examples = task.eval_docs(), task.fewshot_docs()
        needs_gold = any(metric.category is not SamplingMethod.PERPLEXITY for metric in self.config.metrics)
        good = sum(_is_good(doc, needs_gold) for doc in docs)
        count = max(len(docs), 1)
        differ = len({(doc.query, str(doc.choices)) for doc in docs}) / count
        golds = len({str(doc.get_golds()) for doc in docs}) > 1 if docs and needs_gold and good == len(docs) else not needs_gold
        return (2.0, min(good, 3 * (len(examples) > 2)), good / count, float(golds), differ)


_PERFECT = (2.0, 3.0, 1.0, 1.0, 1.0)
_ENOUGH = (2.0, 3.0)


def _is_good(doc: Any, needs_gold: bool) -> bool:
    if not isinstance(doc.query, str) or not all(isinstance(each, str) for each in doc.choices or ()):
        return False
    if not needs_gold:
        return True
    indices = doc.gold_index if isinstance(doc.gold_index, list) else [doc.gold_index]
    if not all(0 <= index < len(doc.choices) for index in indices):
        return False
    golds = doc.get_golds()
    if not golds or not all(isinstance(each, str) and each.strip() for each in golds):
        return False
    return len(set(doc.choices)) == len(doc.choices)


def _reached(error: BaseException, config: Any) -> tuple[float, ...]:
    """The line of the prompt function where it failed; more where it did not fail."""
    code = inspect.unwrap(config.prompt_function).__code__
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            found = found or trace.tb_lineno
        trace = trace.tb_next
    return (0.0, float(found)) if found is not None else (1.0,)


def _walked(fields: Fields, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Field]]:
    for name, field in fields.items():
        yield (*path, name), field
        yield from _walked(field.inner, (*path, name))


def _changed(fields: Fields, changes: Mapping[tuple[str, ...], str]) -> Fields:
    made = {}
    for name, field in fields.items():
        inner = {path[1:]: kind for path, kind in changes.items() if path[0] == name and len(path) > 1}
        made[name] = Field(changes.get((name,), field.kind), _changed(field.inner, inner))
    return made


def _with_field(fields: Fields, error: LacksFieldError) -> Fields | None:
    """The fields with the one that was missing; none where it has no name, or no place."""
    if not isinstance(error.name, str) or error.name.startswith("__"):
        return None
    made = _changed(fields, {})
    place = made
    for name in error.path:
        if name not in place:
            return None
        place = place[name].inner
    if error.name in place:
        return None
    place[error.name] = Field(kinds(error.name)[0])
    return made


def _constants(function: Any) -> list[str]:
    """Short texts in the source of a function, which values may be compared with."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.Dict | ast.List | ast.Call):
            parts = [*ast.iter_child_nodes(node)]
            found |= {each.value: None for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return [each for each in found if 0 < len(each) < 40][:40]


def splits_of(config: Any) -> list[str]:
    """The splits of a task: of evaluated rows, and of examples."""
    named = [*config.evaluation_splits, LightevalTask(config).fewshot_split]
    return [str(split) for split in dict.fromkeys(named) if split]


def core_modules() -> Iterator[str]:
    """The dotted names of the task files of lighteval's core, in their order."""
    folder = Path(str(lighteval.__file__)).parent / "tasks" / "tasks"
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield f"lighteval.tasks.tasks.{path.stem}"
        elif (path / "main.py").is_file():
            yield f"lighteval.tasks.tasks.{path.name}.main"


def tasks_of(module: str) -> dict[str, Any]:
    """The first task of each prompt function of a file, and those that have rows by hand."""
    functions: set[str] = set()
    found = {}
    for config in importlib.import_module(module).TASKS_TABLE:
        function = config.prompt_function.__qualname__
        if function not in functions or config.name in ROWS:
            found[config.name] = config
        functions.add(function)
    return found


def rows_of(config: Any) -> dict[str, Any]:
    """The rows of a task by split, made by hand where that is needed; or the problem."""
    written = ROWS.get(config.name, FAMILIES.get(config.name.split(":")[0]))
    if written is None:
        try:
            return {"rows": Inventor(config).rows()}
        except LookupError as error:
            return {"problem": str(error)}
    return {"rows": {split: [written(1000 * place + i) for i in range(COUNT)] for place, split in enumerate(splits_of(config))}}


def main() -> None:
    """Write as JSON, by core file: the tasks with their rows, or why it cannot be imported."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found: dict[str, Any] = {}
    for module in core_modules():
        try:
            configs = tasks_of(module)
        except Exception as error:
            found[module] = {"problem": f"{type(error).__name__}: {error}"}
            continue
        found[module] = {"tasks": {name: rows_of(config) for name, config in configs.items()}}
    json.dump(found, out)
    out.flush()


if __name__ == "__main__":
    main()
