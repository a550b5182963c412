"""Compares evals of lm-eval's tasks with lm-eval's own evaluation of the same rows."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
from lm_eval.evaluator import evaluate
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from eval_dagster.peers.lm_eval.index import package_folder, package_index
from eval_dagster.peers.lm_eval.registry import LmEvalRegistry
from tests.peers.lm_eval.invented_rows import Inventor, quiet
from tests.peers.lm_eval.ours import Outcome, outcomes, project_of
from tests.peers.lm_eval.reference import HashLM, rows_instead, stored

CLOSE = 1e-9


@dataclass
class Report:
    """What a comparison of a task found, at one number of examples, plain or chat."""

    task: str
    shots: int
    model: str
    requests: int = 0
    values: int = 0
    aggregates: int = 0
    leaks: int = 0
    """Documents whose examples held the question itself in lm-eval."""
    differences: list[str] = field(default_factory=list)


def invent(name: str) -> tuple[Mapping[str, Any], dict[str, list[dict[str, Any]]], int]:
    """The configuration of a task, and rows for it. Raises `LookupError` where none are found."""
    entry = package_index()[name]
    LmEvalRegistry().benchmark(name, Path()).version()
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(package_folder() / entry.file)
    inventor = Inventor(config, name)
    rows = inventor.rows()
    return config, rows, inventor.shots


def compare(names: Sequence[str], folder: Path, *, models: Sequence[str] = ("plain", "chat"), shots: int | None = None) -> list[Report]:
    """Reports on tasks at no example and at a task's own number or `shots`."""
    folder.mkdir(exist_ok=True)
    places: dict[str, Path] = {}
    evals: dict[str, dict[str, Any]] = {}
    parents = sorted({str((package_folder() / package_index()[name].file).parent) for name in names})
    parents = sorted({str((package_folder() / package_index()[name].file).parent) for name in names})
    manager = TaskManager(include_defaults=False, include_path=parents)
    for name in names:
        config, rows, with_examples = invent(name)
        places[name] = written_rows(folder, config, rows)
        final = config.get("num_fewshot")
        for count in dict.fromkeys([0] if final == 0 or not with_examples else [0, shots or final or 2]):
            evals[f"{name}-{count}"] = {"task": f"lm_eval:{name}", "num_fewshot": min(count, 3)}
    golds: dict[str, str] = {}
    theirs: dict[tuple[str, str], Any] = {}
    for key, settings in evals.items():
        for model in models:
            name = key.rpartition("-")[0]
            try:
                theirs[key, model] = _theirs(manager, name, places[name], settings["num_fewshot"], model == "chat", golds)
            except Exception as error:  # of a task's own code: it was tried with other answers and with one example
                raise LookupError(f"{name}: lm-eval itself fails on the rows: {type(error).__name__}: {error}") from error
    found = outcomes(project_of(folder, evals, golds), models)
    return [
        _report(key.rpartition("-")[0], evals[key]["num_fewshot"], model, found[key, model], results)
        for (key, model), results in theirs.items()
    ]


