"""The page of two models has the proof of `eval-dagster compare`."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from judged_project import Nights
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eval_dagster.cli.app import app
from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.server.application import application


@pytest.mark.long
@pytest.mark.parametrize("lost", [3, 12])
def test_the_verdict_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    nights, rng = Nights(tmp_path), np.random.default_rng(1)
    mine, others = (sorted(rng.choice(range(250), lost, replace=False).tolist()) for _ in range(2))
    nights.evaluate(models=["one", "two"], evals=["left"], numbers=tuple(range(250)), wrong=mine, wrong_of_two=others)
    project = nights.project(models="[one, two]")
    publish(project.lake)
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(nights.folder / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(nights.home))
    printed = CliRunner().invoke(app, ["compare", "one", "two", "--eval", "left", "--format", "json"], catch_exceptions=False).stdout
    [row] = json.loads(printed)
    client = TestClient(application(CatalogReader(project.lake), None), base_url="http://127.0.0.1:4000")
    text = unescape(client.get("/compare?eval=left&a=one&b=two").text)
    assert (row["verdict"] == "not worse (proven)") is (lost == 3)
    assert ("✓ one is not worse (proven) than two" in text) is (lost == 3)
    assert ("no difference seen" in text) is (lost == 12)
    found = re.search(r"(?:proven not|may be) worse by ([\d.]+): p = (\d[\d.]*\d)", text)
    assert found is not None, text
    assert float(found[1]) == row["margin"]
    assert float(found[2]) == pytest.approx(row["margin_p_value"], rel=0.06)
