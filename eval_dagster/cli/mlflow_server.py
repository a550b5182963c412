"""MLflow's web application with a guard before it: what the entry point `mlflow.app` of this package names."""

from eval_dagster.cli.loopback_guard import App, LoopbackGuard

APP_NAME = "eval-dagster"
"""The name of the entry point, for `mlflow server --app-name`."""


def create_app() -> App:
    """Wrap MLflow's application; uvicorn calls this in each worker."""
    # The process that starts the workers imports this module, too, before it has set up what MLflow's application reads.
    from mlflow.server.fastapi_app import app

    return LoopbackGuard(app, pages="/", graphql=["/graphql"])
