"""MLflow's web application behind the guard. The entry point `mlflow.app` of this package names it."""

from starlette.types import ASGIApp

from eval_dagster.cli.servers.loopback_guard import LoopbackGuard

APP_NAME = "eval-dagster"
"""The name of the entry point, for `mlflow server --app-name`."""


def create_app() -> ASGIApp:
    """Wrap MLflow's application; uvicorn calls this in each worker."""
    # Imported lazily: the process that starts the workers imports this module before the settings of MLflow's application exist.
    from mlflow.server.fastapi_app import app

    return LoopbackGuard(app, pages="/", graphql=["/graphql"])
