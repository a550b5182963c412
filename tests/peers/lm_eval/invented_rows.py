"""Invented rows for any task of lm-eval: fields and values are found by trying, until lm-eval's own task renders and scores them."""

import ast
import inspect
import itertools
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "candle",
    "window",
    "garden",
    "pencil",
    "mountain",
    "letter",
    "orange",
    "silver",
    "harbour",
    "meadow",
    "lantern",
    "violin",
    "bridge",
    "forest",
]
LETTERS = "ABCDE"
MOST_TRIES = 200
ROWS = {True: 9, False: 7}
"""Rows of an evaluated split and of another."""
_METHODS = {*dir(str), *dir(list), *dir(dict), *dir(int)}
_LABELS = re.compile(r"label|gold|idx|index|correct|class|target_scores|answerkey", re.IGNORECASE)
_ANSWERS = re.compile(r"answer|target|output|solution|response|completion", re.IGNORECASE)
_LISTS = re.compile(r"choices|options|endings|candidates|answers|targets|labels|alternatives|tokens|sentences$", re.IGNORECASE)
_DICTS = re.compile(r"translation|options|choices", re.IGNORECASE)


@dataclass
class Field:
    """A field of a row: its kind of value, and the fields within it."""

    kind: str
    inner: dict[str, "Field"] = field(default_factory=dict)


Fields = dict[str, Field]
Tried = tuple[tuple[int, float], Fields, str]
"""How far lm-eval came and with how many gold answers; the fields; the last problem."""


