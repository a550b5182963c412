"""What changes the version of code, and what does not: in a small package, and in all benchmarks and metrics of this project."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.task_defs import TASKS
from eval_dagster.versions import module_sources, references
from eval_dagster.versions.hashes import code_version
from eval_dagster.versions.module_sources import FIRST_PARTY
from eval_dagster.versions.references import CodeClosure, Definition, References, changed_by, closure_texts

FILES = {
    "__init__.py": "",
    "metric.py": '''
import logging

from measured import late, tools
from measured.base import Base
from measured.helper import _LIMIT as LIMIT
from measured.helper import double
from measured.registry import CHECKS, register

_log = logging.getLogger(__name__)
_FACTOR = 3


def _scaled(number: int) -> float:
    """Scale."""
    total = double(number)
    parts = [part * 2 for part in range(total)]
    _log.info("scaling %d to %d", number, len(parts))
    return total * _FACTOR + tools.offset()


class Metric(Base):
    """A metric."""

    NAME = "m"
    limit: int = LIMIT

    def value(self, number: int = 2) -> float:
        from measured.lazy import lazily

        return max(_scaled(number), CHECKS["known"](number), lazily(number))


@register("known")
def known(number):
    return number - 1


def unrelated():
    return 1
''',
    "helper.py": "from measured.deep import deeper\n\n_LIMIT = 7\nUNUSED = 1\n\n\ndef double(number):\n    return deeper(number) * 2\n",
    "deep.py": "def deeper(number):\n    def inner(step):\n        return number + step\n\n    return inner(0)\n",
    "tools.py": "def offset():\n    return 0.5\n\n\ndef other():\n    return 1\n",
    "base.py": "class Base:\n    def run(self):\n        return 1\n",
    "registry.py": """
CHECKS = {}


def register(name):
    def add(made):
        CHECKS[name] = made
        return made

    return add
