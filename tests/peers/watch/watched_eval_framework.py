"""eval-framework: every name of a release alone and through this project, on invented rows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_dagster.errors import RequirementError
from eval_dagster.peers.packages import EvalFrameworkRegistry
from eval_dagster.peers.processes.environments import interpreter
from eval_dagster.peers.processes.registry import close_processes
from tests.peers.every_name.comparison import Compared, compared, itself
from tests.peers.watch.environments import registry_environment
from tests.peers.watch.outcomes import Look, Looked, different
from tests.peers.watch.watching import by_halves, last_line

AT_ONCE = 13
"""Names that one process of the release makes."""


class EvalFramework:
    """Prompts byte for byte in two formats, and values of six kinds of answers."""

    name = EvalFrameworkRegistry.NAME
    distribution = EvalFrameworkRegistry.DISTRIBUTION
    what = (
        "every name, on invented rows of two subjects, at 0 and 2 examples: messages, both formats of prompts, choices, correct answers, "
        "stop sequences, and the values of the metrics for six kinds of answers"
    )

    def interpreter(self) -> str:
        return interpreter(EvalFrameworkRegistry)

    def environment(self, folder: Path, release: str) -> Path:
        return registry_environment(EvalFrameworkRegistry, folder, release)

    def look(self, python: Path, release: str, scratch: Path, most: int | None) -> Look:
        names: Sequence[str] = itself(str(python), scratch / "names.json", shots="names")
        registry = EvalFrameworkRegistry().within(python)

        def made(part: Sequence[str]) -> Mapping[str, Any]:
            found: Mapping[str, Any] = itself(str(python), scratch / "theirs.json", part, seconds=900)
            return found

        def found() -> Iterator[Looked]:
            chosen = names[:most]
            for start in range(0, len(chosen), AT_ONCE):
                for name, theirs in by_halves(chosen[start : start + AT_ONCE], made):
                    yield looked(registry, name, theirs)
            close_processes()

        return Look(len(names), found())


def looked(registry: EvalFrameworkRegistry, name: str, theirs: Mapping[str, Any] | Exception) -> Looked:
    """One name, from what the release made of it at each number of examples."""
    if isinstance(theirs, Exception):
        return Looked(name, "unseen", f"the release itself ended: {last_line(theirs)}")
    try:
        outcome = compared(registry, name, theirs)
    except RequirementError as error:
        return Looked(name, "unseen", str(error))
    except Exception as error:  # the release makes its samples, and this project fails
        return Looked(name, "different", f"this project fails: {type(error).__name__}: {last_line(error)}")
    errors = [made["error"] for made in theirs.values() if "error" in made]
    if outcome.refused is None and len(errors) == len(theirs):
        return Looked(name, "unseen", f"the release itself fails: {errors[0]}")
    return word_of(outcome)


def word_of(outcome: Compared) -> Looked:
    """The word for a comparison. Equal prompts without one equal value are not yet equal."""
    name = outcome.name
    if outcome.refused is not None:
        return Looked(name, "refused", outcome.refused)
    if outcome.differences:
        return different(name, outcome.differences)
    if outcome.lacking:
        return Looked(name, "partly", "; ".join(sorted(outcome.lacking)))
    if not outcome.values:
        return Looked(
            name,
            "partly",
            f"{outcome.prompts} prompts are equal, and no value could be compared; {outcome.errors} are errors on both sides",
        )
    return Looked(name, "equal")
