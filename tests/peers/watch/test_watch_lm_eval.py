"""The words that the watch has for tasks of lm-eval."""

from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lm_eval.index import Entry
from tests.peers.lm_eval.comparison import Report
from tests.peers.watch import lm_eval_side
from tests.peers.watch.outcomes import Looked

OUTCOMES: dict[str, Any] = {
    "same": [Report("same", 0, "plain", requests=2, values=2), Report("same", 2, "chat", requests=2, values=2)],
    "other": [Report("other", 0, "plain", requests=2, values=2), Report("other", 2, "chat", 2, 2, differences=["request 0.0: 'a' != 'b'"])],
    "leaks": [Report("leaks", 0, "plain", requests=2, values=2), Report("leaks", 2, "plain")],
    "seen": TaskDefinitionError("it asks about images or sound"),
    "rowless": LookupError("rowless: no rows found after 200 tries"),
    "broken": LookupError("broken: lm-eval itself fails on the rows: KeyError: 'x'"),
    "odd": OSError("no disk"),
}


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(names: list[str], folder: Path) -> list[Report]:
        found = OUTCOMES[names[0]]
        if isinstance(found, Exception):
            raise found
        return list(found)

    def refusal(name: str) -> str | None:
        if name == "fails":
            raise KeyError("x")
        return {"sound": "asks about images or sound"}.get(name)

    names = [*OUTCOMES, "fine", "sound", "fails"]
    monkeypatch.setattr(lm_eval_side, "compare", compare)
    monkeypatch.setattr(lm_eval_side, "refusal", refusal)
    monkeypatch.setattr(lm_eval_side, "drawn_names", lambda: list(OUTCOMES))
    monkeypatch.setattr(lm_eval_side.index, "package_index", lambda: {name: Entry(name, "task", "x.yaml") for name in names})


def test_drawn_tasks_and_the_others_have_their_words() -> None:
    found = list(lm_eval_side.looks(None))
    assert [(each.name, each.word) for each in found] == [
        ("same", "equal"),
        ("other", "different"),
        ("leaks", "partly"),
        ("seen", "refused"),
        ("rowless", "described"),
        ("broken", "described"),
        ("odd", "unseen"),
        ("fine", "described"),
        ("sound", "refused"),
        ("fails", "unseen"),
    ]
    reasons = {each.name: each.reason for each in found}
    assert reasons["other"] == "2 examples, chat: request 0.0: 'a' != 'b'"
    assert reasons["seen"] == reasons["sound"] == "asks about images or sound"
    assert (reasons["rowless"], reasons["broken"]) == ("no invented rows fit", "lm-eval itself fails on invented rows")


def test_compared_tasks_alone_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval_side, "drawn_names", lambda: ["seen", "rowless", *OUTCOMES])
    found = list(lm_eval_side.looks(1))
    assert [each.name for each in found if each.word == "equal"] == ["same"]
    assert Looked("other", "described", "not drawn") in found