""",
    "lazy.py": "def lazily(number):\n    return number\n",
    "late.py": "SETTING = 1\n",
}

Edit = tuple[str, str, str]
"""File, old text, new text; of a file that is not there yet, its text."""


def edit(files: Mapping[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    found = dict(files)
    for name, old, new in edits:
        assert name not in found or old in found[name], (name, old)
        found[name] = found[name].replace(old, new) if name in found else new
    return found


@pytest.fixture
def version_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The version of `Metric` after some edits, in a new process as it were."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def version(*edits: Edit) -> str:
        for name in [name for name in sys.modules if name.partition(".")[0] == "measured"]:
            del sys.modules[name]
        module_sources._file_on_path.cache_clear()
        folder = tmp_path / "measured"
        for old in folder.rglob("*.py"):
            old.unlink()
        for name, text in edit(FILES, edits).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        sys.path_importer_cache.clear()
        sys.dont_write_bytecode = True
        from measured.metric import Metric  # type: ignore[import-not-found]

        return code_version(Metric)

    return version


M = "metric.py"
HARMLESS: dict[str, list[Edit]] = {
    "a docstring": [(M, '"""Scale."""', '"""Scale a number."""'), (M, '    """A metric."""\n', "")],
    "a comment": [(M, "_FACTOR = 3", "_FACTOR = 3  # why three")],
    "a private function's name": [(M, "_scaled", "_multiplied")],
    "a private constant's name": [(M, "_FACTOR", "_TIMES"), ("helper.py", "_LIMIT", "_MOST"), (M, "_LIMIT", "_MOST")],
    "a local variable's name": [(M, "total", "result"), (M, "part ", "each "), ("deep.py", "inner", "nested")],
    "a log message": [(M, '"scaling %d to %d"', '"scales %d, which gives %d"')],
    "one more log message": [(M, "    total = double", '    _log.debug("begin")\n    total = double')],
    "annotations of a function": [(M, "number: int) -> float", "number)"), (M, "number: int = 2) -> float", "number = 2)")],
    "annotations of variables": [
        (M, "    total = double", "    total: float = double"),
        ("tools.py", "def other", "X: int\n\n\ndef other"),
    ],
    "another function of the module": [(M, "    return 1\n", "    return 2\n"), ("tools.py", "return 1", "return 2")],
    "one more function": [(M, "def unrelated", "def fresh():\n    return 3\n\n\ndef unrelated")],
    "the order of definitions": [("helper.py", "_LIMIT = 7\nUNUSED = 1\n", "UNUSED = 1\n_LIMIT = 7\n")],
    "the way of an import": [
        (M, "from measured.helper import double\n", "import measured.helper as h\n"),
        (M, "double(number)", "h.double(number)"),
    ],
    "a module's name": [
        ("helper.py", FILES["helper.py"], ""),
        ("parts/__init__.py", "", ""),
        ("parts/inner.py", "", FILES["helper.py"]),
        (M, "measured.helper", "measured.parts.inner"),
    ],
    "a definition's module": [
        ("deep.py", FILES["deep.py"], ""),
        ("helper.py", "from measured.deep import deeper\n", FILES["deep.py"]),
    ],
    "a name passed on by another module": [
        (M, "from measured.helper import double\n", "from measured.facade import double\n"),
        ("facade.py", "", "from measured.helper import *\n"),
    ],
    "what only a checker of types imports": [
        (M, "_FACTOR = 3", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from measured.tools import other\n_FACTOR = 3")
    ],
    "a module that is not used": [("late.py", "SETTING = 1", "SETTING = 2")],
}
HARMFUL: dict[str, list[Edit]] = {
    "a body": [(M, "total * _FACTOR", "_FACTOR + total")],
    "a default": [(M, "number: int = 2", "number: int = 3")],
    "a constant": [(M, "_FACTOR = 3", "_FACTOR = 4")],
    "a constant of another module": [("helper.py", "_LIMIT = 7", "_LIMIT = 8")],
    "a helper two modules away": [("deep.py", "number + step", "number - step")],
    "what is asked of a module": [("tools.py", "return 0.5", "return 0.25")],
    "a base class": [("base.py", "return 1", "return 2")],
    "an annotation of a class": [(M, "limit: int", "limit: float")],
    "a class's attribute": [(M, 'NAME = "m"', 'NAME = "n"')],
    "a method's name": [(M, "def value", "def valued")],
    "a decorator": [(M, "    def value", "    @property\n    def value")],
    "a late import's function": [("lazy.py", "return number", "return -number")],
    "a function that registers itself": [(M, "return number - 1", "return number - 2")],
    "one more function that registers itself": [(M, "def unrelated", '@register("other")\ndef unrelated')],
    "what replaces a function": [(M, "def unrelated", "tools.offset = lambda: 9\n\n\ndef unrelated")],
    "what replaces a function in a module that is only imported": [
        ("late.py", "SETTING = 1", "from measured import tools\n\ntools.offset = lambda: 9")
    ],
    "what a module does when it is imported": [("late.py", "SETTING = 1", "import decimal\n\ndecimal.getcontext().prec = 4")],
    "a name bound twice": [("helper.py", "    return deeper(number) * 2\n", "    return deeper(number) * 2\n\n\ndouble = len\n")],
    "a name bound under a condition": [("tools.py", "def other", "if len('a') == 1:\n    offset = len\n\n\ndef other")],
    "which of two names": [(M, "_FACTOR = 3", "_FACTOR, _OTHER = 3, 4"), (M, "total * _FACTOR", "total * _OTHER")],
    "an installed function": [(M, "max(", "min(")],
    "a rename in one place": [(M, "def _scaled", "def _other(number):\n    return 0\n\n\ndef _scaled"), (M, "max(_scaled", "max(_other")],
    "work in a log message": [(M, '"scaling %d to %d", number', '"scaling %d to %d", parts.pop()')],
}
USES = {
    "getattr of a module": ("total = double(number)", 'total = getattr(tools, "other")()'),
    "globals": ("total = double(number)", 'total = globals()["unrelated"]()'),
    "a module as a value": ("total = double(number)", "total = [tools][0].other()"),
}


HARMLESS_FOR_USERS = [
    "a docstring",
    "a comment",
    "a private function's name",
    "a private constant's name",
    "a local variable's name",
    "a log message",
    "one more log message",
    "annotations of a function",
]
HARMFUL_FOR_USERS: dict[str, tuple[str, str]] = {
    "what a registry's method is given": (
        "class Registry(dict):\n    def register(self, made):\n        self[made.__class__] = made\n        return made\n\n\n"
        "R = Registry()\n\n\n@R.register\ndef first():\n    return 1\n",
        "class Registry(dict):\n    def register(self, made):\n        self[made.__class__] = made\n        return made\n\n\n"
        "R = Registry()\n\n\n@R.register\ndef first():\n    return 2\n",
    ),
    "a subclass that is found by its base": (
        "class Kind(Base):\n    pass\n\n\nclass Other(Kind):\n    weight = 1\n",
        "class Kind(Base):\n    pass\n\n\nclass Other(Kind):\n    weight = 2\n",
    ),
    "an implementation for one type": (
        "from functools import singledispatch\n\n\n@singledispatch\ndef f(x):\n    pass\n\n\n@f.register\ndef _(x: int):\n    return 1\n",
        "from functools import singledispatch\n\n\n@singledispatch\ndef f(x):\n    pass\n\n\n@f.register\ndef _(x: int):\n    return 2\n",
    ),
    "the order of statements": ("A = []\nA.append(1)\nA.append(2)\n", "A = []\nA.append(2)\nA.append(1)\n"),
    "how often a statement stands there": ("A = []\nA.append(1)\n", "A = []\nA.append(1)\nA.append(1)\n"),
    "the order of imports of all names": (
        "from measured.tools import *\nfrom measured.lazy import *\n",
        "from measured.lazy import *\nfrom measured.tools import *\n",
    ),
    "a docstring that is read": ('class D:\n    """One."""\n\n\nTEXT = D.__doc__\n', 'class D:\n    """Two."""\n\n\nTEXT = D.__doc__\n'),
    "names that are read": (
        "def f(a, b):\n    x = a\n    y = b\n    return '{x} {y}'.format(**locals())\n",
        "def f(a, b):\n    y = a\n    x = b\n    return '{x} {y}'.format(**locals())\n",
    ),
}
AT_IMPORT = {
    "a function that registers itself",
    "one more function that registers itself",
    "what replaces a function",
    "what replaces a function in a module that is only imported",
    "what a module does when it is imported",
}
"""What no module of this project does, as a test holds."""


@pytest.fixture
def of_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package counts as one of this project's."""
    monkeypatch.setattr(module_sources, "FIRST_PARTY", (*FIRST_PARTY, "measured"))


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.usefixtures("of_project")
def test_tidying_and_moving_changes_nothing(what: str, version_of: Callable[..., str]) -> None:
    assert version_of(*HARMLESS[what]) == version_of()


