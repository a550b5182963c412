"""All code that some objects depend on, as text: definitions in modules of this project and its users, and the references between them.

Definitions are numbered in the order of their occurrence, so that their names and modules are not part of the text. If a reference is
uncertain, such as a module that is used as a value, the whole module counts: too much code costs a computation, whereas too little would
give a wrong answer from the cache. For the same reason, a user's module counts as a whole, with all user modules that it imports, since
any statement in it can register, replace or build something.
"""

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import FunctionType, ModuleType
from typing import Any

from eval_dagster.versions.module_sources import is_first_party, is_own, is_package, source_of
from eval_dagster.versions.source_files import imported_name
from eval_dagster.versions.statement_text import Import, Reference, StatementText, bound_names, imported, scope_of

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

    @cached_property
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
        roots = set()
        for each in found:
            inner = each
            while isinstance(inner, ast.Attribute | ast.Subscript | ast.Call):
                inner = inner.func if isinstance(inner, ast.Call) else inner.value
            roots.add(inner if isinstance(inner, str) else inner.id if isinstance(inner, ast.Name) else "")
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
        if isinstance(part, ast.Import):
            module.imports.extend(Import(bound="", module=alias.name, name=None) for alias in part.names)
        for target in imported(part, module.package) if isinstance(part, ast.Import | ast.ImportFrom) else ():
            module.imports.append(target)
            if target.name == "*":
                module.stars.append(target.module)
                continue
            module.names[target.bound].append(target)
            if target.module == "logging" and target.name is None:
                module.loggers.add(target.bound)
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


_REFLECTION = re.compile(
    r"__doc__|__annotations__|\.__name__|\.__qualname__|__subclasses__|\b(dir|eval|exec|getdoc|get_annotations|get_type_hints|getsource"
    r"|globals|locals|signature|vars)\b"
)
"""What gives a program the names, annotations or docstrings of its own code."""

Target = Definition | Module
Meaning = tuple[Target | None, str]
"""A definition or a whole module, and what of it; or no such thing, and a name of Python or of an installed package."""


