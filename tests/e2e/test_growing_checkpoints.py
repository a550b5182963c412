"""Checkpoints that grow file by file beside the real daemon, which is killed twice: each is evaluated once, when it is complete."""

import shutil
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from training_runs import CONFIG
from ui_servers import RunningUi, is_open, port_of, running_ui, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]
RUNS = """
    query Runs { runsOrError(limit: 200) { ... on Runs { results { jobName status creationTime tags { key value } } } } }
"""
STEPS = [100 * number for number in range(1, 21)]
DELETED = {500, 1200}
"""Steps whose checkpoints are deleted as soon as they are complete."""
WANTED = {f"run-step-{step:07d}" for step in STEPS if step not in DELETED}
KILLED = (700, 1400)
"""Steps before which the daemon is killed."""
BETWEEN_S = 20.0
EVALUATED_S = 60.0


def _grow(model: Path, folder: Path) -> datetime:
    """Write a checkpoint file by file, its weights last and in pieces. Returns when it was complete."""
    folder.mkdir(parents=True)
    for path in sorted(model.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        content = path.read_bytes()
        with (folder / path.name).open("wb") as file:
            for start in range(0, len(content), 1 + len(content) // 4):
                file.write(content[start : start + 1 + len(content) // 4])
                file.flush()
                time.sleep(0.2)
    return datetime.now(UTC)


@pytest.mark.timeout(1200)
def test_each_checkpoint_is_evaluated_once_within_a_minute_whatever_happens_to_the_daemon(tmp_path: Path, tiny_model: Path) -> None:
    config, home = tmp_path / "evals.yaml", tmp_path / "home"
    config.write_text(CONFIG.format(checkpoints="{folder: runs}", limit=2))
    complete: dict[int, datetime] = {}
    started: dict[int, datetime] = {}
    down: list[tuple[datetime, datetime]] = []

    def train() -> None:
        for step in STEPS:
            began = time.monotonic()
            complete[step] = _grow(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
            if step in DELETED:
                shutil.rmtree(tmp_path / "runs" / f"checkpoint-{step}")
            time.sleep(max(0.0, BETWEEN_S - (time.monotonic() - began)))

    training = threading.Thread(target=train)
    number = 0
    while True:
        with running_ui(config, home, tmp_path / f"{number}.out") as ui:
            if number == 0:
                training.start()
            else:
                down[-1] = (down[-1][0], datetime.now(UTC))
            if number < len(KILLED):
                until(lambda step=KILLED[number]: step in complete, 600, ui.logs)  # type: ignore[misc]
                down.append((datetime.now(UTC), datetime.now(UTC)))
                ui.kill()
                until(lambda ui=ui: not any(map(is_open, (port_of(ui.dagster), port_of(ui.mlflow)))), 60, ui.logs)  # type: ignore[misc]
                number += 1
                continue
            training.join()
            until(lambda: {model for model, status, _ in _evaluations(ui) if status == "SUCCESS"} >= WANTED, 600, ui.logs)
            runs = _evaluations(ui)
        break
    assert Counter(model for model, _, _ in runs if model in WANTED) == Counter(WANTED), "each once"
    started = {int(model.rpartition("-")[2]): start for model, _, start in runs}
    for step, start in started.items():
        waited = sum((end - begin).total_seconds() for begin, end in down if end > complete[step] and begin < start)
        assert (start - complete[step]).total_seconds() - waited < EVALUATED_S, step
    with duckdb.connect(home / "evals.duckdb", read_only=True) as results:
        steps = results.execute("select step, count(*) from learning_curves where eval = 'sums' group by step order by step").fetchall()
        asked = results.execute("select count(*) from attempts where status = 'fresh' or not cached").fetchall()
    assert [step for step, _ in steps] == [step for step in STEPS if step not in DELETED]
    assert asked


def _evaluations(ui: RunningUi) -> list[tuple[str, str, datetime]]:
    """The model, the status and the request of each run that evaluates a checkpoint, except of those whose process was killed."""
    found = []
    for run in ui.query(RUNS)["runsOrError"]["results"]:
        tags = {tag["key"]: tag["value"] for tag in run["tags"]}
        if run["jobName"] == "suite_nightly" and run["status"] != "FAILURE":
            found.append((tags["eval_dagster/model"], run["status"], datetime.fromtimestamp(run["creationTime"], UTC)))
    return found