class Inventor:
    """Searches for fields with which a task works."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config, self.name = config, name
        self.paths, self.constants = _hints(config)
        self.code = "\n".join([*_sources(config), *_texts_in(config), *map(str, config.values())])
        self.guess = (_GUESSES[0][0], _GUESSES[1][0])
        self.tries = 0
        self.fields: Fields = {}
        self.shots = 1
        """Examples that the task was tried with; 0 where lm-eval's own task fails with one."""

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by split. Raises `LookupError` where none were found."""
        best: Tried = ((-1, 0.0), {}, "")
        for self.guess in itertools.product(*_GUESSES):
            best = max(best, self._tried(self._first()), key=lambda tried: tried[0])
            if best[0] >= (9, 1.0):
                break
            if self.shots and "positional argument" in best[2]:
                self.shots = 0
        self.fields = best[1]
        while best[0] < (9, 1.0):
            better = next((tried for each in self._changes() if (tried := self._tried(each))[0] > best[0]), None)
            if better is None:
                break
            best = better
            self.fields = best[1]
        if best[0][0] < 9:
            raise LookupError(f"{self.name}: no rows found after {self.tries} tries; the last problem: {best[2]}")
        self.fields = best[1]
        return self._made()

    def _changes(self) -> Iterator[Fields]:
        """Other kinds for one field, then for two."""
        singles = [(name, kind) for name in self.fields for kind in (*_kinds(name), *ALL) if kind != self.fields[name].kind]
        singles = list(dict.fromkeys(singles))
        pairs = ([a, b] for a, b in itertools.combinations(singles, 2) if a[0] != b[0])
        for change in itertools.chain([[each] for each in singles], pairs):
            if self.tries > MOST_TRIES:
                return
            yield {**self.fields, **{name: Field(kind, dict(self.fields[name].inner)) for name, kind in change}}

    def _tried(self, fields: Fields) -> Tried:
        """How far lm-eval came with these fields, after the fields that it missed were added."""
        fields = dict(fields)
        for _ in range(25):
            self.tries += 1
            reached, missing, problem = self._attempt(fields)
            if missing is None or not self._added(fields, missing):
                return reached, fields, problem
        return reached, fields, problem

    def _added(self, fields: Fields, missing: str) -> bool:
        if missing not in self.code:
            return False
        for name, inner in self.paths.items():
            if missing in inner and name in fields and missing not in fields[name].inner:
                fields[name] = Field("dict", {**fields[name].inner, missing: Field(_kinds(missing)[0])})
                return True
        if missing in fields:
            return False
        fields[missing] = self._field(missing)
        return True

    def _first(self) -> Fields:
        return {each: self._field(each) for each in _template_fields(self.config)}

    def _field(self, name: str) -> Field:
        """A field as its name and the present guess suggest."""
        if inner := self.paths.get(name):
            kind = "labelled" if {"text", "label"} >= set(inner) else "dict"
            return Field(kind, {each: Field(_kinds(each)[0]) for each in inner})
        if _LISTS.search(name):
            return Field("texts")
        if _LABELS.search(name):
            return Field(self.guess[0])
        return Field(self.guess[1] if _ANSWERS.search(name) else "text")

    def _made(self, fields: Fields | None = None) -> dict[str, list[dict[str, Any]]]:
        made: dict[str, list[dict[str, Any]]] = {}
        for split, is_evaluated in splits_of(self.config).items():
            rng = Random(f"{self.name}/{split}")
            made[split] = [self._row(fields or self.fields, rng, number) for number in range(ROWS[is_evaluated])]
        return made

    def _row(self, fields: Fields, rng: Random, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {"invented": number}
        for name, each in sorted(fields.items(), key=lambda pair: pair[1].kind in ("member", "member_of_dict")):
            row[name] = value(each, name, rng, number, row, self.constants)
        return row

    def _attempt(self, fields: Fields) -> tuple[tuple[int, float], str | None, str]:
        step = [0]
        try:
            with quiet():
                quality = _works(self.config, self._made(fields), step, self.shots)
        except (KeyError, jinja2.UndefinedError, AttributeError) as error:
            return (step[0], 0.0), _missing_name(error), f"{type(error).__name__}: {error}"
        except Exception as error:
            return (step[0], 0.0), None, f"{type(error).__name__}: {error}"
        return (9, quality), None, ""


_GUESSES = (
    ("index", "bit", "letter", "constant", "text", "one_two"),
    ("member", "text", "index", "letter", "texts", "span", "one_two"),
)
"""First kinds of labels and of answers."""


def _missing_name(error: Exception) -> str | None:
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args and isinstance(error.args[0], str) else None
    found = re.search(r"'(\w+)' is undefined|has no attribute '(\w+)'", str(error))
    name = (found[1] or found[2]) if found else None
    return None if name in _METHODS else name


def _works(config: Mapping[str, Any], rows: Mapping[str, list[dict[str, Any]]], step: list[int], shots: int) -> float:
    """Render and score every row with lm-eval's own task: the share of rows with a gold answer. `step` counts how far it came."""
    from tests.peers.lm_eval.reference import task_of

    task = task_of(config, rows)
    step[0] = 3
    docs = list(task.eval_docs)
    if len(docs) < 3 or (task.fewshot_docs() is not None and len(list(task.fewshot_docs())) < 3):
        raise ValueError("the task leaves fewer than 3 rows")
    good = 0
    for number, doc in enumerate(docs):
        task.set_fewshot_seed(1)
        context = task.fewshot_context(doc, num_fewshot=min(number % 2, shots), gen_prefix=task.doc_to_prefix(doc))
        step[0] = 5
        made = task.construct_requests(doc=doc, ctx=context, metadata=(None, 0, task.config.repeats))
        made = made if isinstance(made, list) else [made]
        step[0] = 6
        answers = {"loglikelihood": (-1.0, False), "loglikelihood_rolling": -9.0}
        for position, each in enumerate(made):
            if not all(isinstance(text, str) for text in each.args[: 2 if each.request_type == "loglikelihood" else 1]):
                raise TypeError("a prompt or a choice is no text")
            answer = answers.get(each.request_type, "apple river B 2")
            each.resps = [(-1.0 - position, False) if each.request_type == "loglikelihood" else answer] * each.repeats
        for ensemble in task._filters:
            ensemble.apply(made)
            step[0] = 7
            task.process_results(doc, [each.filtered_resps[ensemble.name] for each in made])
        step[0] = 8
        good += _has_gold(task, doc, made)
    return good / len(docs)


