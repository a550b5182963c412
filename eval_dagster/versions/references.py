"""Resolves the references of a definition to definitions in modules of this project or its users."""

import ast
import re
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from eval_dagster.versions.bindings import Import, Reference
from eval_dagster.versions.definitions import Definition, Module, read_module
from eval_dagster.versions.module_sources import is_first_party, is_own, is_package, source_of
from eval_dagster.versions.source_files import imported_name

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
        if is_own(module.name) and not all(target is None or is_own(_module_of(target).name) for target, _ in found):
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


def _module_of(target: Target) -> Module:
    return target.module if isinstance(target, Definition) else target
