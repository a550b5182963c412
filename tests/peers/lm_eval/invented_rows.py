"""Invented rows for any task of lm-eval: fields and values are found by trying, until lm-eval's own task renders and scores them."""

import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import jinja2

from tests.peers.lm_eval.invented_values import ALL, ANSWERS, LABELS, LISTS, Field, Fields, kinds, value
from tests.peers.lm_eval.read_fields import METHODS, hints, sources, template_fields, texts_in

MOST_TRIES = 200
ROWS = {True: 9, False: 7}
"""Rows of an evaluated split and of another."""
Tried = tuple[tuple[int, float], Fields, str]
"""How far lm-eval came and with how many gold answers; the fields; the last problem."""


class Inventor:
    """Searches for fields with which a task works."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config, self.name = config, name
        self.paths, self.constants = hints(config)
        self.code = "\n".join([*sources(config), *texts_in(config), *map(str, config.values())])
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
        singles = [(name, kind) for name in self.fields for kind in (*kinds(name), *ALL) if kind != self.fields[name].kind]
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
                fields[name] = Field("dict", {**fields[name].inner, missing: Field(kinds(missing)[0])})
                return True
        if missing in fields:
            return False
        fields[missing] = self._field(missing)
        return True

    def _first(self) -> Fields:
        return {each: self._field(each) for each in template_fields(self.config)}

    def _field(self, name: str) -> Field:
        """A field as its name and the present guess suggest."""
        if inner := self.paths.get(name):
            kind = "labelled" if {"text", "label"} >= set(inner) else "dict"
            return Field(kind, {each: Field(kinds(each)[0]) for each in inner})
        if LISTS.search(name):
            return Field("texts")
        if LABELS.search(name):
            return Field(self.guess[0])
        return Field(self.guess[1] if ANSWERS.search(name) else "text")

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
    return None if name in METHODS else name


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


class quiet:  # noqa: N801 - used like a function
    """Within the block nothing is logged."""

    def __enter__(self) -> None:
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
