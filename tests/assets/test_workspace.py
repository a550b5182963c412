"""The workspace file of a project: its own one, or a default one in the home."""

from pathlib import Path

import pytest
from dagster._core.workspace.load import location_origins_from_yaml_paths

from eval_dagster.assets.workspace import code_location, workspace_file
from eval_dagster.errors import ConfigError
from eval_dagster.project import Project

LOCATION = "{{python_module: {{module_name: {module}, location_name: {name}}}}}"
OURS = LOCATION.format(module="eval_dagster.assets.code_location", name="eval_dagster")
OTHER = LOCATION.format(module="other.definitions", name="other")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    path = tmp_path / "project" / "evals.yaml"
    path.parent.mkdir()
    path.write_text("models: {s: {backend: scripted}}\nevals: {sums: {task: arithmetic}}\n")
    return Project.open(config_path=path, home=tmp_path / "home")


def test_the_home_has_one_where_the_project_has_none(project: Project) -> None:
    path = workspace_file(project)
    assert path == project.home / "workspace.yaml"
    [origin] = location_origins_from_yaml_paths([str(path)])
    assert origin.location_name == "eval_dagster"
    assert origin.loadable_target_origin.module_name == "eval_dagster.assets.code_location"
    path.write_text("of an earlier version")
    assert "eval_dagster.assets.code_location" in workspace_file(project).read_text()


def test_that_of_the_project_comes_first(project: Project) -> None:
    own = project.folder / "workspace.yaml"
    own.write_text(f"load_from: [{OTHER}, {OURS}]")
    assert workspace_file(project) == own
    assert not project.home.exists()
    assert getattr(code_location(project), "location_name", None) == "eval_dagster"
    own.write_text(f"load_from: [{OTHER}]")
    assert getattr(code_location(project), "location_name", None) == "other", "which may have the assets among its own"


@pytest.mark.parametrize("text", ["load_from: [", "load_from: {python_modul: x}", "- a list"])
def test_a_wrong_file_is_named(project: Project, text: str) -> None:
    (project.folder / "workspace.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"the workspace .*project/workspace\.yaml cannot be read \(.+\); correct it"):
        code_location(project)
