"""What eval-framework itself makes of the invented rows; runs in its own environment: `python theirs.py OUTPUT [CLASS ...]`."""

import importlib
import inspect
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import datasets
import eval_framework.metrics.completion.code_assertion as assertion
import eval_framework.metrics.completion.multipl_e_assertion as multipl_e
import eval_framework.tasks.utils as utils
from eval_framework.metrics.loglikelihood.base import BaseLoglikelihoodMetric
from eval_framework.metrics.loglikelihood.dcs import DistributionalCorrectnessScore
from eval_framework.shared.types import Completion, Loglikelihood
from eval_framework.tasks import benchmarks
from eval_framework.tasks.base import BaseTask, ResponseType
from invented import SAMPLES, SUBJECTS, is_real, loglikelihood, mark, rows_of, texts
from template_formatting.formatter import ConcatFormatter, Llama3Formatter, Message, Role


def classes() -> dict[str, tuple[str, type[BaseTask]]]:
    """The concrete benchmark classes of the release with the names of their modules."""
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        module = importlib.import_module(f"{benchmarks.__name__}.{info.name}")
        for name, value in vars(module).items():
            is_task = inspect.isclass(value) and issubclass(value, BaseTask) and value.__module__ == module.__name__
            if is_task and hasattr(value, "NAME") and hasattr(value, "DATASET_PATH") and not name.startswith("_"):
                found[name] = (info.name, value)
    return found


def load(self: Any, **kwargs: Any) -> datasets.DatasetDict:
    """Replaces the download."""
    splits = rows_of(kwargs.get("path") or self.DATASET_PATH, kwargs.get("name"))
    return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})


def run_local(code: str, *_: Any, timeout: int = 60, **__: Any) -> str:
    """Replaces the container."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(code)
        ended = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=timeout, cwd=folder)
    return (ended.stderr + ended.stdout).strip()


JAR = "/usr/share/java/javatuples.jar"
COMMANDS = {
    "cpp": ["g++ -std=c++17 code.cpp -o program && ./program"],
    "java": [f"javac -encoding UTF8 -cp {JAR} -d . code.java && java -ea -cp .:{JAR} Problem"],
    "js": ["node code.js"],
    "php": ["php code.php"],
    "rs": ["rustc code.rs -o program && ./program"],
    "sh": ["bash code.sh"],
}


def execute(context: Any, completion: str, timeout: int) -> tuple[bool, str]:
    """Replaces the container of a language."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"code.{context.language}").write_text(context.prompt + completion + "\n" + context.tests)
        ended = subprocess.run(COMMANDS[context.language][0], shell=True, cwd=folder, capture_output=True, text=True, timeout=timeout)
    return ended.returncode == 0, ended.stdout + ended.stderr


class Folded(dict):
    """Probabilities by choice. `get` compares as the metrics do, so that the choice "I don't know" is found."""

    def get(self, key: str, default: float = 0.0) -> float:
        return next((value for text, value in self.items() if text.strip().lower() == key.strip().lower()), default)


def probabilities(self: Any, loglikelihoods: dict[str, float]) -> Any:
    """Replaces a method of `DistributionalCorrectnessScore`, which looks for the last choice under another text."""
    compared, found = BaseLoglikelihoodMetric._compute_probabilities(self, loglikelihoods)
    return compared, Folded(found)


def patch(found: dict[str, tuple[str, type[BaseTask]]]) -> None:
    """Keep from the network and from containers."""
    BaseTask._load_hf_dataset = load
    BaseTask.REVISION_LOCKFILE = None  # some classes have none, and cannot be made without it
    BaseTask._apply_hf_revision = lambda self, custom_hf_revision=None: custom_hf_revision
    for module, _ in found.values():
        imported = sys.modules[f"{benchmarks.__name__}.{module}"]
        for value in vars(imported).values():
            if inspect.isclass(value) and issubclass(value, BaseTask) and "_load_hf_dataset" in vars(value):
                value._load_hf_dataset = load
        if hasattr(imported, "_load_social_i_qa"):
            imported._load_social_i_qa = lambda: load(None, path="allenai/social_i_qa")
    DistributionalCorrectnessScore._compute_probabilities = probabilities
    utils.run_python_code = assertion.run_python_code = run_local
    multipl_e.MultiPLECodeAssertion._execute = staticmethod(execute)


