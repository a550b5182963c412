"""Makes logs by the released inspect_ai, in an environment that has it, and writes the scores that it reads from them: `FOLDER SCORES`."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai import eval as evaluate
from inspect_ai.analysis import samples_df
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import list_eval_logs, read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, Score, accuracy, match, mean, scorer, stderr
from inspect_ai.solver import generate, solver, system_message, use_tools
from inspect_ai.tool import ToolError, tool


def _with_usage(output):
    output.usage = ModelUsage(input_tokens=12, output_tokens=5, total_tokens=17)  # without it, a tokenizer is fetched
    return output


def _number(messages):
    return next(int(each.text.split("plus ")[1]) for each in messages if "plus " in each.text)


def _answers(messages, _tools, _choice, _config):
    number = _number(messages)
    return _with_usage(ModelOutput.from_content("mockllm/model", f"{number + (number % 3 > 0)}"))


def _calls(messages, _tools, _choice, _config):
    if messages[-1].role == "tool":
        return _with_usage(ModelOutput.from_content("mockllm/model", messages[-1].text))
    return _with_usage(ModelOutput.for_tool_call("mockllm/model", "add", {"x": _number(messages), "y": 1}))


@tool
def add():
    async def execute(x: int, y: int):
        """Add two numbers.

        Args:
            x: The first.
            y: The second.
        """
        if x == 7:
            raise ToolError("no seven")
        return str(x + y)

    return execute


@scorer(metrics={"length": [mean()], "right": [mean(), stderr()]})
def detail():
    async def score(state, target):
        text = state.output.completion
        return Score(value={"length": len(text), "right": target.text in text}, answer=text, explanation="by its letters")

    return score


@scorer(metrics=[accuracy(), stderr()])
def letters():
    async def score(state, _target):
        return Score(value=[CORRECT, INCORRECT, PARTIAL, NOANSWER][_number(state.messages) % 4])

    return score


@scorer(metrics=[mean()])
def gaps():
    async def score(state, _target):
        number = _number(state.messages)
        if number == 3:
            raise ValueError("the scorer broke")
        return Score(value=float("nan") if number == 2 else number / 4)

    return score


@solver
def fails():
    async def solve(state, _generate):
        if _number(state.messages) % 5 == 4:
            raise RuntimeError("the solver broke")
        return state

    return solve


@solver
def waits():
    async def solve(state, _generate):
        if _number(state.messages) > 5:
            await asyncio.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return state

    return solve


def _rows(count, odd=False):
    names = [f"a/b {number}_epoch_2.json é" if odd else number for number in range(count)]
    return MemoryDataset([Sample(id=name, input=f"1 plus {i}", target=str(i + 1)) for i, name in enumerate(names)], name="sums")


@task
def sums():
    return Task(dataset=_rows(12), solver=[system_message("Be brief."), generate()], scorer=[match(), letters(), detail()])


@task
def failing():
    return Task(dataset=_rows(12, odd=True), solver=[fails(), generate()], scorer=[match(), gaps()])


@task
def tools():
    return Task(dataset=_rows(9), solver=[use_tools(add()), generate()], scorer=match())


@task
def killed():
    return Task(dataset=_rows(9), solver=[waits(), generate()], scorer=match())


def main(folder, scores):
    common = {"log_dir": folder, "display": "none"}
    answering, calling = (get_model("mockllm/model", custom_outputs=each, memoize=False) for each in (_answers, _calls))
    for epochs in (1, 3):
        evaluate(sums(), model=answering, epochs=epochs, **common)
    for fail_on_error in (False, True):
        evaluate(failing(), model=answering, fail_on_error=fail_on_error, **common)
    evaluate(tools(), model=calling, **common)
    evaluate(tools(), model=calling, message_limit=3, **common)
    if not os.fork():
        evaluate(killed(), model=answering, log_buffer=1, max_samples=1, log_realtime=False, **common)
        os._exit(1)
    os.wait()
    frame = samples_df(folder, quiet=True)
    columns = [name for name in frame.columns if name.startswith("score_")]
    rows = [
        {
            "log": row["eval_id"],
            "id": str(row["id"]),
            "epoch": int(row["epoch"]),
            "error": row["error"] if isinstance(row["error"], str) else "",
            "scores": {name.removeprefix("score_"): row[name] for name in columns if row[name] is not None and row[name] == row[name]},
        }
        for row in frame.to_dict("records")
    ]
    means = {}
    for log in list_eval_logs(folder):
        header = read_eval_log(log, header_only=True)
        for each in header.results.scores if header.results else ():
            value = each.metrics.get("accuracy") or each.metrics.get("mean")
            name = each.scorer if each.name == each.scorer else f"{each.scorer}/{each.name}"
            means.setdefault(header.eval.eval_id, {})[name] = value.value
    Path(scores).write_text(json.dumps({"rows": rows, "means": means}), "utf-8")


main(*sys.argv[1:])
