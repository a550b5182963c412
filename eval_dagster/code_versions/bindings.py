"""The names that a piece of code binds, and what it refers to."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | COMPREHENSIONS


@dataclass(frozen=True)
class Import:
    """A module, or what it holds under a name, and the name to which an import binds it."""

    bound: str
    module: str
    name: str | None


@dataclass(frozen=True)
class Reference:
    """Something outside of a statement that it refers to."""

    path: tuple[str, ...] = ()
    """A name, and the attributes that are asked of it."""
    base: Import | None = None
    """Where the path starts if not at a name of the module."""
    is_whole: bool = False
    """Whether the module itself is meant, all of it."""


def bound_names(nodes: Iterable[ast.AST], *, imports: bool = True) -> list[str]:
    """The names to which the scope of some nodes binds something, in the order of the text; not those of the scopes inside it."""
    return names_in(scope_of(nodes), imports=imports)


def names_in(scope: Iterable[ast.AST], *, imports: bool = True) -> list[str]:
    """As `bound_names`, of the nodes that `scope_of` gives."""
    names: list[str] = []
    for node in scope:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.append(name)
            case ast.MatchMapping(rest=str(name)):
                names.append(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases) if imports:
                names += [alias.asname or alias.name.partition(".")[0] for alias in aliases]
            case _:
                pass
    return list(dict.fromkeys(names))


def scope_of(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of a scope, those of functions, classes and comprehensions in it left out but for their heads."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, COMPREHENSIONS):
            # What an assignment expression in a comprehension binds belongs to the scope around it.
            yield from (part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
        if not isinstance(node, _SCOPES):
            waiting += list(ast.iter_child_nodes(node))[::-1]


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[Import]:
    """What an import statement in a module of a package binds to what."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield Import(bound=alias.asname or top, module=alias.name if alias.asname else top, name=None)
        return
    base = node.module or ""
    if node.level > (len(package.split(".")) if package else 0):
        return  # as in a module that is no part of a package: executed, it raises ImportError
    if node.level:
        parts = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parts, base] if base else parts)
    for alias in node.names:
        yield Import(bound=alias.asname or alias.name, module=base, name=alias.name)
