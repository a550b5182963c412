"""What a model is, whatever runs it."""

from pathlib import Path

from eval_dagster.config.schema import FolderSource, HubSource, ModelConfig, ScriptedModel
from eval_dagster.versions import file_hash, stable_hash


def content_version(name: str, config: ModelConfig, *, folder: Path, home: Path) -> str:
    """Hash of a model's weights, configuration, tokenizer and chat template; of a scripted one, of its table and its function's file.

    Where it is the same and the model's version is not, only the engine can have changed an answer: code, packages, device, dtype or the
    length of the context.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        folder: The folder of evals.yaml, where relative paths start.
        home: The folder of all state.

    Raises:
        ModelNotFoundError: The model is not there.
    """
    if isinstance(config, ScriptedModel):
        path, _, function = (config.function or "").rpartition(":")
        code = [function, file_hash(folder / Path(path).expanduser())] if path else None
        return stable_hash([list(config.answers.items()), config.default, code])
    # Torch takes seconds to import: only those wait who use it.
    from eval_dagster.models.transformers.weights.sources import open_checkpoint

    fingerprint = open_checkpoint(name, config.source, folder=folder, home=home).fingerprint()
    if isinstance(config.source, HubSource | FolderSource):
        return stable_hash(fingerprint)
    return stable_hash(fingerprint["gguf"].partition("-")[0])  # the hash of the file, before the versions of what dequantises it
