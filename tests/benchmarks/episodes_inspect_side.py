"""The side of inspect_ai: `python episodes_inspect_side.py WORK.json RESULT.json FOLDER`, in an environment that holds it."""

import json
import sys
import tempfile
import time
from pathlib import Path

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    """The same tool."""

    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: The first number.
            y: The second number.
        """
        return x + y

    return execute


def main(work_file: str, result_file: str, _folder: str) -> None:
    """`WORK.json` has `url`, `episodes` and `connections`."""
    work = json.loads(Path(work_file).read_text("utf-8"))
    samples = [Sample(input=f"Question {number}: add one nine times.", target="9", id=number) for number in range(work["episodes"])]
    task = Task(dataset=samples, solver=[use_tools(add()), generate(tool_calls="loop")], scorer=match())
    with tempfile.TemporaryDirectory() as scratch:
        started, cpu_started = time.perf_counter(), time.process_time()
        (log,) = evaluate(
            task,
            model="openai-api/local/calculator",
            model_base_url=work["url"],
            model_args={"api_key": "none"},
            max_connections=work["connections"],
            max_samples=work["connections"],
            display="none",
            log_dir=scratch,
            log_realtime=False,
        )
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if log.status != "success" or log.results is None:
        raise RuntimeError(str(log.error))
    accuracy = log.results.scores[0].metrics["accuracy"].value
    Path(result_file).write_text(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "accuracy": accuracy}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
