"""Opens a model, with workers or without."""

from pathlib import Path

from eval_dagster.config.models import ModelConfig
from eval_dagster.models.base import ModelHandle, WatchedHandle
from eval_dagster.models.pooled.elsewhere import ElsewhereHandle
from eval_dagster.models.pooled.handle import PooledHandle, WatchedPooledHandle, task_of
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.network.devices import device_of


def open_handle(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked, loaded or started yet. Arguments and errors are those of `open_model`."""
    workers = config.workers
    if workers is None:
        return open_model(name, config, folder=folder, home=home)
    task = task_of(name, config, folder)
    if workers.python is not None or (workers.gpus and device_of("auto") == "cpu"):
        return ElsewhereHandle(name, workers, task)
    own = open_model(name, config, folder=folder, home=home)
    if isinstance(own, WatchedHandle):
        return WatchedPooledHandle(name, own, own, workers, task)
    return PooledHandle(name, own, workers, task)
