"""The names that code binds, and a statement as text that keeps what it computes and loses how it is written."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

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


_LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_HARMLESS = {"len", "max", "min", "repr", "round", "sorted", "str", "sum", "type"}
"""Built-in functions that change nothing: a log message may call them."""

_BLIND = {
    "abstractmethod",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "lru_cache",
    "override",
    "property",
    "staticmethod",
}
"""Decorators that do not look at the annotations of a function; others may."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class _Scope:
    """The names of a function, a class or a comprehension."""

    names: dict[str, str | Import]
    """What stands for each of them."""
    is_class: bool = False


class StatementText:
    """Writes one statement of a module."""

    def __init__(self, loggers: Iterable[str], package: str) -> None:
        """`loggers` are the names by which the module logs, `package` is what its relative imports start from."""
        self._loggers = set(loggers)
        self._package = package
        self._scopes: list[_Scope] = []
        self._locals = 0
        self._found: list[str | Reference] = []

    def of(self, node: ast.AST) -> Sequence[str | Reference]:
        """The statement: text, and references between it."""
        self._write(node)
        joined: list[str | Reference] = []
        texts: list[str] = []
        for part in self._found:
            if isinstance(part, str):
                texts.append(part)
                continue
            joined += [" ".join(texts), part]
            texts = []
        return [*joined, " ".join(texts)]

    def _write(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                self._refer([node.id], node.ctx)
            case ast.Attribute():
                path, inner = [node.attr], node.value
                while isinstance(inner, ast.Attribute):
                    path.append(inner.attr)
                    inner = inner.value
                if isinstance(inner, ast.Name):
                    self._refer([inner.id, *reversed(path)], node.ctx)
                else:
                    self._write(inner)
                    self._found.append(f"{type(node.ctx).__name__} .{'.'.join(reversed(path))}")
            case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
                # Maybe the name of a module that is imported or started by it.
                self._found += ["Constant", Reference(base=Import(bound="", module=text, name=None))]
            case ast.Constant():
                self._found.append(f"Constant {node.value!r}")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.Lambda():
                self._arguments(node.args, annotated=False)
                self._in_scope(self._parameters(node.args, [node.body]), [node.body])
            case ast.ClassDef():
                self._found.append("ClassDef")
                self._name(node.name)
                self._all([*node.decorator_list, *node.bases, *node.keywords])
                self._in_scope(_Scope({name: name for name in bound_names(node.body)}, is_class=True), node.body)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
            case ast.Import() | ast.ImportFrom():
                for target in imported(node, self._package):
                    self._found += ["Import", Reference(base=target, path=("import",))]
            case ast.AnnAssign() if not self._is_in_class():
                if node.value is not None:
                    self._fields(ast.Assign(targets=[node.target], value=node.value, type_comment=None))
            case ast.Global() | ast.Nonlocal():
                self._found.append(type(node).__name__)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() | ast.MatchMapping():
                field = "rest" if isinstance(node, ast.MatchMapping) else "name"
                if (name := getattr(node, field)) is not None:
                    self._refer([name], ast.Store())
                self._fields(node, leave=(field,))
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="sys"), attr="modules")):
                self._found.append(Reference(is_whole=True))
                self._fields(node)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ) if name.isidentifier():
                self._found.append(Reference(base=Import(bound="", module=name, name=None)))
                self._fields(node)
            case ast.Call(func=ast.Name(id="vars" | "dir" | "locals"), args=[]):
                self._found.append(Reference(is_whole=True))
                self._fields(node)
            case _:
                self._fields(node)

    def _fields(self, node: ast.AST, leave: Iterable[str] = ()) -> None:
        self._found.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if name in leave:
                continue
            if isinstance(value, list):
                self._found.append("[")
                self._statements(value) if name in ("body", "orelse", "finalbody") else self._all(value)
                self._found.append("]")
            elif isinstance(value, ast.AST):
                self._write(value)
            else:
                self._found.append(repr(value))

    def _all(self, values: Iterable[object]) -> None:
        for value in values:
            self._write(value) if isinstance(value, ast.AST) else self._found.append(repr(value))

    def _statements(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            if isinstance(node, ast.Expr) and self._is_log(node.value):
                if _may_change(node.value):
                    self._all([*(part for part in node.value.args if not isinstance(part, ast.Constant)), *node.value.keywords])
                continue
            self._write(node)

    def _is_log(self, node: ast.AST) -> TypeGuard[ast.Call]:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=level)):
                return level in _LOG_LEVELS and name in self._loggers and self._local(name) is None
        return False

    def _local(self, name: str) -> str | Import | None:
        """The text for a name that a scope around this place binds."""
        for depth, scope in enumerate(reversed(self._scopes)):
            if name in scope.names and not (scope.is_class and depth):
                return scope.names[name]
        return None

    def _is_in_class(self) -> bool:
        return bool(self._scopes) and self._scopes[-1].is_class

    def _refer(self, path: Sequence[str], context: ast.AST) -> None:
        self._found.append(type(context).__name__)
        local = self._local(path[0])
        if isinstance(local, str):
            self._found.append(".".join([local, *path[1:]]))
            if self._is_in_class() and path[0] in self._scopes[-1].names and isinstance(context, ast.Load):
                # Until the body of the class binds it, a name in it is the module's.
                self._found.append(Reference(path=tuple(path)))
        elif isinstance(local, Import):
            self._found.append(Reference(path=tuple(path[1:]), base=local))
        else:
            self._found.append(Reference(path=tuple(path)))
            if path[0] in ("globals", "eval", "exec") and len(path) == 1:
                self._found.append(Reference(is_whole=True))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._found.append(type(node).__name__)
        self._name(node.name)
        self._all(node.decorator_list)
        decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
        last_names = [
            each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else "" for each in decorators
        ]
        annotated = not _BLIND.issuperset(last_names)
        self._arguments(node.args, annotated=annotated)
        if annotated and node.returns is not None:
            self._write(node.returns)
        self._in_scope(self._parameters(node.args, node.body), node.body)

    def _name(self, name: str) -> None:
        """The name of a function or a class: lost if no other module sees it."""
        local = self._local(name)
        self._found.append(local if isinstance(local, str) else "_" if name.startswith("_") and not name.endswith("__") else name)

    def _arguments(self, arguments: ast.arguments, *, annotated: bool) -> None:
        self._found.append("arguments")
        for kind in ("posonlyargs", "args", "kwonlyargs"):
            self._found += [kind, *(each.arg for each in getattr(arguments, kind))]
        self._found += [f"*{each.arg}" for each in (arguments.vararg, arguments.kwarg) if each is not None]
        for default in (*arguments.defaults, *arguments.kw_defaults):
            self._found.append("default")
            if default is not None:
                self._write(default)
        if annotated:
            self._all(each.annotation for each in ast.walk(arguments) if isinstance(each, ast.arg) and each.annotation is not None)

    def _parameters(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> _Scope:
        nodes = list(scope_of(body))
        outer = {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
        names: dict[str, str | Import] = {each.arg: each.arg for each in ast.walk(arguments) if isinstance(each, ast.arg)}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {target.bound: target for target in imported(node, self._package)}
        for name in names_in(nodes, imports=False):
            if name not in outer and name not in names:
                self._locals += 1
                names[name] = f"%{self._locals}"
        return _Scope(names)

    def _in_scope(self, scope: _Scope, body: Sequence[ast.AST]) -> None:
        self._scopes.append(scope)
        self._found.append("(")
        self._statements(body)
        self._found.append(")")
        self._scopes.pop()

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        # What it goes through first belongs to the scope around it, where a name may mean something else.
        self._write(node.generators[0].iter)
        names: dict[str, str | Import] = {}
        for name in bound_names([part.target for part in node.generators]):
            self._locals += 1
            names[name] = f"%{self._locals}"
        self._scopes.append(_Scope(names))
        self._fields(node)
        self._scopes.pop()


def _may_change(call: ast.AST) -> bool:
    """Whether what a log message is made of may do more than read."""
    for node in ast.walk(call):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Call) and node is not call and not (isinstance(node.func, ast.Name) and node.func.id in _HARMLESS):
            return True
    return False