@pytest.mark.parametrize("what", HARMLESS_FOR_USERS)
def test_tidying_a_file_of_a_user_changes_nothing(what: str, version_of: Callable[..., str]) -> None:
    assert version_of(*HARMLESS[what]) == version_of()


@pytest.mark.parametrize("what", sorted(HARMFUL.keys() - AT_IMPORT))
@pytest.mark.usefixtures("of_project")
def test_what_can_change_a_result_changes_the_version(what: str, version_of: Callable[..., str]) -> None:
    assert version_of(*HARMFUL[what]) != version_of()


@pytest.mark.parametrize("what", HARMFUL)
def test_what_can_change_a_result_changes_the_version_of_a_users_code(what: str, version_of: Callable[..., str]) -> None:
    assert version_of(*HARMFUL[what]) != version_of()


@pytest.mark.parametrize("what", HARMFUL_FOR_USERS)
def test_all_that_a_users_module_does_counts(what: str, version_of: Callable[..., str]) -> None:
    """Whether the metric depends on it is not to be told: `late` is only imported."""
    before, after = HARMFUL_FOR_USERS[what]
    start = "from measured.base import Base\n"
    assert version_of(("late.py", "SETTING = 1", start + after)) != version_of(("late.py", "SETTING = 1", start + before))


def test_what_a_factory_is_given_counts(version_of: Callable[..., str]) -> None:
    def made(argument: int) -> Sequence[Edit]:
        factory = "def make(value):\n    class Metric:\n        def run(self):\n            return value\n\n    return Metric\n"
        return (M, FILES[M], f"{factory}\n\nMetric = make({argument})\n"), ("late.py", "SETTING = 1", "")

    assert version_of(*made(1)) != version_of(*made(2))


def test_a_module_that_is_imported_by_its_name_counts(version_of: Callable[..., str], tmp_path: Path) -> None:
    by_name = ("late.py", "SETTING = 1", "import importlib\n\nVALUE = importlib.import_module('apart_by_name').VALUE\n")
    versions = set()
    for value in (1, 2):
        (tmp_path / "apart_by_name.py").write_text(f"VALUE = {value}\n")
        sys.modules.pop("apart_by_name", None)
        versions.add(version_of(by_name))
    assert len(versions) == 2


