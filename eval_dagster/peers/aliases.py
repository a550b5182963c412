"""Aliases: the names by which task files for eval-framework and lighteval import classes of this project.

They exist while a task file is loaded, and only for packages that are not installed. They are the names that a benchmark needs; a file that
imports more of a package runs in an environment with it.
"""

import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.texts.figures import did_you_mean

_HERE = "eval_dagster.peers.eval_framework"
_RECORDS = "eval_dagster.records"


def _at(module: str, *names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names}


_METRICS = {
    "completion.accuracy_completion": "AccuracyCompletion",
    "loglikelihood.accuracy_loglikelihood": "AccuracyLoglikelihood AccuracyNormLoglikelihood",
    "loglikelihood.accuracy_norm_loglikelihood": "AccuracyNormLoglikelihood",
    "loglikelihood.confidence_weighted_accuracy": "ConfidenceWeightedAccuracy",
    "loglikelihood.dcs": "DistributionalCorrectnessScore",
    "loglikelihood.probability_mass": "ProbabilityMass ProbabilityMassNorm",
    "loglikelihood.probability_mass_norm": "ProbabilityMassNorm",
    "loglikelihood.ternary": "TernaryScore",
}
"""Module -> its classes. Two classes are in the modules of the guide, and in those of the releases."""
ALIASES: Mapping[str, Mapping[str, str]] = {
    "eval_framework.metrics.base": {
        **_at(f"{_HERE}.metrics", "BaseMetric"),
        **_at("eval_dagster.metrics.base", "MetricResult"),
    },
    **{f"eval_framework.metrics.{module}": _at(f"{_HERE}.metrics", *names.split()) for module, names in _METRICS.items()},
    "eval_framework.models.sample": {**_at(_RECORDS, "ResponseType"), "Sample": f"{_RECORDS}:TaskSample"},
    "eval_framework.shared.types": {
        **_at(f"{_HERE}.responses", "Completion", "Loglikelihood", "RawCompletion", "RawLoglikelihood"),
        **_at("eval_dagster.metrics.base", "Error"),
    },
    "eval_framework.tasks.base": {
        "BaseTask": f"{_HERE}.task:EvalFrameworkTask",
        **_at(_RECORDS, "ResponseType"),
        "Sample": f"{_RECORDS}:TaskSample",
        **_at("eval_dagster.tasks.base", "NO_SUBJECT", "SubjectType"),
        **_at("eval_dagster.tasks.language", "Language"),
    },
    "template_formatting.formatter": _at(_RECORDS, "Message", "Role"),
    "lighteval.models.model_output": _at(_RECORDS, "ModelResponse"),
    "lighteval.tasks.requests": _at("eval_dagster.tasks.doc", "Doc", "SamplingMethod"),
}
"""Module -> its names -> their places in this project."""
_PACKAGES = {".".join(parts[:end]) for parts in (name.split(".") for name in ALIASES) for end in range(1, len(parts))}
_TOP_LEVEL = sorted({name.partition(".")[0] for name in ALIASES})


@dataclass(frozen=True)
class Peer:
    """A package that reads task files in an environment of its own."""

    registry: str
    """Its name in evals.yaml."""
    package: str
    """Its name for people."""

    def remedy(self, task: str) -> str:
        """How a task, `path/to/file.py:name`, runs with the package."""
        return f"eval-dagster environments add {self.registry}, then task: {self.registry}:{task}"


EVAL_FRAMEWORK, LIGHTEVAL = Peer("eval_framework", "eval-framework"), Peer("lighteval", "lighteval")
_PEERS = {
    "eval_framework": EVAL_FRAMEWORK,
    "template_formatting": EVAL_FRAMEWORK,
    "llm_sandbox": EVAL_FRAMEWORK,
    "lighteval": LIGHTEVAL,
    "aenum": LIGHTEVAL,
    "inspect_ai": LIGHTEVAL,
}
"""Packages that are installed with a peer -> the peer."""
_lock = threading.RLock()


