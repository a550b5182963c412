"""The names that code binds, and its references."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | COMPREHENSIONS


@dataclass(frozen=True)
class Import:
    """A module, or a name in it, and the name that an import binds it to."""

    bound: str
    module: str
    name: str | None


@dataclass(frozen=True)
class Reference:
    """A reference of a statement to something outside of it."""

    path: tuple[str, ...] = ()
    """A name, followed by attributes."""
    base: Import | None = None
    """The start of the path, if it is not a name of the module."""
    is_whole: bool = False
    """Whether the whole module is meant."""


def bound_names(nodes: Iterable[ast.AST], *, imports: bool = True) -> list[str]:
    """The names that the scope of some nodes binds, in the order of the text, without inner scopes."""
    return names_in(scope_of(nodes), imports=imports)


def names_in(scope: Iterable[ast.AST], *, imports: bool = True) -> list[str]:
    """Like `bound_names`, for the nodes of `scope_of`."""
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
    """All nodes of a scope. Of inner functions, classes and comprehensions, only their own nodes."""
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, COMPREHENSIONS):
            # Assignment expressions in a comprehension bind names of the scope around it.
            yield from (part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
        if not isinstance(node, _SCOPES):
            waiting += list(ast.iter_child_nodes(node))[::-1]


def imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[Import]:
    """The names that an import statement binds, for a module of a package."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield Import(bound=alias.asname or top, module=alias.name if alias.asname else top, name=None)
        return
    base = node.module or ""
    if node.level > (len(package.split(".")) if package else 0):
        return  # the statement raises ImportError when it is executed
    if node.level:
        parts = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parts, base] if base else parts)
    for alias in node.names:
        yield Import(bound=alias.asname or alias.name, module=base, name=alias.name)
