"""The definitions of a module: what gives its names a value, what it imports, and what else happens when it is imported."""

import ast
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from eval_dagster.versions.bindings import Import, Reference, bound_names, imported, scope_of
from eval_dagster.versions.statement_text import StatementText

_MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "register", "remove", "setdefault", "update"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Definition:
    """A statement at the top level of a module."""

    module: "Module"
    node: ast.stmt
    names: Sequence[str]
    """What it gives a value."""

    @cached_property
    def parts(self) -> Sequence[str | Reference]:
        """Its computation: text, and references between it."""
        return self._text(self.node)

    @property
    def has_makers(self) -> bool:
        """Whether anything is called while it is executed."""
        if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return bool(self.node.decorator_list)
        value = getattr(self.node, "value", None)
        return isinstance(value, ast.AST) and any(isinstance(part, ast.Call) for part in ast.walk(value))

    @cached_property
    def makers(self) -> Sequence[Reference]:
        """The calls while it is executed: its decorators, or what makes the value that it assigns."""
        found: list[ast.expr] = list(getattr(self.node, "decorator_list", ()))
        if isinstance(self.node, ast.Assign | ast.AnnAssign) and self.node.value is not None:
            found += [part.func for part in ast.walk(self.node.value) if isinstance(part, ast.Call)]
        return [part for each in found for part in self._text(each) if isinstance(part, Reference)]

    @cached_property
    def changed(self) -> Sequence[Reference]:
        """The objects that a call changes in place: `REGISTRY[name] = made`, `REGISTRY.append(made)`, or by a `global` statement."""
        found: list[ast.expr | str] = []
        for node in ast.walk(self.node):
            match node:
                case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                    found.append(node)
                case ast.Call(func=ast.Attribute(value=target, attr=name)) if name in _MUTATORS:
                    found.append(target)
                case ast.Global(names=names):
                    found += names
                case _:
                    pass
        roots = {each if isinstance(each, str) else _root(each) for each in found}
        return [Reference(path=(name,)) for name in sorted(roots - {""}) if name in self.module.names]

    def _text(self, node: ast.AST) -> Sequence[str | Reference]:
        return StatementText(self.module.loggers, self.module.package).of(node)


@dataclass(frozen=True, kw_only=True, eq=False)
class Module:
    """The content of a module, read from its source."""

    name: str
    package: str
    """What its relative imports start from."""
    names: dict[str, list[Definition | Import]] = field(default_factory=lambda: defaultdict(list))
    """Its names, and all that gives them a value, in the order in which that is executed."""
    statements: list[Definition] = field(default_factory=list)
    """All that is executed, imports left out."""
    effects: list[Definition] = field(default_factory=list)
    """Of these, what does more than to give names of the module a value."""
    imports: list[Import] = field(default_factory=list)
    """What is imported when it is."""
    stars: list[str] = field(default_factory=list)
    """Modules all of whose names it takes."""
    loggers: set[str] = field(default_factory=set)
    """Names by which it logs."""


@lru_cache(maxsize=2048)
def read_module(name: str, package: str, source: str) -> Module:
    """Read a module from its source. `package` is what its relative imports start from."""
    module = Module(name=name, package=package)
    for node in ast.parse(source).body:
        _read(module, node)
    return module


def _read(module: Module, node: ast.stmt) -> None:
    if isinstance(node, ast.If) and _is_never_true(node.test):
        for statement in node.orelse:
            _read(module, statement)
        return
    for part in scope_of([node]):
        if isinstance(part, ast.Import | ast.ImportFrom):
            _read_import(module, part)
    if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    definition = Definition(module=module, node=node, names=bound_names([node], imports=False))
    module.statements.append(definition)
    for bound in definition.names:
        module.names[bound].append(definition)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("getLogger"):
        module.loggers.update(definition.names)
    if _has_effect(node, module.loggers):
        module.effects.append(definition)


def _read_import(module: Module, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        module.imports.extend(Import(bound="", module=alias.name, name=None) for alias in node.names)
    for target in imported(node, module.package):
        module.imports.append(target)
        if target.name == "*":
            module.stars.append(target.module)
            continue
        module.names[target.bound].append(target)
        if target.module == "logging" and target.name is None:
            module.loggers.add(target.bound)


def _is_never_true(test: ast.expr) -> bool:
    """Whether what stands under an `if` is for the checker of types, or for the module as a script."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(left=ast.Name(id="__name__"), comparators=[ast.Constant(value="__main__")]):
            return True
    return False


def _has_effect(node: ast.AST, loggers: set[str]) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return False
        case ast.Assign(targets=targets):
            return not all(_is_plain(target) for target in targets)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return not _is_plain(target)
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in loggers:
            return False
        case ast.If() | ast.Try():
            inner = [*node.body, *node.orelse, *getattr(node, "finalbody", ())]
            inner += [part for handler in getattr(node, "handlers", ()) for part in handler.body]
            return any(_has_effect(part, loggers) for part in inner)
    return True


def _is_plain(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(_is_plain(each) for each in target.elts)
    return isinstance(target, ast.Name | ast.Starred)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