def _has_gold(task: Any, doc: Any, made: Sequence[Any]) -> bool:
    target = task.doc_to_text(doc) if getattr(task, "multiple_input", 0) else task.doc_to_target(doc)
    if task.OUTPUT_TYPE != "multiple_choice":
        return target not in (None, "", [])
    if len({each.args for each in made}) < len(made):
        return False
    if isinstance(target, str):
        return target in task.doc_to_choice(doc)
    return all(0 <= each < len(made) for each in (target if isinstance(target, list) else [target]))


def splits_of(config: Mapping[str, Any]) -> dict[str, bool]:
    """The splits that a configuration names, and whether each is the evaluated one."""
    given = config.get("fewshot_config")
    named = [config.get(f"{each}_split") for each in ("training", "validation", "test", "fewshot")]
    named.append(given.get("split") if isinstance(given, Mapping) else None)
    evaluated = config.get("test_split") or config.get("validation_split")
    if "class" in config:
        return {"train": False, "validation": True, "test": True}
    return {str(each): each == evaluated for each in dict.fromkeys(filter(None, named))}


# values


def value(of: Field, name: str, rng: Random, number: int, row: Mapping[str, Any], constants: Sequence[str]) -> Any:
    """A value of a kind."""
    if of.kind == "dict":
        return {each: value(inner, each, rng, number, row, constants) for each, inner in of.inner.items()}
    if of.kind == "list_of_dicts":
        return [{each: value(inner, each, rng, number, row, constants) for each, inner in of.inner.items()} for _ in range(3)]
    if of.kind == "constant":
        return constants[rng.randrange(len(constants))] if constants else text(rng, number)
    if of.kind == "member":
        listed = [each for each in row.values() if isinstance(each, list) and each and isinstance(each[0], str)]
        listed += [each["text"] for each in row.values() if isinstance(each, dict) and isinstance(each.get("text"), list)]
        return rng.choice(listed[0]) if listed else text(rng, number)
    return _SIMPLE[of.kind](rng, number)


def text(rng: Random, number: int) -> str:
    """A short text that no other row has, with a gap to fill."""
    return f"{rng.choice(WORDS)} {rng.choice(WORDS)} _ {rng.choice(WORDS)} {number}{rng.randrange(100)}"


def _texts(rng: Random, number: int, count: int = 5) -> list[str]:
    return [f"{each} {number}" for each in rng.sample(WORDS, count)]


_SIMPLE: dict[str, Any] = {
    "text": text,
    "texts": _texts,
    "index": lambda rng, _: rng.randrange(4),
    "bit": lambda rng, _: rng.randrange(2),
    "one_based": lambda rng, _: rng.randrange(1, 5),
    "letter": lambda rng, _: rng.choice("ABCD"),
    "small_letter": lambda rng, _: rng.choice("abcd"),
    "one_two": lambda rng, _: rng.choice(["1", "2"]),
    "digit": lambda rng, _: str(rng.randrange(4)),
    "digit_from_one": lambda rng, _: str(rng.randrange(1, 5)),
    "labelled": lambda rng, number: {"text": _texts(rng, number), "label": list(LETTERS)},
    "lettered": lambda rng, number: dict(zip(LETTERS, _texts(rng, number), strict=True)),
    "literal": lambda rng, number: repr(_texts(rng, number)),
    "bool": lambda rng, _: rng.random() < 0.5,
    "yes": lambda rng, _: rng.choice(["yes", "no"]),
    "true": lambda rng, _: rng.choice(["True", "False"]),
    "number": lambda rng, _: rng.randrange(100) / 4,
    "indices": lambda rng, _: [rng.randrange(4)],
    "bits": lambda rng, _: [1, 0, 0, 0],
    "span": lambda rng, number: {"text": _texts(rng, number, 2), "answer_start": [0, 0]},
    "hashes": lambda rng, number: f"{text(rng, number)} #### {rng.randrange(99)}",
    "boxed": lambda rng, number: f"{text(rng, number)} \\boxed{{{rng.randrange(99)}}}",
    "sentences": lambda rng, number: f"{text(rng, number)}. {text(rng, number)}! {text(rng, number)} _ ?\n{text(rng, number)}",
    "scores": lambda rng, number: {each: int(not index) for index, each in enumerate(_texts(rng, number))},
    "lists": lambda rng, number: [_texts(rng, number), _texts(rng, number)],
    "turns": lambda rng, number: [{"role": "user", "content": text(rng, number)}, {"role": "assistant", "content": text(rng, number)}],
}
ALL = [*_SIMPLE, "member", "constant", "list_of_dicts"]


