"""What the environment says instead of evals.yaml."""

from pathlib import Path

import pytest

from eval_dagster.errors import ConfigError
from eval_dagster.project import Project

CONFIG = "mlflow: {tracking_uri: http://in-the-file:5000}\nmodels: {m: {backend: scripted}}\nevals: {sums: {task: arithmetic}}\n"


def opened(folder: Path) -> Project:
    (folder / "evals.yaml").write_text(CONFIG)
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def test_the_tracking_server_of_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVAL_DAGSTER_TRACKING_URI", raising=False)
    assert opened(tmp_path).tracker.shown_uri == "http://in-the-file:5000"
    monkeypatch.setenv("EVAL_DAGSTER_TRACKING_URI", "http://in-the-environment:5000")
    assert opened(tmp_path).tracker.shown_uri == "http://in-the-environment:5000"
    monkeypatch.setenv("EVAL_DAGSTER_TRACKING_URI", "")
    assert opened(tmp_path).tracker.shown_uri == "http://in-the-file:5000"


def test_a_wrong_address_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVAL_DAGSTER_TRACKING_URI", "ftp://evals:secret@host")
    with pytest.raises(ConfigError, match=r"EVAL_DAGSTER_TRACKING_URI is wrong: its scheme is 'ftp'; expected http://") as raised:
        opened(tmp_path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("address", ["host=db password=secret dbname=evals", "mysql://evals:secret@db/evals"])
def test_an_address_of_locks_that_is_no_url_of_postgresql_is_not_repeated(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVAL_DAGSTER_LOCKS", address)
    with pytest.raises(ConfigError, match="EVAL_DAGSTER_LOCKS is no URL of PostgreSQL; expected postgresql://") as raised:
        opened(tmp_path)
    assert "secret" not in str(raised.value)
    for right in ("postgresql://evals@db/evals", "postgresql+psycopg2://evals@db/evals", "postgres://evals@db/evals"):
        monkeypatch.setenv("EVAL_DAGSTER_LOCKS", right)
        assert opened(tmp_path).locks.across_machines


GONE = """
datasets: {mirror: nowhere}
environments: {lighteval: nowhere/bin/python}
models:
  here: {backend: scripted}
  function: {backend: scripted, function: "gone.py:answer"}
  home: {backend: scripted, function: "~nobody-of-this-name/gone.py:answer"}
  backend: {backend: "gone.py:Backend"}
evals:
  sums: {task: arithmetic}
  file: {task: "gone.py:Task"}
  name: {task: arithmetics}
  registry: {task: "lm_evl:boolq"}
  yaml: {task: gone.yaml}
  long: {task: "LONG.py:Task"}
  environment: {task: "lighteval:boolq"}
  mirror: {task: mmlu}
"""


def test_what_is_not_there_is_a_reason_of_its_eval_or_model_alone(tmp_path: Path) -> None:
    """A task or function that was moved, a registry or environment that is not installed, a mirror that is not mounted."""
    (tmp_path / "evals.yaml").write_text(GONE.replace("LONG", "x" * 5000))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    problems = project.problems(*project.select())
    assert {name for _, name in problems} == {*project.config.evals, *project.config.models} - {"sums", "here"}
    for name, reason in {
        "file": f"there is no task file {tmp_path}/gone.py",
        "name": "there is no task 'arithmetics'; did you mean 'arithmetic'",
        "registry": "there is no registry of tasks 'lm_evl'; did you mean 'lm_eval'",
        "yaml": "gone.yaml",
        "environment": f"the environment {tmp_path}/nowhere/bin/python of evals.yaml, and there is no such file",
        "mirror": f"the mirror {tmp_path}/nowhere itself is not there",
    }.items():
        assert reason in problems["eval", name]
    for name in ("function", "home"):
        assert "the file does not exist" in problems["model", name]
    assert f"there is no file {tmp_path}/gone.py" in problems["model", "backend"]
