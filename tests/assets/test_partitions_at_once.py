"""Processes that begin at once on a new home add the same partitions."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy.exc import IntegrityError

from eval_dagster.assets.partitions import add_partitions
from eval_dagster.project import Project

CONFIG = """
    models:
      one: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic}
      names: {task: capitals}
"""


def test_partitions_that_another_process_adds_meanwhile_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "evals.yaml"
    config.write_text(textwrap.dedent(CONFIG))
    project = Project.open(config_path=config, home=tmp_path / "home")
    with dg.instance_for_test() as instance:
        storage, late = instance.event_log_storage, list[str]()
        add = type(storage).add_dynamic_partitions

        def add_after_another(name: str, keys: Sequence[str]) -> None:
            if name not in late:  # the other process was faster, by one of the keys
                late.append(name)
                add(storage, name, keys[:1])
                raise IntegrityError("insert", None, Exception("UNIQUE constraint failed"))
            add(storage, name, keys)

        monkeypatch.setattr(storage, "add_dynamic_partitions", add_after_another)
        assert add_partitions(instance, project) == ["sums", "names", "one"]
        assert len(late) == 2
        assert set(instance.get_dynamic_partitions(late[0])) == {"sums", "names"}
        assert add_partitions(instance, project) == []
