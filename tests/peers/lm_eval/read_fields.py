"""Which fields of a row a configuration of lm-eval and its code read."""

import ast
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

METHODS = {*dir(str), *dir(list), *dir(dict), *dir(int)}
"""Names of methods, which are no fields."""


def template_fields(config: Mapping[str, Any]) -> list[str]:
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


def hints(config: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Fields that are read within fields, and short texts that values are compared with."""
    paths: dict[str, dict[str, None]] = {}
    constants: dict[str, None] = {}
    environment = jinja2.Environment()
    for template in texts_in(config):
        for node in environment.parse(template).find_all((nodes.Getattr, nodes.Getitem, nodes.Const)):
            if isinstance(node, nodes.Const):
                constants |= {node.value: None} if isinstance(node.value, str) else {}
                continue
            key = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
            if isinstance(node.node, nodes.Name) and isinstance(key, str) and key not in METHODS:
                paths.setdefault(node.node.name, {})[key] = None
    for source in sources(config):
        for outer, inner in re.findall(r"""\[["'](\w+)["']\]\[["'](\w+)["']\]""", source):
            paths.setdefault(outer, {})[inner] = None
        for node in ast.walk(_tree(source)):
            if isinstance(node, ast.Compare | ast.Dict):
                values = [*(node.keys if isinstance(node, ast.Dict) else node.comparators)]
                constants |= {each.value: None for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {name: list(inner) for name, inner in paths.items()}, [each for each in constants if 0 < len(each) < 30][:40]


def _tree(source: str) -> ast.Module:
    """The syntax tree. Some sources have escape sequences that Python warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def texts_in(given: Any) -> Iterator[str]:
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        yield given
    elif isinstance(given, Mapping):
        for each in given.values():
            yield from texts_in(each)
    elif isinstance(given, list):
        for each in given:
            yield from texts_in(each)


def sources(given: Any) -> Iterator[str]:
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
