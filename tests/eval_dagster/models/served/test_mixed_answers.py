"""A model that changes while it is asked, and says so in its answers: `system_fingerprint` or `model` differ."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from no_mlflow import NoMlflow
from servers.processes import RunningServer, running_server
from servers.stub import stub_server

from eval_dagster.cli.leaderboard import print_leaderboard
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.wording import evidence
from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.catalog import read_rows as query
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pages.server.overview import leaderboard
from eval_dagster.pages.server.results import Parameters
from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

STATES = "2 states of the server"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningServer]:
    with (
        stub_server(tmp_path) as stub,
        running_server("catalogue_program", stub.server.url, model="stub", folder=tmp_path) as proxy,
    ):
        yield proxy


def project_of(folder: Path, proxy: RunningServer, **keys: Any) -> Project:
    model = {"backend": "openai", "base_url": proxy.base_url, "model": "stub", "canaries": 0, **keys}
    evals = {"sums": {"task": "arithmetic", "limit": 10}}
    suites = {"nightly": {"evals": ["sums"], "models": ["served"]}}
    (folder / "evals.yaml").write_text(json.dumps({"models": {"served": model}, "evals": evals, "suites": suites}))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    return replace(project, tracker=NoMlflow(home=folder / "home", tracking_uri=None, experiment="nights"))


def run(project: Project, proxy: RunningServer, *, is_mixed: bool, stages: Any = STAGES) -> list[Outcome]:
    proxy.post("/control/apply", {"name": "identity: one of two fingerprints" if is_mixed else "", "share": float(is_mixed)})
    return list(evaluate(project, [("sums", "served")], stages=set(stages), run_id="run", reporter=SilentReporter()))


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_score_that_mixes_two_states_of_a_server_says_so(proxy: RunningServer, tmp_path: Path, policy: str) -> None:
    last = run(project_of(tmp_path, proxy, mixed_answers=policy), proxy, is_mixed=True, stages={"model_outputs"})[-1]
    said = f"its answers are of {STATES} (`server_fingerprint`)"
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


@pytest.mark.long
def test_gate_and_leaderboard_name_a_score_that_mixes_two_states(
    proxy: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks, causes, pages, printed, findings = [], [], [], [], []
    for night, is_mixed in enumerate([False, True, False]):
        project = project_of(tmp_path, proxy, pin=f"night {night}")
        outcomes = run(project, proxy, is_mixed=is_mixed)
        assert not [each for each in outcomes if isinstance(each, StageFailure)]
        marks += [row["mixed_answers"] for row in query(project.lake, "select mixed_answers from leaderboard")]
        [finding] = query(project.lake, "select * from eval_findings where check_name = 'endpoint_changed'")
        findings.append((finding["status"], finding["n_of"]))
        if is_mixed:
            named = query(project.lake, "select sample_id, server_fingerprint from responses")
            [(most, count), (fewer, less)] = Counter(row["server_fingerprint"] for row in named).most_common()
            assert finding["seen"] == f"the answers name {STATES} (`server_fingerprint`), {most} in {count} of 30 samples"
            assert finding["n"] == less
            assert set(finding["sample_ids"]) <= {row["sample_id"] for row in named if row["server_fingerprint"] == fewer}
            assert len(finding["sample_ids"]) == min(5, less)
        [row] = judge(project, "nightly", run_id="gate").regressions
        causes.append(row.cause)
        with closing(CatalogReader(project.lake)) as reader, reader.state() as state:
            pages.append(leaderboard(state, Parameters({})))
        print_leaderboard(project.lake)
        printed.append(capsys.readouterr().out)
        if is_mixed:
            assert "mixed answers (of several models or states of the server)" in evidence(row)
    assert marks == [None, STATES, None]
    assert findings == [("not checked", None), ("found", 30), ("not checked", None)], "the stub names no state by itself"
    assert causes == [None, "model, mixed answers", "model, mixed baseline"]
    assert [f"mixes {STATES}" in page for page in pages] == [False, True, False]
    assert [STATES in text and "mixed answers" in text for text in printed] == [False, True, False]
    history = "select distinct mixed_answers, materialized_at from metrics_history order by materialized_at"
    assert [row["mixed_answers"] for row in query(project.lake, history)] == marks, "each result keeps its mark"
