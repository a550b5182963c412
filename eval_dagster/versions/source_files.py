"""Python files of users, loaded by their path. They import the modules beside them as they would where Python runs them as a script.

A file and its neighbours are modules of a package that stands for their folder, under a made-up name: so neighbours of one name in two
folders are two modules, and none of them takes the name of an installed one from anybody else.
"""

import builtins
import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, NamespaceLoader, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from eval_dagster.users_code import USER_MODULES, calling

_OWN = {"eval_dagster"}
_lock = threading.RLock()


class _Load:
    """The modules of one load of a file. What they import later is theirs alone, whatever other files of the folder are loaded meanwhile:
    two evals never share a neighbour, nor its state.
    """

    def __init__(self, package: str, modules: Mapping[str, ModuleType]) -> None:
        self.package = package
        self.modules = dict(modules)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within the block, the package has the modules of this load. New ones become part of it."""
        with _lock:
            if _active.get(self.package) is self:
                yield
                return
            around, before = _active.get(self.package), _modules_of(self.package)
            _forget(before)
            sys.modules.update(self.modules)
            _active[self.package] = self
            try:
                yield
            finally:
                self.modules = _modules_of(self.package)
                _forget(self.modules)
                sys.modules.update(before)
                _active.pop(self.package)
                if around is not None:
                    _active[self.package] = around


_active: dict[str, _Load] = {}
"""By package: the load whose modules `sys.modules` has at the moment, while one of them runs or imports something."""


class SourceFile(SourceFileLoader):
    """Loads what a file says now, past Python's cached bytecode.

    That is looked up by size and by whole seconds, so that after two quick edits old code could run under the version of the new.
    """

    def path_stats(self, path: str) -> Mapping[str, Any]:
        """Disables the bytecode cache."""
        raise OSError(path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the file with an `import` that finds its neighbours, now and whenever one of its functions imports something."""
        package = module.__name__.partition(".")[0]
        load = _active.get(package) or _Load(package, _modules_of(package))
        module.__dict__["__source_hash__"] = _hash_of_file(self.path)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": partial(_import, load)}
        super().exec_module(module)


def load_file(file: Path, *others: Path) -> ModuleType:
    """Run a file and what it imports from its folder, all as it is now.

    Args:
        file: The file; absolute.
        others: Folders in which modules are looked for that are neither beside the file nor installed.
    """
    folders, package = dict.fromkeys(map(str, (file.parent, *others))), package_of(file, *others)
    # A name with a dot in it would be that of a module within another.
    name = f"{package}.{file.stem if file.stem.isidentifier() else f'file_{_hash(file.stem)}'}"
    with _lock:
        if not any(isinstance(finder, _NeighbourFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _NeighbourFinder())
        is_neighbour.cache_clear()
        folder = ModuleType(package)
        folder.__path__ = list(folders)
        sys.modules.setdefault(package, folder)
        load = _Load(package, {package: folder})
        with load.active():
            spec = spec_from_loader(name, SourceFile(name, str(file)))
            assert spec is not None  # none only where the loader does not know what it loads
            module = module_from_spec(spec)
            module.__dict__["__task_file__"] = True
            sys.modules[name] = module
            with calling(f"the import of {file}"):
                spec.loader.exec_module(module)  # type: ignore[union-attr]
        made = {_top(each) for each in load.modules if each != package}
        for each, old in _modules_of(package).items():
            # A task file stays, since its class may be in use, and so does a module whose file still says the same.
            said = vars(old).get("__source_hash__")
            is_current = said is None or "__task_file__" in vars(old) or said == _hash_of_file(str(old.__file__))
            if each == package or _top(each) in made or not is_current:
                del sys.modules[each]
        sys.modules.update(load.modules)
    return module


def package_of(file: Path, *others: Path) -> str:
    """The name of the package that stands for the folder of a file, and for the other folders where its modules are looked for."""
    return USER_MODULES + _hash("\n".join(dict.fromkeys(map(str, (file.parent, *others)))))


def is_user_module(name: str) -> bool:
    """Whether a module, or the package that stands for a folder, was loaded by path."""
    return name.startswith(USER_MODULES)


def imported_name(importer: str, name: str) -> str:
    """The full name of what a module imports under a name: a neighbour's, if one has it."""
    package = importer.partition(".")[0]
    neighbour = is_user_module(importer) and package in sys.modules and is_neighbour(package, name.partition(".")[0])
    return f"{package}.{name}" if neighbour else name


def shown_name(module: str) -> str:
    """The name of a module in messages: its file, if it was loaded by path."""
    return str(sys.modules[module].__file__) if is_user_module(module) and module in sys.modules else module


def shown_text(text: str) -> str:
    """A message of Python's without the made-up names of packages."""
    names = [name for name in sys.modules.copy() if is_user_module(name) and "." not in name]
    for name in names:
        text = text.replace(f"{name}.", "")
    return text


def neighbours(file: Path) -> list[str]:
    """The modules that a file could import from its folder."""
    return sorted(
        path.stem for path in file.parent.iterdir() if path != file and (path.suffix == ".py" or (path / "__init__.py").is_file())
    )


class _NeighbourFinder(MetaPathFinder):
    """Finds the modules of folders of users, by full name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - the protocol's
        return _find(fullname, path) if is_user_module(fullname) and path is not None else None


@lru_cache(maxsize=4096)
def is_neighbour(package: str, name: str) -> bool:
    """Whether the files of a folder mean a neighbour by a top-level name, rather than an installed module.

    As for a script a file beside goes first, but never before the standard library or this project. A mere folder, or what lies in
    another one of the package's folders, goes after what is installed.
    """
    if name in sys.stdlib_module_names or name in _OWN:
        return False
    folders = sys.modules[package].__path__
    found = _find(f"{package}.{name}", folders)
    if found is None:
        return False
    if found.origin is not None and Path(found.origin).is_relative_to(folders[0]):
        return True
    plain = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
    return plain is None or plain.loader is None or isinstance(plain.loader, NamespaceLoader) or plain.origin == found.origin


def _import(
    load: _Load,
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - as Python passes it
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Python's `__import__` for the modules of one folder."""
    package = load.package
    top = name.partition(".")[0]
    if not level and not is_neighbour(package, top):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    known = None if level else load.modules.get(f"{package}.{name}")
    if known is not None and all(hasattr(known, each) for each in fromlist or ()):
        return known if fromlist else load.modules[f"{package}.{top}"]
    with load.active():
        if level:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{package}.{name}", globals, locals, fromlist or ("",))
        return module if fromlist else sys.modules[f"{package}.{top}"]


def _find(fullname: str, folders: Sequence[str]) -> ModuleSpec | None:
    found = [spec for folder in folders if (spec := FileFinder(folder, (SourceFile, [".py"])).find_spec(fullname))]
    return next((spec for spec in found if spec.loader), found[0] if found else None)


def _hash_of_file(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # it is no longer there
        return ""


def _modules_of(package: str) -> dict[str, ModuleType]:
    within = f"{package}."
    return {each: module for each, module in sys.modules.copy().items() if each == package or each.startswith(within)}


def _forget(names: Sequence[str] | Mapping[str, ModuleType]) -> None:
    for name in list(names):
        sys.modules.pop(name, None)


def _top(name: str) -> str:
    return name.split(".")[1]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