def _kinds(name: str) -> list[str]:
    """The kinds that a name suggests, the likeliest first."""
    if _LABELS.search(name):
        return ["index", "bit", "letter", "digit", "constant", "text", "member"]
    if _LISTS.search(name):
        return ["texts", "labelled", "lettered", "literal", "text", "indices", "lists"]
    if _ANSWERS.search(name):
        return ["member", "letter", "index", "bit", "text", "texts", "hashes", "boxed", "constant", "span", "digit"]
    return ["text", "texts", "sentences", "constant", "index", "list_of_dicts"]


# what the configuration and its code read


def _template_fields(config: Mapping[str, Any]) -> list[str]:
    given = config.get("fewshot_config") if isinstance(config.get("fewshot_config"), Mapping) else {}
    found: dict[str, None] = {}
    environment = jinja2.Environment()
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix"):
        for template in (config.get(key), given.get(key)):
            if not isinstance(template, str):
                continue
            if template.isidentifier() and key.startswith("doc_to"):
                found[template] = None
            else:
                found |= dict.fromkeys(sorted(jinja2.meta.find_undeclared_variables(environment.parse(template))))
    return list(found)


def _hints(config: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Fields that are read within fields, and short texts that values are compared with."""
    paths: dict[str, dict[str, None]] = {}
    constants: dict[str, None] = {}
    environment = jinja2.Environment()
    for template in _texts_in(config):
        for node in environment.parse(template).find_all((nodes.Getattr, nodes.Getitem, nodes.Const)):
            if isinstance(node, nodes.Const):
                constants |= {node.value: None} if isinstance(node.value, str) else {}
                continue
            key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
            if isinstance(node.node, nodes.Name) and isinstance(key, str) and key not in _METHODS:
                paths.setdefault(node.node.name, {})[key] = None
    for source in _sources(config):
        for outer, inner in re.findall(r"""\[["'](\w+)["']\]\[["'](\w+)["']\]""", source):
            paths.setdefault(outer, {})[inner] = None
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Compare | ast.Dict):
                values = [*(node.keys if isinstance(node, ast.Dict) else node.comparators)]
                constants |= {each.value: None for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {name: list(inner) for name, inner in paths.items()}, [each for each in constants if 0 < len(each) < 30][:40]


def _texts_in(given: Any) -> Iterator[str]:
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        yield given
    elif isinstance(given, Mapping):
        for each in given.values():
            yield from _texts_in(each)
    elif isinstance(given, list):
        for each in given:
            yield from _texts_in(each)


def _sources(given: Any) -> Iterator[str]:
    modules: set[str] = set()

    def visit(each: Any) -> None:
        if isinstance(each, partial):
            visit(each.func)
        elif isinstance(each, Mapping):
            for inner in each.values():
                visit(inner)
        elif isinstance(each, list):
            for inner in each:
                visit(inner)
        elif callable(each):
            modules.add(str(getattr(each, "__module__", "")))

    visit(given)
    for module in sorted(modules):
        if module in sys.modules and not module.startswith(("lm_eval.api", "builtins")):
            try:
                yield inspect.getsource(sys.modules[module])
            except (OSError, TypeError):
                continue


class quiet:  # noqa: N801 - used like a function
    """Within the block nothing is logged."""

    def __enter__(self) -> None:
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
