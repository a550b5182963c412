"""lighteval: a task for each prompt function of its core files, by lighteval itself and through this project, on invented rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, cast

from eval_dagster.errors import RequirementError
from eval_dagster.peers.packages import LightevalRegistry
from eval_dagster.peers.processes.environments import interpreter
from tests.peers.packages.lighteval_comparison import compared, files_of, opened_registry, value_differences
from tests.peers.watch.environments import of_release, registry_environment
from tests.peers.watch.outcomes import Look, Looked, different
from tests.peers.watch.watching import by_halves, last_line

AT_ONCE = 12
"""Files whose tasks one process of lighteval makes."""


class Lighteval:
    """Documents, values and aggregates."""

    name = LightevalRegistry.NAME
    distribution = LightevalRegistry.DISTRIBUTION
    what = (
        "of each core file a task for each of its prompt functions, on invented rows, at 0 and 2 examples, as text and as messages: "
        "documents, values and aggregates"
    )

    def interpreter(self) -> str:
        return interpreter(LightevalRegistry)

    def environment(self, folder: Path, release: str) -> Path:
        return registry_environment(LightevalRegistry, folder, release)

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        kind = cast(type[LightevalRegistry], of_release(LightevalRegistry, release))
        stack = ExitStack()
        registry = stack.enter_context(opened_registry(python, scratch, kind))
        names = registry.names()

        def found() -> Iterator[Looked]:
            with stack:
                files = files_of(python)
                modules = list(files)[:most]
                for start in range(0, len(modules), AT_ONCE):
                    for module, tasks in by_halves(modules[start : start + AT_ONCE], lambda part: by_module(python, registry, files, part)):
                        yield from [failed(module, tasks)] if isinstance(tasks, Exception) else tasks

        return Look(len(names), found())


def failed(module: str, error: Exception) -> Looked:
    """A file whose comparison raised an error: of lighteval's own process, for lack of something, or of this project."""
    if isinstance(error, AssertionError | SubprocessError | RequirementError):
        return Looked(module, "unseen", last_line(error))
    return Looked(module, "different", f"this project fails: {type(error).__name__}: {last_line(error)}")


def by_module(python: Path, registry: LightevalRegistry, files: Mapping[str, Any], modules: Sequence[str]) -> dict[str, list[Looked]]:
    """The tasks of files; a file that cannot be imported, and a task without rows, have the reason."""
    found: dict[str, list[Looked]] = {module: [] for module in modules}
    asked: dict[str, Any] = {}
    for module in modules:
        if "problem" in files[module]:
            found[module].append(Looked(module, "unseen", f"it cannot be imported: {files[module]['problem']}"))
        tasks = files[module].get("tasks", {})
        found[module] += [
            Looked(name, "unseen", f"no invented rows fit: {task['problem']}") for name, task in tasks.items() if "problem" in task
        ]
        asked[module] = {"tasks": {name: task for name, task in tasks.items() if "rows" in task}}
    several: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in compared(python, registry, asked):
        several.setdefault((each["module"], each["name"]), []).append(each)
    for (module, name), settings in several.items():
        found[module].append(word_of(name, settings))
    return found


def word_of(name: str, settings: Sequence[Mapping[str, Any]]) -> Looked:
    """The word for a task, from its comparisons at several settings."""
    differences, lacking, problems, values = [], [], [], 0
    for each in settings:
        ours, theirs = each["ours"], each["theirs"]
        if "problem" in theirs:
            lacking.append(f"lighteval itself fails: {theirs['problem']}")
        elif "documents" not in ours:
            problems.append(ours["problem"])
        elif ours["documents"] != theirs["documents"]:
            differences.append(f"documents at {each['shots']} examples, {'messages' if each['is_chat'] else 'text'}")
        elif "values" in ours:
            differences += value_differences(each)
            lacking += [f"lighteval itself cannot compute {metric}: {reason}" for metric, reason in theirs["failed"].items()]
            values += len(ours["aggregated"])
    refused = next((each["ours"]["refused"] for each in settings if each["ours"]["refused"]), None)
    if differences:
        return different(name, differences)
    if refused is not None:
        return Looked(name, "refused", refused)
    if problems:
        return Looked(name, "refused" if "images" in problems[0] else "different", problems[0])
    if not values:
        return Looked(
            name,
            "partly" if any("documents" in each["theirs"] for each in settings) else "described",
            lacking[0] if lacking else "no value could be compared",
        )
    return Looked(name, "partly", lacking[0]) if lacking else Looked(name, "equal")
