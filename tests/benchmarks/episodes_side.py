"""The side of this package: `python episodes_side.py WORK.json RESULT.json FOLDER`. Evaluates episodes of ten turns on a server."""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure


def main(work_file: str, result_file: str, _folder: str) -> None:
    """`WORK.json` has `url`, `episodes` and `connections`."""
    work = json.loads(Path(work_file).read_text("utf-8"))
    os.environ["EPISODES"] = str(work["episodes"])
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "evals.yaml"
        config.write_text(
            f"""
models:
  calculator: {{backend: openai, base_url: "{work["url"]}", model: calculator, prompt_format: chat, concurrency: {work["connections"]}}}
evals:
  adding: {{task: "{Path(__file__).resolve().with_name("episodes_task.py")}:Adding"}}
""",
            "utf-8",
        )
        project = Project.open(config_path=config, home=Path(scratch) / "home")
        started, cpu_started = time.perf_counter(), time.process_time()
        outcomes = list(evaluate(project, [("adding", "calculator")], stages=set(STAGES), run_id="bench", reporter=SilentReporter()))
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        project.tracker.close()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # which write to MLflow
        cpu_seconds += children.ru_utime + children.ru_stime
        if failed := [each.message for each in outcomes if isinstance(each, StageFailure)]:
            raise RuntimeError(failed[0])
        publish(project.lake)
        (found,) = read_rows(project.lake, "select value from leaderboard")
    Path(result_file).write_text(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "accuracy": found["value"]}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
