"""A night that stopped early, on pages and in `compare`: it is no ordinary result."""

import json
import os
from typing import Any

import pytest
from commands import run_command
from judged_project import Nights
from starlette.testclient import TestClient

from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.server.application import application

MANY = tuple(range(500))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """A full night, and one that stopped early."""
    nights = Nights(tmp_path_factory.mktemp("parts"))
    nights.night(numbers=MANY, gate="stop: early")
    nights.night(numbers=MANY, question="Please say", gate="stop: early")
    publish(nights.project().lake)
    return nights


def _rows(reader: CatalogReader, query: str) -> list[dict[str, Any]]:
    with reader.state() as state:
        return state.rows(query)


@pytest.mark.long
def test_pages_show_how_many_samples_were_asked(nights: Nights) -> None:
    reader = CatalogReader(nights.project().lake)
    client = TestClient(application(reader), base_url="http://127.0.0.1:4000")
    (row,) = _rows(reader, "select n, n_not_asked from metrics where eval = 'left' and is_headline and subject is null")
    said = f"stopped early: {row['n']} of 500 "
    assert row["n"] + row["n_not_asked"] == 500

    history = client.get("/history?eval=left&model=one").text
    assert history.count(said) == 1, "the first night was asked in full"
    assert history.count('class="mark part"') == 1
    assert "stopped early:" not in client.get("/history?eval=right&model=one").text
    samples = client.get("/samples?eval=left&model=one").text
    assert samples.count(said) == 1
    assert "The answers decided when to stop" in samples
    (first,) = _rows(reader, "select min(materialized_at) as at from metrics_history where eval = 'left'")
    assert "stopped early:" not in client.get("/samples", params={"eval": "left", "model": "one", "at": first["at"].isoformat()}).text
    reader.close()


@pytest.mark.long
def test_compare_says_that_a_result_is_a_part(nights: Nights) -> None:
    nights.project()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "EVAL_DAGSTER_"))}
    environment |= {"EVAL_DAGSTER_CONFIG": str(nights.folder / "evals.yaml"), "EVAL_DAGSTER_HOME": str(nights.home)}
    for pair, is_part in ((("one", "one@previous"), True), (("one@previous", "one@previous"), False)):
        done = run_command("compare", *pair, "--eval", "left", "--format", "json", environment=environment)
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)[0]
        assert row["b_n_not_asked"] == 0
        assert row["verdict"] == ("no change seen" if is_part else "not worse (proven)")
        assert ("stopped early" in str(row["unproven_reason"])) is is_part
        assert (row["a_n_not_asked"] > 0) is is_part
        assert (f"stopped early: {500 - row['a_n_not_asked']} of 500 samples asked" in " ".join(done.stderr.split())) is is_part
