"""Model backends by name: built-in ones, ones that other packages register, and classes in files."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from pydantic import create_model

from eval_dagster.config.models import BUILT_IN, ModelConfig, ModelSection
from eval_dagster.config.schema import open_section
from eval_dagster.errors import ConfigError, described
from eval_dagster.models.base import ModelBackend, ModelHandle
from eval_dagster.users_code import calling
from eval_dagster.versions.entry_points import entries
from eval_dagster.versions.hashes import code_version, stable_hash
from eval_dagster.versions.source_files import load_file

GROUP = "eval_dagster.models"
"""The entry points of model backends."""


def open_model(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked or loaded yet.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        folder: The folder of evals.yaml, where relative paths start.
        home: The folder of all state.

    Raises:
        ConfigError: The backend is not installed, cannot be imported, or is not a backend.
    """
    if not is_file(config.backend):
        if config.backend not in _registered():
            raise ConfigError(f"Model {name!r}: no installed package has the backend {config.backend!r}; install the one that does")
        return _opened(_load(_registered()[config.backend]), name, config, folder, home)
    try:
        module, backend = _class_in_file(config.backend, folder)
    except ConfigError as error:
        raise ConfigError(f"Model {name!r}: {error}") from error
    handle = _opened(backend, name, config, folder, home)
    kind: Any = type(handle)

    # The version covers the code of the file, and of what that imports from its folder.
    def version(self: ModelHandle) -> str:
        return stable_hash([kind.version(self), code_version(module)])

    def declared_versions(self: ModelHandle) -> tuple[str, str] | None:
        declared = kind.declared_versions(self)
        return declared and (stable_hash([declared[0], code_version(module)]), declared[1])

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    changed = {**names, "__slots__": (), "version": version, "declared_versions": declared_versions}
    object.__setattr__(handle, "__class__", type(kind.__name__, (kind,), changed))
    return handle


def _opened(backend: type[ModelBackend], name: str, config: ModelConfig, folder: Path, home: Path) -> ModelHandle:
    handle = backend.open(name, config, folder=folder, home=home)
    if not isinstance(handle, ModelHandle):
        raise ConfigError(
            f"Model {name!r}: the backend {config.backend!r} opens a {type(handle).__name__}, which lacks members of a handle; expected an "
            "instance of a subclass of eval_dagster.ModelHandle, which has defaults for most of them"
        )
    return handle


def registered_sections() -> Mapping[str, type[ModelSection]]:
    """The sections of evals.yaml that backends of other packages define, by backend.

    A backend that cannot be used has a section with any keys: the models of other backends stay usable, and `open_model` raises the
    reason.
    """
    sections: dict[str, type[ModelSection]] = {}
    for name, entry in _registered().items():
        if name in BUILT_IN:
            continue
        try:
            sections[name] = _load(entry).SECTION
        except ConfigError:
            sections[name] = open_section(name)
    return sections


def is_file(backend: str) -> bool:
    """Whether a backend is a class in a file, `path/to/file.py:Class`."""
    return ".py:" in backend


def section_in_file(backend: str, folder: Path) -> type[ModelSection]:
    """The section of a backend in a file; one with any keys if it cannot be loaded, so that `open_model` raises the reason.

    Args:
        backend: `path/to/file.py:Class`.
        folder: The folder of evals.yaml.
    """
    try:
        section: Any = _class_in_file(backend, folder)[1].SECTION
    except ConfigError:
        return open_section(backend)
    name: Any = Literal[backend]
    named: Any = create_model(section.__name__, __base__=section, backend=(name, ...))
    return named  # type: ignore[no-any-return]


def _class_in_file(backend: str, folder: Path) -> tuple[ModuleType, type[ModelBackend]]:
    """The module and the class of a backend in a file. Raises `ConfigError` if it is not there, cannot be run or is not a backend."""
    path, _, name = backend.rpartition(":")
    file = (folder / Path(path).expanduser()).resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {file} (backend: {backend}); a path is relative to the folder of evals.yaml")
    try:
        module = load_file(file)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the backend {backend} cannot be used, since {file} cannot be run ({described(error)})") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{file} defines no {name!r}; expected the name of a class: backend: path/to/file.py:Class")
    if not _is_backend(found):
        raise ConfigError(
            f"{name} in {file} is no backend; expected a class with a SECTION, a subclass of eval_dagster.ModelSection, and a class "
            "method `open`"
        )
    return module, found


def _is_backend(value: Any) -> bool:
    section = getattr(value, "SECTION", None)
    return isinstance(section, type) and issubclass(section, ModelSection) and callable(getattr(value, "open", None))


@cache
def _entries() -> Sequence[EntryPoint]:
    # The backends of this package come last, so that no other package can replace one by its name.
    return sorted(entries(GROUP), key=lambda entry: entry.value.startswith("eval_dagster."))


def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in _entries()}


def _load(entry: EntryPoint) -> type[ModelBackend]:
    package = entry.dist.name if entry.dist else "another package"
    where = f"the model backend {entry.name!r} of {package}"
    rivals = {each.value for each in _entries() if each.name == entry.name}
    if len(rivals) > 1 and entry.name not in BUILT_IN:
        raise ConfigError(
            f"the model backend {entry.name!r} is registered {len(rivals)} times, as {' and '.join(sorted(rivals))}; "
            "uninstall all packages with it but one"
        )
    try:
        with calling(f"the import of {entry.value}"):
            backend: type[ModelBackend] = entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{where} cannot be imported from {entry.value} ({described(error)}); correct or uninstall that package"
        ) from error
    if not _is_backend(backend):
        raise ConfigError(
            f"{where} is {entry.value}, which is no backend; expected a class with a SECTION, a subclass of "
            "eval_dagster.ModelSection, and a class method `open`; correct or uninstall that package"
        )
    if get_args(backend.SECTION.model_fields["backend"].annotation) != (entry.name,):
        raise ConfigError(
            f"{where} has the section {backend.SECTION.__name__}, whose field `backend` has another name; expected "
            f'`backend: Literal["{entry.name}"]`; correct or uninstall that package'
        )
    return backend
