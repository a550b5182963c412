"""A model that changes while it is asked, and says so in its answers: `system_fingerprint` or `model` differ."""

import json
from pathlib import Path

import pytest
from servers.processes import running_server
from servers.stub import stub_server

from eval_dagster.lake.files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.results import StageFailure, StageResult


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_score_that_mixes_two_states_of_a_server_says_so(tmp_path: Path, policy: str) -> None:
    with (
        stub_server(tmp_path) as stub,
        running_server("catalogue_program", stub.server.url, model="stub", folder=tmp_path) as proxy,
    ):
        proxy.post("/control/apply", {"name": "identity: one of two fingerprints", "share": 1.0})
        model = {"backend": "openai", "base_url": proxy.base_url, "model": "stub", "canaries": 0, "mixed_answers": policy}
        evals = {"sums": {"task": "arithmetic", "limit": 10}}
        (tmp_path / "evals.yaml").write_text(json.dumps({"models": {"served": model}, "evals": evals}))
        project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
        outcomes = list(evaluate(project, [("sums", "served")], stages={"model_outputs"}, run_id="run", reporter=SilentReporter()))
    last = outcomes[-1]
    said = "its answers are of 2 states of the server (`server_fingerprint`)"
    if policy == "error":
        assert isinstance(last, StageFailure)
        assert f"{said}, and `mixed_answers: error` is set" in last.message
    else:
        assert isinstance(last, StageResult)
        assert last.warnings == (f"sums|served: {said}, so that its score mixes them",)
        assert last.file.info.counts["server_states"] == 2
        rows = read_rows(last.file.path)
        assert {row["server_fingerprint"] for row in rows} == {"fp_0", "fp_1"}
        assert {tuple(row["server_finish_reason"]) for row in rows} <= {("stop",), ("length",)}, "the words as they came"
