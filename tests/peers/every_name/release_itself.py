"""A release of eval-framework by itself, on invented rows, in its environment: `python release_itself.py OUTPUT SHOTS,... NAME ...`.
`python release_itself.py OUTPUT names` writes its names alone.

For each name and number of examples: messages, choices, correct answers, stop sequences, and values of the metrics by kind of answer.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import datasets
import langdetect

sys.path.insert(0, str(Path(__file__).parent))
import containers
from stand_in import KINDS, SAMPLES, SUBJECTS, loglikelihoods, rows_of, text

REAL = os.environ.get("REAL_ROWS")
"""A folder of datasets whose rows are compared instead of invented ones."""


def load(path: str, name: str | None = None, **_: Any) -> datasets.DatasetDict:
    splits = real_rows(path, name) if REAL else rows_of(path, name)
    return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})


def real_rows(path: str, name: str | None) -> dict[str, list[dict[str, Any]]]:
    import pyarrow.parquet as parquet

    folder = Path(str(REAL)) / path
    folder = folder / name if name else next(iter(sorted(folder.iterdir())))
    return {file.name.partition("-")[0]: parquet.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))}


langdetect.DetectorFactory.seed = 0  # without a seed, the release gives other values in each run
datasets.load_dataset = load
datasets.disable_progress_bars()


import eval_framework.tasks  # noqa: E402, F401 - registers all
from eval_framework.contract import ResponseType  # noqa: E402
from eval_framework.metrics.llm.base import BaseLLMJudgeMetric  # noqa: E402
from eval_framework.shared.types import Loglikelihood, RawCompletion  # noqa: E402
from eval_framework.tasks.base import RANDOM_SEED  # noqa: E402
from eval_framework.tasks.registry import registry  # noqa: E402
from template_formatting.formatter import ConcatFormatter, Llama3Formatter  # noqa: E402

sys.modules["eval_framework.metrics.completion.multipl_e_assertion"]._get_javatuples_jar = lambda: containers.JAR


class Model:
    """Gives one kind of answer."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def generate(self, samples: list[Any], **_: Any) -> list[RawCompletion]:
        return [
            RawCompletion(
                prompt=plain(each),
                prompt_num_tokens=None,
                completion=text(self.kind, plain(each), truths(each)),
                completion_num_tokens=None,
            )
            for each in samples
        ]

    def post_process_completion(self, completion: str, _: Any) -> str:
        return completion


def plain(sample: Any) -> str:
    return ConcatFormatter().format(sample.messages, output_mode="string")


def truths(sample: Any) -> list[str]:
    return [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or [])


def responses_of(made: Any, samples: list[Any], kind: str) -> list[Any]:
    if made.get_response_type() is ResponseType.COMPLETION:
        return made.generate_completions(Model(kind), samples, fail_on_error=False)
    found = []
    for sample in samples:
        values = loglikelihoods(kind, plain(sample), sample.possible_completions, truths(sample))
        found.append(
            Loglikelihood(
                id=sample.id,
                subject=sample.subject,
                ground_truth=sample.ground_truth,
                prompt=plain(sample),
                prompt_num_tokens=None,
                loglikelihoods=dict(zip(sample.possible_completions, values, strict=True)),
                loglikelihoods_num_tokens={},
            )
        )
    return found


def scored(benchmark: Any, made: Any, samples: list[Any], kind: str) -> list[dict[str, Any]]:
    """By sample, the values of the metrics: a number, or `error`."""
    responses = responses_of(made, samples, kind)
    found: list[dict[str, Any]] = [{} for _ in responses]
    for metric_class in benchmark.metrics():
        metric = metric_class()
        metric.prepare(responses)
        for response, values in zip(responses, found, strict=True):
            try:
                results = metric.calculate(response)
            except Exception as error:
                values[metric.NAME] = ["error", f"{type(error).__name__}: {error}"[:200]]
                continue
            for result in results:
                if result.error is not None:
                    values[result.metric_name] = ["error", f"{result.error.error_class}: {result.error.message}"[:200]]
                elif result.value is not None:
                    values.setdefault(result.metric_name, []).append(float(result.value))
    return found


def described(name: str, shots: int) -> dict[str, Any]:
    benchmark = registry()[name]
    subjects = [str(each) for each in benchmark.subjects()]
    wanted = [[each] for each in subjects[:SUBJECTS]] if len(subjects) > 1 else [None]
    # Each subject by a run of its own: in one run, the generator goes on from subject to subject.
    made_each = [benchmark.create(shots, each, None, seed=RANDOM_SEED) for each in wanted]
    samples = [sample for each in made_each for sample in each.iterate_samples(None if REAL else SAMPLES)]
    made = made_each[0]
    kinds = () if shots or REAL or any(issubclass(each, BaseLLMJudgeMetric) for each in benchmark.metrics()) else KINDS
    return {
        "subjects": subjects[:SUBJECTS],
        "stops": sorted(set(made.get_stop_sequences())),
        "max_tokens": made.get_max_tokens(),
        "samples": [
            {
                "subject": sample.subject,
                "messages": [[each.role.value, each.content] for each in sample.messages],
                "plain": plain(sample),
                "llama3": Llama3Formatter().format(sample.messages, output_mode="string"),
                "choices": sample.possible_completions,
                "ground_truth": sample.ground_truth,
            }
            for sample in samples
        ],
        "values": {kind: scored(benchmark, made, samples, kind) for kind in kinds},
    }


def outcome(name: str, shots: int) -> dict[str, Any]:
    try:
        return described(name, shots)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-1500:]}


if __name__ == "__main__":
    if sys.argv[2] == "names":
        Path(sys.argv[1]).write_text(json.dumps(list(registry())))
        os._exit(0)
    names = sys.argv[3:] or list(registry())
    shots = [int(each) for each in sys.argv[2].split(",")]
    found = {name: {str(each): outcome(name, each) for each in shots} for name in names}
    Path(sys.argv[1]).write_text(json.dumps(found))
    os._exit(0)
