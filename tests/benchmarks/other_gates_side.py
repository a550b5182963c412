"""The side of another package, in its own environment: `python other_gates_side.py PACKAGE PAIRS.json VERDICTS.json`.

Asks the package's own function about results of one eval in two nights: `[samples, risen, fallen]`, of 60 % right answers. A verdict is
`bad` if the package finds the result worse, `good` if it finds it better or good enough, and `undecided` otherwise.
"""

import json
import logging
import runpy
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

Pair = Sequence[int]
ALPHA = 0.05
WHOLE = 40
"""Pairs of which the files are written, too."""


def values(pair: Pair) -> tuple[list[float], list[float]]:
    """The scores of the earlier night, and of this one."""
    n, risen, fallen = pair
    right = round(0.6 * n) - fallen
    others = [1.0] * right + [0.0] * (n - right - risen - fallen)
    return [0.0] * risen + [1.0] * fallen + others, [1.0] * risen + [0.0] * fallen + others


def mlflow(pairs: Sequence[Pair]) -> list[str]:
    """`mlflow.genai.compare_evaluations`, whose only assertion is that a run is better, in both directions.

    The rows of both runs are given in memory, since the traces of so many runs take hours to write.
    """
    from mlflow.entities.assessment import Feedback
    from mlflow.genai.evaluation.comparison import comparison
    from mlflow.genai.evaluation.comparison.utils import _EvalRow

    # Intervals are not part of the assertion, and take most of the time.
    sys.modules["mlflow.genai.evaluation.comparison.paired_comparison"]._bootstrap_mean_ci = lambda *_: (0.0, 0.0)
    found, feedbacks = [], {score: {"eval": [Feedback(name="eval", value=bool(score))]} for score in (0.0, 1.0)}
    for pair in pairs:
        runs = {
            name: [_EvalRow(f"{name}{place}", str(place), None, False, feedbacks[score]) for place, score in enumerate(scores)]
            for name, scores in zip(("before", "now"), values(pair), strict=True)
        }
        comparison._load_eval_rows = runs.__getitem__

        def is_better(one: str, other: str) -> bool:
            try:
                comparison.compare_evaluations(one, other).assert_improved(alpha=ALPHA)
            except AssertionError:
                return False
            return True

        found.append("bad" if is_better("before", "now") else "good" if is_better("now", "before") else "undecided")
    return found


def nemo(pairs: Sequence[Pair], policy: dict[str, float]) -> list[str]:
    """The thresholds of `nel gate` on its interval of the differences; the whole of `gate_runs`, with its files, on some of the pairs."""
    from nemo_evaluator.config.gate_policy import GatePolicy
    from nemo_evaluator.engine.gate import BenchmarkGateResult, _apply_thresholds, _paired_delta_ci

    words, found = {"BREACH": "bad", "PASS": "good", "INSUFFICIENT_EVIDENCE": "undecided"}, []
    resolved = GatePolicy(defaults=policy).resolve("eval")
    for pair in pairs:
        before, now = values(pair)
        differences = [one - other for one, other in zip(now, before, strict=True)]
        low, high = _paired_delta_ci(differences)
        result = BenchmarkGateResult(delta=round(sum(differences) / len(differences), 6), delta_ci_lower=low, delta_ci_upper=high)
        _apply_thresholds(result, resolved, allow_point_estimate=False)
        found.append(words[result.status])
    some = range(0, len(pairs), max(1, len(pairs) // WHOLE))
    whole = gated([pairs[place] for place in some], policy)
    if (parts := [found[place] for place in some]) != [words[each] for each in whole]:
        raise AssertionError(f"the thresholds say {parts}; expected what gate_runs says: {whole}")
    return found


def gated(pairs: Sequence[Pair], policy: dict[str, float]) -> list[str]:
    """The status of each pair by `gate_runs`."""
    from nemo_evaluator.config.gate_policy import GatePolicy
    from nemo_evaluator.engine.gate import gate_runs

    with tempfile.TemporaryDirectory() as work:
        for number, pair in enumerate(pairs):
            for night, scores in zip(("before", "now"), values(pair), strict=True):
                folder = Path(work, night, str(number))
                folder.mkdir(parents=True)
                mean = {"mean_reward": {"value": sum(scores) / len(scores)}}
                bundle = {"run_id": night, "benchmark": {"name": str(number), "samples": len(scores), "scores": mean}}
                (folder / "eval-1.json").write_text(json.dumps(bundle))
                rows = ({"problem_idx": place, "repeat": 0, "reward": score} for place, score in enumerate(scores))
                (folder / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        report = gate_runs(Path(work, "before"), Path(work, "now"), GatePolicy(defaults=policy))
        statuses = {each.benchmark: each.status for each in report.benchmarks}
    return [statuses[str(number)] for number in range(len(pairs))]


def lmms_eval(pairs: Sequence[Pair]) -> list[str]:
    """The paired t-test of `--baseline`. It prints a p-value and no verdict, so the usual level is taken."""
    from lmms_eval.api.metrics import paired_ttest

    found = []
    for pair in pairs:
        before, now = values(pair)
        result = paired_ttest(now, before)
        is_clear = result["p_value"] < ALPHA
        found.append("undecided" if not is_clear else "bad" if result["mean_diff"] < 0 else "good")
    return found


def lm_eval(pairs: Sequence[Pair]) -> list[str]:
    """The two-sample z-test of the repository's `scripts/model_comparator.py`, which marks models that differ by the usual level."""
    from lm_eval import utils
    from lm_eval.api.metrics import mean_stderr

    utils.eval_logger = logging.getLogger()  # the script takes it from there, where the release no longer has it
    script = runpy.run_path(str(Path(sys.prefix, "model_comparator.py")))

    def result(scores: list[float]) -> dict[str, float]:
        return {"acc,none": sum(scores) / len(scores), "acc_stderr,none": mean_stderr(scores)}

    found = []
    for pair in pairs:
        before, now = map(result, values(pair))
        z, p_value = script["calculate_z_value"](now, before)
        found.append("undecided" if p_value > ALPHA else "bad" if z < 0 else "good")
    return found


def main(package: str, pairs_file: str, verdicts_file: str) -> None:
    pairs = json.loads(Path(pairs_file).read_text("utf-8"))
    verdicts = {
        "mlflow": lambda: mlflow(pairs),
        "nemo-evaluator": lambda: nemo(pairs, {}),
        "nemo-evaluator, 3 points": lambda: nemo(pairs, {"max_drop": 0.03}),
        "lmms-eval": lambda: lmms_eval(pairs),
        "lm-eval": lambda: lm_eval(pairs),
    }[package]()
    Path(verdicts_file).write_text(json.dumps({"version": version(package.partition(",")[0]), "verdicts": verdicts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