@contextmanager
def aliases() -> Iterator[None]:
    """Let this thread import by the names of eval-framework and lighteval within the block.

    Only one thread at a time can be within a block; others wait. Nested blocks do nothing.
    """
    with _lock:
        if any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
            yield
            return
        stood_in_for = [name for name in _TOP_LEVEL if not _is_installed(name)]
        hidden = {name: module for name, module in sys.modules.copy().items() if name.partition(".")[0] in stood_in_for}
        finder = _AliasFinder(stood_in_for)
        _forget(stood_in_for)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
            _forget(stood_in_for)
            sys.modules.update(hidden)


def installed_origin(task: type) -> Peer | None:
    """The peer that is installed and that a class descends from."""
    tops = (base.__module__.partition(".")[0] for base in task.__mro__)
    return next((_PEERS[top] for top in tops if top in _TOP_LEVEL), None)


class ForeignNameError(TaskDefinitionError, ImportError):
    """A name that has no alias. It is an `ImportError`, so that a file can do without the name."""

    def __init__(self, module: str, missing: str) -> None:
        """`missing` is the name that `module` lacks: of a module within it, or of what one imports from it."""
        there = [*ALIASES.get(module, ()), *_modules_in(module)]
        self.whole = f"{module}.{missing}"
        self.shown = f"`{missing}` of `{module}`" if module in ALIASES else self.whole
        self.is_slip = any(_is_slip(missing, each) for each in there)
        super().__init__(f"eval_dagster offers no {missing!r} of {module}{did_you_mean(missing, there)}; it has: {', '.join(there)}")


def foreign_import(error: BaseException, source: str) -> tuple[str, Peer] | None:
    """The import of a file that only a peer has, in words, and the peer; None for other errors, and for slips of known names.

    Args:
        error: The error of the import.
        source: The text of the file. The packages that come with a peer count only if it imports the peer, too.
    """
    if isinstance(error, ForeignNameError) and not error.is_slip:
        name = error.whole
    elif isinstance(error, ModuleNotFoundError) and (top := str(error.name).partition(".")[0]) in _PEERS and top not in _TOP_LEVEL:
        name = str(error.name)
    else:
        return None
    peer = _PEERS[name.partition(".")[0]]
    imported = re.findall(r"^\s*(?:from|import)\s+([\w.]+)", source, re.MULTILINE)
    if peer.registry not in {each.partition(".")[0] for each in imported}:
        return None
    shown = next((each for each in imported if each.startswith(f"{name}.")), name)
    if not isinstance(error, ForeignNameError):
        return f"{shown}, which comes with {peer.package}", peer
    return f"{error.shown if shown == name else shown}, which only {peer.package} has", peer


def _is_slip(written: str, meant: str) -> bool:
    same = sum(block.size for block in SequenceMatcher(None, written, meant).get_matching_blocks())
    return max(len(written), len(meant)) - same <= min(2, len(meant) - 2)


class _AliasFinder(MetaPathFinder, Loader):
    """Finds the modules of some packages for the thread that created it."""

    def __init__(self, top_level: Sequence[str]) -> None:
        self._top_level = top_level
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - the protocol's
        """Return the spec of a module.

        Raises:
            ForeignNameError: The package has no module of this name here.
        """
        if fullname.partition(".")[0] not in self._top_level or threading.get_ident() != self._thread:
            return None
        if fullname not in ALIASES and fullname not in _PACKAGES:
            module, _, name = fullname.rpartition(".")
            raise ForeignNameError(module, name)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return _AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Set `__all__`, for `import *`."""
        module.__dict__["__all__"] = list(ALIASES.get(module.__name__, ()))


class _AliasModule(ModuleType):
    """A module whose names are in other modules."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        submodule = f"{self.__name__}.{name}"
        if submodule in ALIASES or submodule in _PACKAGES:
            return import_module(submodule)
        known = ALIASES.get(self.__name__, {})
        if name not in known:
            raise ForeignNameError(self.__name__, name)
        module, _, attribute = known[name].partition(":")
        return getattr(import_module(module), attribute)


def _modules_in(package: str) -> list[str]:
    within = f"{package}."
    return sorted({each.removeprefix(within).partition(".")[0] for each in ALIASES if each.startswith(within)})


def _is_installed(name: str) -> bool:
    """Whether a package can be imported. A folder of that name without a module does not count."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) is not None
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def _forget(top_level: Sequence[str]) -> None:
    for name in [name for name in sys.modules.copy() if name.partition(".")[0] in top_level]:
        del sys.modules[name]
