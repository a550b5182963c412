"""One machine needs nothing of what a cluster needs: the suite of `make demo` runs where those packages are not there."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = ("ray", "s3", "postgres")
WITHOUT = """
    import sys
    from importlib.machinery import PathFinder

    MISSING = {missing}


    class OtherPackages(PathFinder):
        @classmethod
        def find_spec(cls, fullname, path=None, target=None):
            if fullname.partition(".")[0] in MISSING:
                return None
            return super().find_spec(fullname, path, target)


    sys.meta_path[:] = [OtherPackages if each is PathFinder else each for each in sys.meta_path]
"""
"""A `sitecustomize`, which each Python process of the run imports at its start."""
MODULES = ("ray", "dagster_ray", "obstore", "psycopg2", "dagster_postgres", "dagster_docker", "dagster_k8s", "boto3", "botocore", "moto")


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(folder / "home"),
    }
    environment.pop("DAGSTER_HOME", None)
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo suite of this repository, of a few samples, and answered from a table instead of a model's weights."""
    config = yaml.safe_load((REPOSITORY / "evals.yaml").read_text())
    config["models"] = {name: {"backend": "scripted", "default": " 7"} for name in config["models"]}
    config["evals"] = {name: {**settings, "limit": 2} for name, settings in config["evals"].items()}
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT).format(missing=set(MODULES)))
    return tmp_path


def test_the_demo_runs_where_no_package_of_a_cluster_is_installed(folder: Path) -> None:
    absent = _run(folder, "-c", f"import importlib.util; print([name for name in {MODULES} if importlib.util.find_spec(name)])")
    assert absent.stdout.strip() == "[]", absent.stderr
    done = _run(folder, "-m", "eval_dagster.cli.main", "run", "--suite", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Leaderboard" in done.stdout


def test_the_lock_of_make_demo_has_no_package_of_the_extras() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[\[>=<]", requirement)[0] for extra in EXTRAS for requirement in extras[extra]}
    locked = {line.split("==")[0] for line in (REPOSITORY / "requirements.lock").read_text().splitlines()}
    assert len(named) >= len(EXTRAS)
    assert not named & locked
