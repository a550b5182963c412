"""All code that some objects depend on, in all modules of this project and its users, as text.

Definitions are numbered in the order of their occurrence, so that their names and modules are not part of the text. If a reference is
uncertain, such as a module that is used as a value, the whole module counts: too much code costs a computation, whereas too little would
give a wrong answer from the cache. For the same reason, a user's module counts as a whole, with all user modules that it imports, since
any statement in it can register, replace or build something.
"""

import inspect
from collections.abc import Iterator, Sequence, Set
from types import FunctionType, ModuleType
from typing import Any

from eval_dagster.versions.bindings import Import, Reference
from eval_dagster.versions.definitions import Definition, Module
from eval_dagster.versions.module_sources import is_own
from eval_dagster.versions.references import Meaning, References, Target


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
        self._follow()

    def text(self) -> str:
        """The code, without the effects of importing its modules."""
        return "\n".join(self._text)

    def _follow(self) -> None:
        done = 0
        while done < len(self.numbers):
            # a copy, since writing adds targets
            for target in list(self.numbers)[done:]:
                done += 1
                self._text.append(f"definition {self.numbers[target]}")
                if isinstance(target, Definition):
                    self._write(target)
                else:
                    self._write_module(target)

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
        if module is not None and not (inspect.isclass(item) and self._add_values(_own_values(item))):
            self._refer([(module, "")])

    def _add_values(self, values: Sequence[Any]) -> bool:
        """Add some values. Returns false if the dependencies of one are unknown."""
        self._text.append(f"{len(values)} values")
        told = [self._add_value(value) for value in values]
        return all(told)

    def _add_value(self, value: Any) -> bool:
        """Add an attribute of a class that no statement defines. Returns false if its dependencies are unknown."""
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
                return self._add_values(value)
            case _:
                return False
        return True


_NO_MODULE = Module(name="", package="")


def _own_values(made: type) -> list[Any]:
    return [value for name, value in sorted(vars(made).items()) if not name.startswith("__") and name != "_abc_impl"]


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
    for module in _imported_modules(references, included):
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


def _imported_modules(references: References, included: Set[Target]) -> list[Module]:
    """The modules of some code, and all modules that they import."""
    found: dict[Module, None] = {}
    waiting = [target.module if isinstance(target, Definition) else target for target in included]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += references.imports(module)
    return list(found)