def test_an_import_that_goes_too_far_up_is_none(version_of: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text("try:\n    from .lib2 import clean\nexcept ImportError:\n    clean = str\n")
    assert version_of(("late.py", "SETTING = 1", "from apart import clean")) != version_of()


@pytest.mark.parametrize("what", USES)
def test_where_it_is_uncertain_all_of_a_module_counts(what: str, version_of: Callable[..., str]) -> None:
    uses = (M, *USES[what])
    name = M if what == "globals" else "tools.py"
    assert version_of(uses, (name, "    return 1\n", "    return 2\n")) != version_of(uses)


def test_two_names_of_one_statement_are_not_the_same(version_of: Callable[..., str]) -> None:
    both = (M, "_FACTOR = 3", "_FACTOR, _OTHER = 3, 4")
    assert version_of(both) != version_of(both, (M, "total * _FACTOR", "total * _OTHER"))


ROOTS: dict[str, Any] = {**TASKS, **{metric.__qualname__: metric for task in TASKS.values() for metric in task.METRICS}}


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Sources that stand for those of modules."""
    found: dict[str, str] = {}
    monkeypatch.setattr(references, "source_of", lambda name: found[name] if name in found else module_sources.source_of(name))
    return found


def definitions_of_all() -> dict[Definition, str]:
    """Each definition that a benchmark or a metric depends on, and the first that does."""
    known = References()
    found: dict[Definition, str] = {}
    for name, root in ROOTS.items():
        for target in CodeClosure(known, [root]).numbers:
            for definition in [target] if isinstance(target, Definition) else target.statements:
                found.setdefault(definition, name)
    return found


class _Tidied(ast.NodeTransformer):
    """Renames private definitions, and takes annotations from functions that nothing decorates."""

    def __init__(self, renamed: set[str]) -> None:
        self.renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(f"{node.id}_renamed", node.ctx), node) if node.id in self.renamed else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = f"{node.name}_renamed" if node.name in self.renamed else node.name
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = f"{node.name}_renamed" if node.name in self.renamed else node.name
        if not node.decorator_list:
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        return self.generic_visit(node)


def tidied(source: str, imported: set[str]) -> str:
    tree = ast.parse(source)
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names = {name for node in tree.body for name in _defined(node) if name.startswith("_") and not name.endswith("__")}
    changed = ast.unparse(_Tidied(names - arguments - imported).visit(tree))
    # A script counts as a whole.
    more = "" if "__main__" in source else "\n\ndef one_more_function():\n    return 1\n"
    return f'"""Another docstring."""\n{changed}\n{more}'


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [target.id for target in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(target, ast.Name)]


@pytest.mark.long
def test_all_benchmarks_and_metrics_keep_their_versions_when_everything_is_tidied(overlay: dict[str, str]) -> None:
    before = {name: closure_texts(References(), [root]) for name, root in ROOTS.items()}
    sources = {definition.module.name: module_sources.source_of(definition.module.name) or "" for definition in definitions_of_all()}
    imported = {
        alias.name
        for source in sources.values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    overlay.update({name: tidied(source, imported) for name, source in sources.items()})
    assert len(overlay) > 60
    assert sum("_renamed" in source for source in overlay.values()) > 25
    known = References()
    assert {name for name, root in ROOTS.items() if closure_texts(known, [root]) != before[name]} == set()


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_every_definition_that_a_benchmark_or_a_metric_depends_on_counts(part: int, overlay: dict[str, str]) -> None:
    found = [(definition, name) for definition, name in definitions_of_all().items() if _body(definition.node)]
    assert len(found) > 200
    before = {name: CodeClosure(References(), [ROOTS[name]]).text() for name in dict.fromkeys(name for _, name in found)}
    unchanged = []
    for definition, name in found[part::4]:
        body = _body(definition.node)
        body.insert(0, ast.parse("len('mutated')").body[0])
        overlay[definition.module.name] = "\n".join(_texts(definition))
        body.pop(0)
        if CodeClosure(References(), [ROOTS[name]]).text() == before[name]:
            unchanged.append((definition.module.name, definition.names))
        overlay.clear()
    assert unchanged == []


def _body(node: ast.stmt) -> list[ast.stmt]:
    """The body of a function, or of the first method of a class."""
    if isinstance(node, ast.FunctionDef):
        return node.body
    return next((part.body for part in getattr(node, "body", ()) if isinstance(part, ast.FunctionDef)), [])


def _texts(definition: Definition) -> Iterator[str]:
    """The source of a module in which the code of one definition has changed."""
    source = module_sources.source_of(definition.module.name) or ""
    for node in ast.parse(source).body:
        yield ast.unparse(definition.node if node.lineno == definition.node.lineno else node)


@pytest.mark.long
def test_no_module_of_this_project_does_anything_when_it_is_imported() -> None:
    """So it need not be read where nothing of it is reached."""
    known = References()
    root = Path(references.__file__).parents[2]
    names = [path.relative_to(root).with_suffix("").as_posix() for package in FIRST_PARTY for path in (root / package).rglob("*.py")]
    modules = [known.module(name.replace("/", ".").removesuffix(".__init__")) for name in names]
    assert len(modules) > 200
    for module in modules:
        assert module is not None
        # What ends other processes with this one, opens closed streams or adds a command changes no result.
        effects = {ast.unparse(definition.node) for definition in module.effects} - {"prepare_streams()"}
        effects -= {each for each in effects if each.startswith(("atexit.register(", "app.add_typer(", "app.command()("))}
        if module.name == "eval_dagster.peers.lm_eval.worker":  # a program of another interpreter
            continue
        assert effects == set(), module.name
        registered = [definition.names for definition in module.statements if definition.has_makers and [*changed_by(known, definition)]]
        assert registered == [], module.name
