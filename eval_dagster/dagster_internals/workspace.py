"""Private names of Dagster for workspaces and code locations."""

from dagster._core.remote_origin import CodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.remote_representation.code_location import CodeLocation
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster._core.workspace.load_target import WorkspaceFileTarget

__all__ = [
    "CodeLocation",
    "CodeLocationOrigin",
    "RemoteRepositoryOrigin",
    "WorkspaceFileTarget",
    "WorkspaceProcessContext",
    "location_origins_from_yaml_paths",
]
