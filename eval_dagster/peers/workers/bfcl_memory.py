"""The memory of a model over several sessions, by the memories of BFCL. What a session has kept is passed on as text."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bfcl_package import NATIVE, eval_runner, handler_utils, multi_turn_utils

if TYPE_CHECKING:
    from eval_dagster.peers.workers.bfcl_messages import MemorySent

_PREREQUISITE = "_prereq"


@cache
def sessions(category: str) -> Mapping[str, object]:
    """All sessions of a category by id: the conversations with the facts that later questions are about."""
    return {entry["id"]: entry for entry in eval_runner.load_dataset_entry(category) if _PREREQUISITE in entry["id"]}


def remember(about: Any, kept: str | None, texts: Sequence[str]) -> MemorySent:
    """Begin a session or a question with what was kept, and call all calls.

    Args:
        about: The session or the question, as the package reads it.
        kept: What the session before has kept, as this function gave it; None before the first.
        texts: The calls as Python text.

    Returns:
        The system prompt with the memory, the result of the last call, and what is kept now.
    """
    with tempfile.TemporaryDirectory() as folder:
        category = eval_runner.extract_test_category_from_id(about["id"])
        place = Path(folder) / eval_runner.get_directory_structure_by_id(about["id"]) / "memory_snapshot"
        latest = place / f"{about['scenario']}_final.json"
        place.mkdir(parents=True)
        if kept is not None:
            latest.write_text(kept, "utf-8")
        [name] = about["involved_classes"]
        config = {"model_result_dir": Path(folder), "scenario": about["scenario"], "test_id": about["id"], "test_category": category}
        _, systems = multi_turn_utils.execute_multi_turn_func_call([], {name: config}, [name], NATIVE, about["id"])
        turns = handler_utils.add_memory_instruction_system_prompt(
            [[{"role": "user", "content": ""}]], category, about["scenario"], systems[name]
        )
        results, _ = multi_turn_utils.execute_multi_turn_func_call(list(texts), {name: config}, [name], NATIVE, about["id"])
        systems[name]._flush_memory_to_local_file()
        return {
            "prompt": turns[0][0]["content"],
            "result": results[-1] if results else "",
            "kept": json.dumps(json.loads(latest.read_text("utf-8"))),
        }
