"""lm-eval's own evaluation of a task over given rows and answers: `python itself.py given.json`. It runs in the environment of lm-eval."""

import json
import sys
from pathlib import Path
from typing import Any

import datasets
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate

GIVEN = json.loads(Path(sys.argv[1]).read_text("utf-8"))


class Table(LM):  # type: ignore[misc]
    """Answers a prompt by the key that its end contains."""

    def generate_until(self, requests: Any, **_: Any) -> list[str]:
        return [next(text for key, text in GIVEN["answers"].items() if key in each.args[0]) for each in requests]

    def loglikelihood(self, requests: Any, **_: Any) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any, **_: Any) -> Any:
        raise NotImplementedError


def main() -> None:
    """Print the prompts, the values of each document and the aggregates."""
    made = {split: datasets.Dataset.from_list(rows) for split, rows in GIVEN["splits"].items()}
    datasets.load_dataset = lambda *_, **__: datasets.DatasetDict(made)
    found = simple_evaluate(Table(), tasks=[GIVEN["task"]], log_samples=True, bootstrap_iters=0, verbosity="ERROR")
    samples = found["samples"][GIVEN["task"]]
    values = [{name: each[name] for name in each["metrics"]} for each in samples]
    about = {
        "prompts": [
            each["arguments"]["gen_args_0"]["arg_0"] if isinstance(each["arguments"], dict) else each["arguments"][0][0] for each in samples
        ]
    }
    results = {name.partition(",")[0]: value for name, value in found["results"][GIVEN["task"]].items() if "stderr" not in name}
    sys.stdout.write(json.dumps({**about, "values": values, "results": results}, default=float))


if __name__ == "__main__":
    main()
