"""Loading tokenizers, processors and weights with Hugging Face transformers: safetensors only, no remote code, no network, no noise."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils import logging

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.weights.checkpoint import PROCESSOR_FILES


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers."""
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def from_folder(kind: Any, folder: Path, **settings: Any) -> Any:
    """Load what a class of transformers reads from a folder: the only call of `from_pretrained`, without code or files of elsewhere."""
    with quiet():
        return kind.from_pretrained(folder, **settings, local_files_only=True, trust_remote_code=False)


def load_tokenizer(name: str, folder: Path) -> Any:
    """Load the tokenizer in the folder of a model. Raises `ModelError` if that fails; `name` is the model's in evals.yaml."""
    try:
        return from_folder(AutoTokenizer, folder)
    except Exception as error:
        raise ModelError(
            f"Model {name!r}: the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}). "
            "Check that its files are complete and need no remote code."
        ) from error


def takes_images(folder: Path) -> bool:
    """Whether a folder holds a vision-language model: its architecture is one, and it comes with a processor."""
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        return False
    return json.loads((folder / "config.json").read_text("utf-8")).get("model_type") in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def load_processor(folder: Path) -> Any:
    """Load the processor of a vision-language model."""
    # The same code prepares the images whether or not torchvision is installed: the two give slightly different values.
    return from_folder(AutoProcessor, folder, backend="pil")


def load_network(folder: Path, dtype: str, device: str) -> tuple[Any, tuple[int, ...]]:
    """Load the weights of a folder, ready for inference, and the ids of the tokens that end a text.

    Raises `ValueError` if weights are missing from the files, because transformers would fill them with random numbers.
    """
    architectures = AutoModelForImageTextToText if takes_images(folder) else AutoModelForCausalLM
    settings = {"dtype": getattr(torch, dtype), "use_safetensors": True, "output_loading_info": True}
    network, report = from_folder(architectures, folder, **settings)
    if report["missing_keys"]:
        raise ValueError(f"the files lack the weights {sorted(report['missing_keys'])[:5]}")
    ends = network.generation_config.eos_token_id
    # The checkpoint's sampling defaults must not replace the settings that a request omits.
    network.generation_config = GenerationConfig()
    return network.to(device).eval(), tuple(ends if isinstance(ends, list) else [] if ends is None else [ends])