def written_rows(folder: Path, config: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    given = config.get("class")
    path = config.get("dataset_path") or getattr(given, "DATASET_PATH", None)
    place = folder / "mirror" / str(path) / str(config.get("dataset_name") or getattr(given, "DATASET_NAME", None) or "default")
    place.mkdir(parents=True, exist_ok=True)
    for split, listed in rows.items():
        datasets.Dataset.from_list([dict(row) for row in listed]).to_parquet(place / f"{split}.parquet")
    listed = (config.get("dataset_kwargs") or {}).get("data_files")
    for split, file in listed.items() if isinstance(listed, Mapping) else ():
        if split in rows:
            _write_listed(folder / "mirror", str(path), file if isinstance(file, str) else file[0], config, rows[split])
    return place


def _write_listed(mirror: Path, path: str, file: str, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows of a split as the file that the configuration names for it."""
    name = file.removeprefix("hf://datasets/") if "://" in file else f"{path}/{file}"
    (mirror / name).parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([dict(row) for row in rows])
    if ".csv" in name:
        columns = config["dataset_kwargs"].get("column_names")
        frame.to_csv(mirror / name, index=False, header=columns is None, columns=columns)
    elif ".json" in name:
        frame.to_json(mirror / name, orient="records", lines=True)
    else:
        frame.to_parquet(mirror / name)


def _theirs(manager: TaskManager, name: str, place: Path, shots: int, is_chat: bool, golds: dict[str, str]) -> tuple[Any, Any]:
    with quiet(), rows_instead(stored(place)):
        random.seed(0)
        np.random.seed(1234)
        task = manager.load([name])["tasks"][name]
        task.set_config("num_fewshot", shots)
        task.set_fewshot_seed(1234)
        model = HashLM()
        _collect_golds(task, model, golds, shots, is_chat)
        task.set_fewshot_seed(1234)
        drawn = _recorded_draws(task)
        results = evaluate(
            model, {"tasks": {name: task}}, bootstrap_iters=0, apply_chat_template=is_chat, fewshot_as_multiturn=is_chat, log_samples=True
        )
    return [each["doc"] in draw for each, draw in zip(_first_samples(results["samples"][name]), drawn, strict=False)], results


def _recorded_draws(task: Any) -> list[list[Any]]:
    """The examples of each document, filled while lm-eval makes its requests."""
    found: list[list[Any]] = []
    if hasattr(task, "sampler"):
        draw = task.sampler.sample

        def sample(*arguments: Any, **named: Any) -> Any:
            found.append(list(draw(*arguments, **named)))
            return found[-1]

        task.sampler.sample = sample
    return found


def _first_samples(samples: Sequence[Any]) -> list[Any]:
    """One record a document: each filter has its own."""
    return list({each["doc_id"]: each for each in samples}.values())


def _collect_golds(task: Any, model: HashLM, golds: dict[str, str], shots: int, is_chat: bool) -> None:
    """The correct text of each prompt, so that some of the answers are right."""
    if task.OUTPUT_TYPE == "generate_until":
        template = model.apply_chat_template if is_chat else None
        task.build_all_requests(apply_chat_template=is_chat, fewshot_as_multiturn=is_chat, chat_template=template)
        for each in task.instances:
            target = task.doc_to_target(each.doc)
            target = target[0] if isinstance(target, list) and target else target
            golds[each.args[0]] = f"So the answer is {target}" if len(golds) % 2 else str(target)
    model.golds = golds


def _report(name: str, shots: int, model: str, ours: Outcome, theirs: tuple[Any, Any]) -> Report:
    report = Report(name, shots, model)
    leaks, results = theirs
    if ours.failure is not None:
        report.differences.append(ours.failure[:300])
        return report
    samples = results["samples"][name]
    by_doc: dict[int, list[Any]] = {}
    for each in samples:
        by_doc.setdefault(each["doc_id"], []).append(each)
    if len(by_doc) != len(ours.docs):
        report.differences.append(f"{len(ours.docs)} documents, lm-eval has {len(by_doc)}")
        return report
    leaking = set()
    for number, listed in by_doc.items():
        if shots and number < len(leaks) and leaks[number]:
            leaking.add(number)
            continue
        _compare_requests(report, ours.docs[number], listed[0], number)
        for each in listed:
            _compare_values(report, ours.docs[number], each, number)
    report.leaks = len(leaking)
    if not leaking:
        _compare_aggregates(report, ours, results["results"][name])
    return report


def _compare_requests(report: Report, ours: Any, sample: Mapping[str, Any], number: int) -> None:
    for position, theirs in enumerate(sample["arguments"]):
        report.requests += 1
        texts = tuple(each for each in theirs if isinstance(each, str))
        if ours.requests.get(position) != texts:
            report.differences.append(f"request {number}.{position}: {ours.requests.get(position)!r:.300} != {texts!r:.300}")
        if len(theirs) == 2 and isinstance(theirs[1], dict):
            _compare_settings(report, ours, theirs[1], number)


def _compare_settings(report: Report, ours: Any, given: dict[str, Any], number: int) -> None:
    settings, _ = ours.settings[0]
    wanted = normalize_gen_kwargs(given)
    until = tuple(dict.fromkeys(each for each in wanted["until"] if each))
    pairs = [(settings.stop_sequences, until), (settings.max_tokens, wanted["max_gen_toks"])]
    temperature = wanted.get("temperature") or (1.0 if wanted["do_sample"] else 0.0)
    pairs.append((settings.temperature, temperature))
    if temperature:
        pairs += [(settings.top_p, wanted.get("top_p")), (settings.top_k, wanted.get("top_k"))]
    report.differences += [f"settings {number}: {mine!r} != {theirs!r}" for mine, theirs in pairs if mine != theirs]


def _compare_values(report: Report, ours: Any, sample: Mapping[str, Any], number: int) -> None:
    part = "" if sample["filter"] == "none" else f"/{sample['filter']}"
    for metric in sample["metrics"]:
        report.values += 1
        key = f"{metric.replace('/', '.')}{part}"
        if isinstance(sample[metric], float) and math.isnan(sample[metric]) and key in ours.errors:
            continue
        if key not in ours.values:
            report.differences.append(f"value {number} {key}: none here ({ours.errors}), lm-eval has {sample[metric]!r:.200}")
        elif not same(ours.values[key], sample[metric]):
            report.differences.append(f"value {number} {key}: {ours.values[key]!r:.200} != {sample[metric]!r:.200}")


def _compare_aggregates(report: Report, ours: Outcome, theirs: Mapping[str, Any]) -> None:
    for key, value in theirs.items():
        metric, comma, filtered = key.partition(",")
        if not comma or metric.endswith("_stderr") or isinstance(value, str):
            continue
        name = metric.replace("/", ".") + ("" if filtered == "none" else f"/{filtered}")
        report.aggregates += 1
        mine = ours.aggregates.get(name)
        if not same(math.nan if mine is None else mine, value):
            report.differences.append(f"aggregate {name}: {mine!r} != {value!r}")


def same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal, numbers within rounding; a tuple is no list."""
    if isinstance(theirs, bool | int | float | np.number | np.bool_):
        if not isinstance(mine, bool | int | float | np.number):
            return False
        return (math.isnan(mine) and math.isnan(theirs)) or math.isclose(mine, theirs, rel_tol=CLOSE, abs_tol=CLOSE) or mine == theirs
    if isinstance(theirs, np.ndarray):
        return isinstance(mine, np.ndarray) and np.array_equal(mine, theirs, equal_nan=theirs.dtype.kind == "f")
    if isinstance(theirs, list | tuple):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(theirs, dict):
        return isinstance(mine, dict) and mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in theirs)
    return bool(mine == theirs)
