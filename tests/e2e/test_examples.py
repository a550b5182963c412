"""The projects in examples/, each with the commands of its README as they are written, where the wheel alone is installed."""

import re
import shutil
from pathlib import Path

import pytest
from fresh_environment import REPOSITORY, FreshEnvironment, build, run

pytestmark = [pytest.mark.e2e, pytest.mark.long]

EXAMPLES = REPOSITORY / "examples"
COMMAND = re.compile(r"^    (?P<command>\S.*?)(?:\s+# exit status (?P<status>\d+))?$", re.MULTILINE)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    folder = tmp_path_factory.mktemp("fresh")
    fresh = FreshEnvironment(folder)
    fresh.pip("install", str(build(folder)))
    return fresh


def follow(environment: FreshEnvironment, name: str, folder: Path) -> dict[str, str]:
    """Run all commands of a README in a copy of its folder; gives what each printed."""
    place = folder / name
    shutil.copytree(EXAMPLES / name, place, ignore=shutil.ignore_patterns("__pycache__", ".eval_dagster"))
    # pip takes what the environment shares, and asks no index.
    variables = environment.variables() | {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    printed: dict[str, str] = {}
    for found in COMMAND.finditer((place / "README.md").read_text()):
        command = found["command"]
        printed[command] = run(["bash", "-c", command], place, variables, status=int(found["status"] or 0)).stdout
    return printed


def test_every_example_is_followed_here() -> None:
    here = Path(__file__).read_text()
    names = [path.parent.name for path in sorted(EXAMPLES.glob("*/README.md"))]
    assert names
    assert [name for name in names if f'follow(environment, "{name}"' not in here] == []


def test_own_benchmark(environment: FreshEnvironment, tmp_path: Path) -> None:
    printed = follow(environment, "own_benchmark", tmp_path)
    assert "the gold answer scores best, a wrong one worse" in printed["eval-dagster tasks moons"]
    assert re.search(r"moons │ +1 │ table │ exact_match │ 0\.667 .* 6 │ +0 │", printed["eval-dagster run"]), "4 of 6, as the README says"
    assert len(printed) == 3


def test_python_backend(environment: FreshEnvironment, tmp_path: Path) -> None:
    printed = follow(environment, "python_backend", tmp_path)
    assert printed["eval-dagster models"].count("ready, version") == 2
    leaderboard = printed["eval-dagster run"]
    assert re.search(r"choice │ +1 │ small +│ accuracy +│ 0\.800 .* 5 │ +0 │", leaderboard), "4 of 5, as the README says"
    assert re.search(r"word +│ +1 │ small +│ exact_match │ 0\.800 .* 5 │ +0 │", leaderboard)
    environment.pip("uninstall", "--yes", "example-bigrams")


def test_nightly_gate(environment: FreshEnvironment, tmp_path: Path) -> None:
    printed = follow(environment, "nightly_gate", tmp_path)
    first, second = printed["eval-dagster run --suite nightly"], printed["eval-dagster run --suite nightly --junit gate.xml"]
    assert "First results" in first
    assert "regressed" in second
    assert "<failure" in (tmp_path / "nightly_gate" / "gate.xml").read_text()
    assert "regressed" in printed["eval-dagster sql regressions"]
