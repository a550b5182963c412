"""`import-suite eval_framework:FILE.yaml`: suite files of eval-framework 0.15 as sections of evals.yaml."""

import textwrap
from pathlib import Path

import pytest
import yaml

from eval_dagster.cli.registries import import_suite
from eval_dagster.cli.suite_files import read_suite_file
from eval_dagster.config.loading import load_config
from eval_dagster.errors import UsageError

FILE = """
    name: All of it
    num_samples: 50
    temperature: 0.7
    tasks:
      - name: knowledge
        num_fewshot: 5
        tasks:
          - MMLU
          - {name: ARC hard, tasks: ARC, task_subjects: [ARC-Challenge], repeats: 4}
        aggregates:
          - name: mean accuracy
            sources:
              - {child: MMLU, metric: Average Accuracy Loglikelihood}
              - {child: ARC hard, metric: Average Accuracy Loglikelihood}
      - {tasks: MMLU, num_fewshot: 0, hf_revision: main}
      - {tasks: GSM8K, max_tokens: 512}
    aggregates:
      - name: overall
        method: mean
        sources:
          - {child: knowledge, metric: mean accuracy}
          - {child: MMLU, metric: Average Accuracy Loglikelihood}
      - name: middle
        method: median
        sources:
          - {child: MMLU, metric: Average Accuracy Loglikelihood}
          - {child: GSM8K, metric: Average Accuracy Completion}
      - name: lost
        method: median
        sources:
          - {child: knowledge, metric: mean accuracy}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    (tmp_path / "evals.yaml").write_text("models:\n  small: {backend: scripted, default: a}\nevals:\n  sums: {task: arithmetic}\n")
    (tmp_path / "suite.yaml").write_text(textwrap.dedent(FILE))
    return tmp_path


def test_suites_settings_and_aggregates_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_suite("eval_framework:suite.yaml")
    printed = capsys.readouterr().out
    found = yaml.safe_load(printed)
    assert found["evals"] == {
        "MMLU": {"task": "eval_framework:MMLU", "limit": 50, "num_fewshot": 5},
        "ARC-hard": {"task": "eval_framework:ARC", "limit": 50, "num_fewshot": 5, "subjects": ["ARC-Challenge"], "num_samples": 4},
        "MMLU-2": {"task": "eval_framework:MMLU", "limit": 50, "num_fewshot": 0},
        "GSM8K": {"task": "eval_framework:GSM8K", "limit": 50},
    }
    inner, outer = found["suites"]["knowledge"], found["suites"]["All-of-it"]
    assert inner == {
        "evals": ["MMLU", "ARC-hard"],
        "models": ["small"],
        "aggregates": {"mean-accuracy": {"of": "mean", "evals": ["MMLU", "ARC-hard"], "metric": "Accuracy Loglikelihood"}},
    }
    assert outer["evals"] == ["MMLU", "ARC-hard", "MMLU-2", "GSM8K"]
    # The mean of a mean of two and of one: a quarter, a quarter, a half.
    weights = {"MMLU": 0.25, "ARC-hard": 0.25, "MMLU-2": 0.5}
    overall = {"of": "weighted", "evals": list(weights), "weights": weights, "metric": "Accuracy Loglikelihood"}
    assert outer["aggregates"] == {"overall": overall, "middle": {"of": "median", "evals": ["MMLU-2", "GSM8K"]}}
    notes = [line for line in printed.splitlines() if line.startswith("#")]
    assert "# temperature of MMLU is 0.7: set it in `generation` or `batch_size` of the models." in notes
    assert "# hf_revision of MMLU is 'main', which may move: set dataset_revision to a full commit hash." in notes
    assert any("'middle' takes the headline metric of each eval" in note for note in notes)
    assert any("'lost' is left out: it takes 'mean accuracy' of the suite 'knowledge'" in note for note in notes)


def test_the_sections_are_right_beside_the_models(folder: Path) -> None:
    import_suite("eval_framework:suite.yaml", file=folder / "sections.yaml")
    given = yaml.safe_load((folder / "evals.yaml").read_text())
    made = yaml.safe_load((folder / "sections.yaml").read_text())
    (folder / "whole.yaml").write_text(yaml.safe_dump({**given, "evals": {**given["evals"], **made["evals"]}, "suites": made["suites"]}))
    config = load_config(folder / "whole.yaml", registries=["eval_framework"])
    assert config.suites["All-of-it"].aggregates["overall"].weights == {"MMLU": 0.25, "ARC-hard": 0.25, "MMLU-2": 0.5}
    with pytest.raises(UsageError, match="exists; name another file"):
        import_suite("eval_framework:suite.yaml", file=folder / "sections.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tasks: []", "expected a mapping with tasks"),
        ("- MMLU", "expected a mapping with tasks"),
        ("{name: a, tasks: [MMLU], num_fewshots: 3}", "found the unknown key 'num_fewshots'.*did you mean 'num_fewshot'"),
        ("tasks: [MMLU]", "found no name"),
        ("{name: a, tasks: [MMLU, MMLU]}", "two children of one name"),
        ("{name: a, tasks: [MMLU], aggregates: [{name: m, sources: [{child: MMU, metric: x}]}]}", "did you mean 'MMLU'"),
        (
            "{name: a, tasks: [MMLU], aggregates: [{name: m, method: max, sources: [{child: MMLU, metric: x}]}]}",
            "expected 'mean' or 'median'",
        ),
        ("{", "cannot be read as YAML"),
    ],
)
def test_what_is_no_suite_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_suite_file(path, ["m"])
