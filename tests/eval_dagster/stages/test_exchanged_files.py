"""Sound files in the place of other ones: nothing is believed by the name of its folder, and `verify` names each."""

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.lake.catalog.verification import verifiable, verify
from eval_dagster.lake.format import damage, parquet_files
from eval_dagster.project import Project

CONFIG = """
    models:
      alpha: {{backend: scripted, default: " 7"}}
      beta: {{backend: scripted, default: " 8"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 1, limit: {limit}}}
      names: {{task: capitals_completion, limit: 3}}
"""
PARTITIONS = [(name, model) for name in ("sums", "names") for model in ("alpha", "beta")]
Open = Callable[[str], Project]


@pytest.fixture(params=["named", "unnamed"])
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether files have their names in their footers; those of earlier releases have none."""
    if request.param == "unnamed":
        write = damage.write_with_checksum
        monkeypatch.setattr(damage, "_NAME_KEY", "unread")
        monkeypatch.setattr(parquet_files, "write_with_checksum", lambda parts, schema, file, _: write(parts, schema, file, ""))
        monkeypatch.setattr(damage, "_name_in", lambda _: None)
    return bool(request.param == "named")


def _damages(project: Project, path: Path | None = None) -> dict[Path, str | None]:
    files = [each for each in verifiable([project.lake]) if path in (None, each.path)]
    return {each.path: each.damage for each in verify(files, lambda: None)}


def _exchanges(project: Project) -> Iterator[tuple[Path, Path]]:
    """Pairs of files of a table: of two partitions, and an older and a newer one of the same."""
    tables = [path for path in sorted(project.lake.root.iterdir()) if path.is_dir() and path.name != "packs"]
    for table in tables:
        files = sorted(table.rglob("[!.]*.parquet"))
        yield from ((one, other) for one, other in pairwise(files) if "=" in one.parent.name and one.read_bytes() != other.read_bytes())


@pytest.mark.long
@pytest.mark.usefixtures("named")
def test_verify_names_each_file_that_is_another_one(open_project: Open, tmp_path: Path) -> None:
    for limit in (3, 4):
        project = open_project(CONFIG.format(limit=limit))
        _, failures = run_all(project, PARTITIONS)
        assert not failures
    assert not any(_damages(project).values())
    exchanged = list(_exchanges(project))
    assert len(exchanged) >= 19
    assert {one.relative_to(project.lake.root).parts[0] for one, _ in exchanged} >= {"metrics", "scores", "responses", "samples"}
    kept = tmp_path / "kept"
    for one, other in exchanged:
        is_same_cache = one.parent == other.parent and one.parent.name.startswith("model_version=")
        shutil.copy(one, kept)
        shutil.copy(other, one)
        damage = _damages(project, one)[one]
        shutil.copy(kept, one)
        assert damage is not None or is_same_cache, f"{other} in the place of {one}"
    assert not any(_damages(project).values())


@pytest.mark.long
def test_answers_of_another_model_are_not_believed(open_project: Open, named: bool) -> None:
    project = open_project(CONFIG.format(limit=3))
    before, _ = run_all(project, [("sums", "alpha")])
    run_all(project, [("sums", "beta")])
    version = {name: project.handle(name).version() for name in ("alpha", "beta")}
    folders = {name: project.lake.root / "response_cache" / f"model_version={version[name]}" for name in version}
    [alpha], [beta] = (sorted(folders[name].glob("[!.]*.parquet")) for name in ("alpha", "beta"))
    shutil.copy(beta, alpha)
    shutil.rmtree(project.lake.root / "responses")
    results, failures = run_all(project, [("sums", "alpha")])
    if named:
        [failure] = failures
        assert "it is a sound file in the place of another one" in failure.message
        assert "delete it and run again" in failure.message
        alpha.unlink()
        results, failures = run_all(project, [("sums", "alpha")])
    assert not failures
    assert results["model_outputs", "sums"].file.info.counts["requests_computed"] == 9, "they are asked again"
    assert results["model_outputs", "sums"].file.info.version == before["model_outputs", "sums"].file.info.version
