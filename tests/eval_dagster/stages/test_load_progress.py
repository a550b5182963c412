"""What loading a model takes its time for has a line each, and so has each eval's scoring and generating."""

from pathlib import Path

from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import LogReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

CONFIG = """
models:
  tiny: {{backend: transformers, source: {{folder: {folder}}}, device: cpu, generation: {{max_tokens: 4}}}}
evals:
  capitals: {{task: capitals, subjects: [europe], limit: 2}}
  completion: {{task: capitals_completion, limit: 1}}
"""


def test_each_step_of_the_first_load_has_a_line_with_its_seconds(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "evals.yaml").write_text(CONFIG.format(folder=tiny_model))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    lines: list[str] = []
    partitions = [(name, "tiny") for name in ("capitals", "completion")]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=LogReporter(lines.append, every_s=60)))
    assert not [outcome for outcome in outcomes if isinstance(outcome, StageFailure)]
    model_lines = [line.split(":")[0] for line in lines if not line.startswith(("dataset", "rendered", "sample", "task_metrics"))]
    assert model_lines == [
        "import torch and transformers",
        "read the weights of tiny",
        "pack the layers of tiny",
        "check how tiny can be scored",
        "load tiny",
        "score capitals tiny",
        "check how texts can be generated",
        "generate completion tiny",
    ]
    assert all(" s" in line for line in lines)
