"""Workers with an interpreter of their own: a backend that is installed there alone answers, and its version is asked of a worker."""

import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.ray_cluster import RayCluster, running_cluster

from eval_dagster.errors import ConfigError, ModelNotFoundError
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

pytestmark = pytest.mark.long
BACKEND = """
    import sys
    from typing import Literal

    from eval_dagster.config.models import ModelSection
    from eval_dagster.models.scripted import ScriptedHandle

    class ParrotSection(ModelSection):
        backend: Literal["parrot"]
        word: str

    class Parrot(ScriptedHandle):
        SECTION = ParrotSection

        @classmethod
        def open(cls, name, config, *, folder, home):
            return cls(name, default=config.word + sys.prefix.rpartition("/")[2])

        def apply_chat_template(self, messages, *, images=0):
            return "|".join(message.content for message in messages)
"""
CONFIG = """
    models:
      polly:
        backend: parrot
        prompt_format: chat
        {key}: " 7 "
        workers: {{python: {python}, count: 2, cpus: 0.5, address: "{address}"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 0, limit: 2}}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the packages of this one, and the backend."""
    folder = tmp_path_factory.mktemp("environment") / "parrots"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    root = Path(__file__).resolve().parents[4]
    (site / "base.pth").write_text(f"{sysconfig.get_path('purelib')}\n{root}\n")
    (site / "parrots.py").write_text(textwrap.dedent(BACKEND))
    information = site / "parrots-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[eval_dagster.models]\nparrot = parrots:Parrot\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with running_cluster(nodes=1) as running:
        yield running


def project(folder: Path, python: Path, cluster: RayCluster, key: str = "word") -> Project:
    text = textwrap.dedent(CONFIG.format(key=key, python=python, address=cluster.address))
    (folder / "evals.yaml").write_text(text)
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def test_a_backend_of_another_environment_answers(tmp_path: Path, python: Path, cluster: RayCluster) -> None:
    opened = project(tmp_path, python, cluster)
    outcomes = list(evaluate(opened, [("sums", "polly")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each for each in outcomes if isinstance(each, StageFailure)] == []
    texts = {text for each in outcomes for row in getattr(each, "preview", ()) if (text := str(row.get("text", "")))}
    assert any("parrots" in text for text in texts), texts
    assert opened.handle("polly").version() == project(tmp_path, python, cluster).handle("polly").version()
    assert str(python) in opened.handle("polly").engine()


def test_the_worker_checks_the_keys(tmp_path: Path, python: Path, cluster: RayCluster) -> None:
    with pytest.raises(ConfigError, match="does not fit the backend 'parrot' of this worker"):
        project(tmp_path, python, cluster, key="wort").handle("polly").check()


def test_an_interpreter_that_is_not_there_is_one_clear_error(tmp_path: Path, cluster: RayCluster) -> None:
    opened = project(tmp_path, Path("/nowhere/python"), cluster)
    object.__setattr__(opened.config.models["polly"].workers, "patience_s", 20.0)
    with pytest.raises(ModelNotFoundError, match="Each node needs /nowhere/python"):
        opened.handle("polly").check()