def context_of(given: Any) -> Any:
    if isinstance(given, list):
        return [context_of(each) for each in given]
    return None if given is None else [type(given).__name__, given.model_dump()]


def samples_of(task: BaseTask, limit: int) -> list[tuple[Any, dict[str, Any]]]:
    """The samples of the first subjects, each with its row."""
    rows: list[dict[str, Any]] = []
    create = task._create_samples

    def remembering(item: dict[str, Any], index: int, subject: str) -> Any:
        made = create(item, index, subject)
        rows.extend([dict(item)] * len(made))
        return made

    task._create_samples = remembering
    task.SUBJECTS = list(task.SUBJECTS)[:SUBJECTS]
    made = list(task.iterate_samples(limit))
    return list(zip(made, rows[: len(made)], strict=False))


def results(metric: Any, response: Any) -> Any:
    """Name and value of each result; the class of an exception."""
    try:
        return [[each.metric_name, each.value if each.error is None else None] for each in metric.calculate(response)]
    except Exception as error:
        return type(error).__name__


def scored(task: BaseTask, sample: Any, row: dict[str, Any], prompt: str, metrics: list[Any]) -> Any:
    shared = {"id": sample.id, "subject": sample.subject, "ground_truth": sample.ground_truth, "prompt": prompt}
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        values = {choice: loglikelihood(prompt, choice) for choice in sample.possible_completions}
        try:
            response = Loglikelihood(**shared, prompt_sequence_positions=None, loglikelihoods=values, loglikelihoods_sequence_positions={})
        except Exception as error:
            return [type(error).__name__]
        return [{metric.NAME: results(metric, response) for metric in metrics}]
    found = []
    for text in texts(row, sample.ground_truth, sample.id):
        try:
            processed = task.post_process_generated_completion(text, sample)
        except Exception as error:
            found.append(type(error).__name__)
            continue
        messages = [*sample.messages]
        if messages[-1].role is Role.ASSISTANT:
            messages[-1] = Message(role=Role.ASSISTANT, content=messages[-1].content + text)
        else:
            messages.append(Message(role=Role.ASSISTANT, content=text))
        response = Completion(
            **shared,
            prompt_sequence_positions=None,
            messages=messages,
            completion=processed,
            raw_completion=text,
            raw_completion_sequence_positions=None,
            context=sample.context,
        )
        found.append({"completion": processed, **{metric.NAME: results(metric, response) for metric in metrics}})
    return found


def described(name: str, shots: int, with_scores: bool) -> Any:
    """All that eval-framework makes of a class, or the error."""
    module, made = FOUND[name]
    try:
        task = made(num_fewshot=shots)
        found = []
        metrics = [metric() for metric in task.get_metrics()]
        for sample, row in samples_of(task, SAMPLES):
            prompt = ConcatFormatter().format(sample.messages, output_mode="string")
            found.append(
                {
                    "id": sample.id,
                    "subject": sample.subject,
                    "messages": mark([[message.role.value, message.content] for message in sample.messages]),
                    "plain": mark(prompt),
                    "llama3": mark(Llama3Formatter().format(sample.messages, output_mode="string")),
                    "choices": mark(sample.possible_completions),
                    "ground_truth": mark(sample.ground_truth),
                    "context": context_of(sample.context),
                    "scores": scored(task, sample, row, prompt, metrics) if with_scores else None,
                }
            )
        return {
            "module": module,
            "num_fewshot": task.num_fewshot,
            "stops": task.stop_sequences,
            "max_tokens": task.max_tokens,
            "samples": found,
        }
    except Exception:
        return {"module": module, "error": traceback.format_exc()[-1500:]}


if __name__ == "__main__":
    FOUND = classes()
    patch(FOUND)
    real = [name for name, (_, made) in sorted(FOUND.items()) if is_real(made.DATASET_PATH)]
    wanted = sys.argv[2:] or real or sorted(FOUND)
    described_classes = {name: {str(shots): described(name, shots, shots == 0 and not real) for shots in (0, 2)} for name in wanted}
    Path(sys.argv[1]).write_text(json.dumps(described_classes, default=str))
    os._exit(0)