class References:
    """The modules of this process, read as they are needed, and what their definitions refer to.

    Holds as long as `is_current`.
    """

    def __init__(self) -> None:
        self.versions: dict[Sequence[Any], str] = {}
        """Versions computed so far, by the objects that they cover."""
        self.installed: set[str] = set()
        """What this project's own code takes from installed packages: their top-level modules."""
        self.own_reaches_users = False
        """Whether this project's own code refers to a module of a user."""
        self._modules: dict[str, Module | None] = {}
        self._sources: dict[str, str | None] = {}
        self._imports: dict[Module, Sequence[Module]] = {}
        self._parts: dict[Definition, Sequence[str | Sequence[Meaning]]] = {}

    def is_current(self) -> bool:
        """Whether the source of every module is unchanged since it was read."""
        return all(source_of(name) == source for name, source in self._sources.items() if source is not None)

    def renewed(self, is_own_code: Callable[[Sequence[Any]], bool]) -> "References":
        """References that read the modules of users again. This project's own stay read, unless one has changed or refers to a user's.

        Versions stay of objects that are this project's own code, as `is_own_code` says.
        """
        renewed, own = References(), [name for name in self._modules if is_own(name)]
        if self.own_reaches_users or any(source_of(name) != self._sources[name] for name in own if self._sources[name] is not None):
            return renewed
        renewed.versions |= {objects: version for objects, version in self.versions.items() if is_own_code(objects)}
        renewed.installed |= self.installed
        renewed._modules |= {name: self._modules[name] for name in own}
        renewed._sources |= {name: self._sources[name] for name in own}
        renewed._parts |= {definition: parts for definition, parts in self._parts.items() if is_own(definition.module.name)}
        return renewed

    def module(self, name: str, *, is_wanted: bool = False) -> Module | None:
        """A module; None if it belongs neither to this project nor to its users, unless it is wanted anyway, or has no source."""
        if name not in self._modules or (is_wanted and self._modules[name] is None):
            source = source_of(name) if is_wanted or is_first_party(name) else None
            package = name if is_package(name) else name.rpartition(".")[0]
            self._sources[name] = source
            self._modules[name] = None if source is None else read_module(name, package, source)
        return self._modules[name]

    def imports(self, module: Module) -> Sequence[Module]:
        """The modules of this project and its users that a module imports, with the packages around them.

        None for a module of this project: these do nothing when they are imported, which a test holds, and to read all of them takes time.
        """
        if is_own(module.name):
            return []
        if module not in self._imports:
            names: set[str] = set()
            for target in module.imports:
                name = imported_name(module.name, target.module)
                names.update(name[:end] for end, letter in enumerate(f"{name}.") if letter == ".")
                around = self.module(name)
                if target.name is not None and (around is None or target.name not in around.names):
                    names.add(f"{name}.{target.name}")
            self._imports[module] = [found for name in sorted(names) if (found := self.module(name)) is not None]
        return self._imports[module]

    def as_written(self, module: Module) -> str:
        """All of a user's module if it looks at its own code: at names or docstrings, which versions leave out elsewhere."""
        source = self._sources.get(module.name)
        if source is None or is_own(module.name) or not _REFLECTION.search(source):
            return ""
        return ast.dump(ast.parse(source))

    def parts(self, definition: Definition) -> Sequence[str | Sequence[Meaning]]:
        """The computation of a definition: text, and meanings of references between it."""
        if definition not in self._parts:
            self._parts[definition] = [
                part if isinstance(part, str) else self.meanings(definition.module, part) for part in definition.parts
            ]
        return self._parts[definition]

    def meanings(self, module: Module, reference: Reference) -> Sequence[Meaning]:
        """The meanings of a reference in a module. Several if a name is given a value at several places."""
        if reference.is_whole:
            return [(module, "")]
        if reference.base is not None:
            found = self._imported(module, reference.base, reference.path)
        else:
            found = self._named(module, reference.path, frozenset()) or [(None, ".".join(reference.path))]
        for target, _ in found if is_own(module.name) else ():
            if target is not None and not is_own((target.module if isinstance(target, Definition) else target).name):
                self.own_reaches_users = True
        return found

    def object(self, value: Any, rest: Sequence[str] = ()) -> Sequence[Meaning]:
        """The definition of a class, a function or a module; nothing outside of this project and its users' modules."""
        if isinstance(value, ModuleType):
            found = self.module(value.__name__)
            return [] if found is None else (rest and self._named(found, rest, frozenset())) or [(found, ".".join(rest))]
        if not isinstance(value, type | FunctionType):
            return []
        module = self.module(value.__module__)
        name = value.__qualname__.partition(".")[0]
        return [] if module is None or name not in module.names else self._named(module, (name, *rest), frozenset())

    def _named(self, module: Module, path: Sequence[str], seen: frozenset[tuple[str, str]]) -> Sequence[Meaning]:
        """The meaning of a name in a module; nothing for an unknown name."""
        name, *rest = path
        if (module.name, name) in seen:
            return []
        seen |= {(module.name, name)}
        if name not in module.names:
            # Of several modules that have the name the last one counts, unless it is conditional: so all do, in their order.
            starred = [star for each in module.stars if (star := self.module(imported_name(module.name, each))) is not None]
            found = [meaning for star in starred for meaning in self._named(star, path, seen)]
            return found or self._loaded(module, name, rest)
        meanings: list[Meaning] = []
        for binding in module.names[name]:
            if isinstance(binding, Definition):
                which = str(binding.names.index(name)) if len(binding.names) > 1 else ""
                meanings.append((binding, ".".join([which, *rest])))
            else:
                meanings += self._imported(module, binding, rest, seen)
        return meanings

    def _imported(
        self, module: Module, target: Import, rest: Sequence[str], seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Sequence[Meaning]:
        """The meaning of an imported name."""
        path = [*([] if target.name is None else [target.name]), *rest]
        name = imported_name(module.name, target.module)
        if not is_first_party(name):
            if is_own(module.name):
                self.installed.add(name.partition(".")[0])
            text = ".".join([target.module, *path]) if target.bound else repr(target.module)
            return self._loaded(module, target.bound, rest) or [(None, text)]
        if path[-1:] == ["import"]:
            return []
        while True:
            found = self.module(name)
            if not path:
                return [(None, repr(name)) if found is None else (found, "")]
            if found is not None and (meanings := self._named(found, path, seen)):
                return meanings
            if source_of(f"{name}.{path[0]}") is None:
                # The module makes the name in a way that does not show: all of it counts.
                return [(found, ".".join(path))]
            name, path = f"{name}.{path[0]}", path[1:]

    def _loaded(self, module: Module, name: str, rest: Sequence[str]) -> Sequence[Meaning]:
        """The value of a name of an imported module, if the text does not tell: it may be one of this project under another name."""
        return self.object(getattr(sys.modules.get(module.name), name, None), rest)


class CodeClosure:
    """The code of some objects and all that it depends on."""

    def __init__(self, references: References, objects: Sequence[Any] = (), *, target: Target | None = None) -> None:
        """Follow classes, functions, modules and modules by their dotted names; or a statement, or a module as a whole."""
        self.references = references
        self.numbers: dict[Target, int] = {}
        self._text: list[str] = []
        for item in objects:
            self._text.append("object")
            self._add(item)
        if target is not None:
            self._refer([(target, "")])
        done = 0
        while done < len(self.numbers):
            # a copy, since writing adds targets
            for reached in list(self.numbers)[done:]:
                done += 1
                self._text.append(f"definition {self.numbers[reached]}")
                if isinstance(reached, Definition):
                    self._write(reached)
                else:
                    self._write_module(reached)

    def text(self) -> str:
        """The code, without the effects of importing its modules."""
        return "\n".join(self._text)

    def _write(self, definition: Definition) -> None:
        for part in self.references.parts(definition):
            if isinstance(part, str):
                self._text.append(part)
            else:
                self._refer(part)

    def _write_module(self, module: Module) -> None:
        for star in () if is_own(module.name) else module.stars:
            self._text.append("all names")
            self._refer(self.references.meanings(module, Reference(base=Import(bound="", module=star, name=None))))
        for name, bindings in module.names.items():
            if not name.startswith("_") and not any(isinstance(binding, Definition) for binding in bindings):
                self._text.append(f"name {name}")
                self._refer(self.references.meanings(module, Reference(path=(name,))))
        for definition in module.statements:
            self._text.append(f"names {' '.join(name for name in definition.names if not name.startswith('_'))}")
            self._write(definition)
        self._text.append(self.references.as_written(module))

    def _refer(self, meanings: Sequence[Meaning]) -> None:
        for target, rest in meanings:
            number = "" if target is None else f"#{self.numbers.setdefault(target, len(self.numbers))}"
            self._text.append(f"{number} {rest}")

    def _add(self, item: Any) -> None:
        name = item if isinstance(item, str) else item.__name__ if isinstance(item, ModuleType) else None
        if name is not None:
            module = self.references.module(name, is_wanted=True)
            if module is None:
                raise ModuleNotFoundError(f"no source of the module {name!r} is to be found")
            self._refer([(module, "")])
            return
        # The module of a requested object counts wherever it is installed.
        module = self.references.module(item.__module__, is_wanted=True)
        found = self.references.object(item)
        self._refer(found)
        if found:
            return
        # An object that was made at run time depends on its parts.
        self._text.append(item.__qualname__)
        for base in inspect.getmro(item)[1:] if inspect.isclass(item) else ():
            self._refer(self.references.object(base))
        own = sorted(vars(item).items()) if inspect.isclass(item) else []
        values = [value for name, value in own if not name.startswith("__") and name != "_abc_impl"]
        if module is not None and not (inspect.isclass(item) and self._add_values(values)):
            self._refer([(module, "")])

    def _add_values(self, values: Sequence[Any]) -> bool:
        """Add attributes of a class that no statement defines. Returns false if the dependencies of one are unknown."""
        self._text.append(f"{len(values)} values")
        are_known = True
        for value in values:
            match value:
                case type() | FunctionType():
                    self._add(value)
                case staticmethod() | classmethod():
                    self._add(value.__func__)
                case None | bool() | int() | float():
                    self._text.append(repr(value))
                case str():
                    self._refer(self.references.meanings(_NO_MODULE, Reference(base=Import(bound="", module=value, name=None))))
                case tuple() | list():
                    are_known = self._add_values(value) and are_known
                case _:
                    are_known = False
        return are_known


_NO_MODULE = Module(name="", package="")


def closure_texts(references: References, objects: Sequence[Any]) -> list[str]:
    """The code of some objects with its dependencies, and the effects of importing its modules.

    For a user's module, the effects are all statements. For a module of this project, they are the statements that do more than assign
    names, and assignments that change other parts of this code, such as a decorator that registers a function.
    """
    closures = [CodeClosure(references, objects)]
    more: dict[Target, str] = {}
    while True:
        included = {target for closure in closures for target in closure.numbers}
        found = [target for target in _done_at_import(references, included) if target not in more]
        if not found:
            # Sorted by text: names of modules and the order of imports must not matter.
            return [closures[0].text(), *sorted(set(more.values()))]
        for target in found:
            closures.append(CodeClosure(references, target=target))
            more[target] = closures[-1].text()


def _done_at_import(references: References, included: Set[Target]) -> Iterator[Target]:
    """The statements that have an effect when the modules of some code, and all modules that they import, are imported."""
    found: dict[Module, None] = {}
    waiting = [target.module if isinstance(target, Definition) else target for target in included]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += references.imports(module)
    for module in found:
        if not is_own(module.name):
            yield module
            continue
        yield from module.effects
        for definition in module.statements:
            if definition.has_makers and any(
                target in included or target.module in included for target in changed_by(references, definition)
            ):
                yield definition


def changed_by(references: References, definition: Definition) -> Iterator[Definition]:
    """The definitions that are changed by functions that a statement calls."""
    for maker in definition.makers:
        for target, _ in references.meanings(definition.module, maker):
            if isinstance(target, Definition) and target is not definition:
                for reference in target.changed:
                    yield from (each for each, _ in references.meanings(target.module, reference) if isinstance(each, Definition))
