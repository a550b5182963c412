"""What a metric's version covers beyond the modules that it imports: scripts that it starts, packages that it computes with."""

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.metrics.base import BaseMetric, declared
from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.ifeval import IFEVAL_METRICS
from eval_dagster.metrics.json_format import JSONSchemaValid
from eval_dagster.metrics.math_equal import MathEqual
from eval_dagster.metrics.repeated import avg_at_k, maj_at_k, pass_at_k
from eval_dagster.metrics.rouge import Rouge1, Rouge2, RougeL
from eval_dagster.metrics.translation import BLEU, TER, ChrF
from eval_dagster.metrics.truthfulqa import BLEUAccuracy, RougeLMaximum
from eval_dagster.stages.scores import metric_versions
from eval_dagster.task_defs import TASKS
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions import hashes
from eval_dagster.versions.references import CodeClosure, Module, References

_LIBRARY = {JSONSchemaValid, MathEqual, Rouge1, Rouge2, RougeL, BLEU, TER, ChrF, BLEUAccuracy, RougeLMaximum, *IFEVAL_METRICS}
METRICS = sorted(
    _LIBRARY | {CodeExecutionPassAtOne} | {metric for task in TASKS.values() for metric in task.METRICS}, key=lambda metric: metric.NAME
)


def version(metric: type[BaseMetric]) -> str:
    class Measured(BaseTask[str]):
        METRICS = (metric,)

    return metric_versions(Measured)[metric.NAME]


def included_modules(objects: Sequence[Any]) -> set[str]:
    """The names of the modules with the code of some objects and its dependencies."""
    numbers = CodeClosure(References(), objects).numbers
    return {target.name if isinstance(target, Module) else target.module.name for target in numbers}


def trees(metric: type[BaseMetric]) -> Iterator[tuple[Path, ast.stmt]]:
    """The statements that a metric's version covers, each with its file: its own, and those of the scripts that it declares."""
    for target in CodeClosure(References(), [metric, *declared(metric, "COMPANIONS")]).numbers:
        module, nodes = (target, target.statements) if isinstance(target, Module) else (target.module, [target])
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        yield from ((Path(spec.origin), each.node) for each in nodes)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.NAME)
def test_a_metric_declares_the_scripts_that_its_modules_start(metric: type[BaseMetric]) -> None:
    started = {
        f"{'.'.join(path.relative_to(Path(hashes.__file__).parents[2]).parent.parts)}.{node.value.removesuffix('.py')}"
        for path, tree in trees(metric)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).endswith(".py") and (path.parent / str(node.value)).is_file()
    }
    assert started == set(declared(metric, "COMPANIONS"))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.NAME)
def test_a_metric_declares_the_packages_that_its_modules_ask_for(metric: type[BaseMetric]) -> None:
    asked = {
        str(node.args[0].value).partition(".")[0].replace("_", "-")
        for _, part in trees(metric)
        if not isinstance(part, ast.ClassDef) or part.name in {parent.__name__ for parent in metric.__mro__}
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "extra_module" and isinstance(node.args[0], ast.Constant)
    }
    assert asked <= set(declared(metric, "PACKAGES"))


def test_what_is_declared_is_there() -> None:
    for metric in METRICS:
        assert included_modules(declared(metric, "COMPANIONS")) >= set(declared(metric, "COMPANIONS"))
        assert None not in hashes.package_versions(declared(metric, "PACKAGES")).values()


def test_another_version_of_a_package_is_another_version_of_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [pass_at_k(MathEqual, 2), avg_at_k(MathEqual, 2), maj_at_k(MathEqual, 2)]
    before = {metric: version(metric) for metric in (*METRICS, *made)}
    installed = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1" if name == "math-verify" else installed(name))
    changed = {metric.NAME for metric, known in before.items() if version(metric) != known}
    assert changed == {metric.NAME for metric in before if "math-verify" in declared(metric, "PACKAGES")}
    assert changed >= {"math_equal", "pass@2", "avg@2", "maj@2"}


def test_a_package_that_is_installed_now_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hashes.package_versions(["no-such-package"]) == {"no-such-package": None}

    class Packaged(ExactMatch):
        NAME = "packaged"
        PACKAGES = ("no-such-package",)

    before = version(Packaged)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    assert version(Packaged) != before


def test_another_script_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ("a_script_to_start" + ".py")  # in one, this text would be looked up as a module before it is there
    script.write_text("print(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    class Starting(ExactMatch):
        NAME = "starting"
        COMPANIONS = (script.stem,)

    class Derived(Starting):
        NAME = "derived"
        COMPANIONS = ()

    metrics = (Starting, Derived, maj_at_k(Derived, 2))
    before = [version(metric) for metric in metrics]
    script.write_text("# tidied\nprint(1)\n")
    assert [version(metric) for metric in metrics] == before
    script.write_text("print(2)\n")
    assert not set(before) & {version(metric) for metric in metrics}
