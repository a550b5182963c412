"""Imports the checker of bfcl-eval without the packages of all model providers, which it needs for asking models alone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

NATIVE, PROMPTED = "native", "prompted"
"""The names of models for the checker: calls as the model's server gives them, or as the model writes them into its text."""


class _Models(dict[str, object]):
    """The table of models, for all names."""

    def __missing__(self, name: str) -> SimpleNamespace:
        # Names of functions with dots are sent with underscores, except in a text.
        return SimpleNamespace(underscore_to_dot=name == NATIVE)


def _stand_in(name: str, **values: object) -> None:
    module = ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module


# The package makes folders when it is imported, beside itself if it is not told where.
os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp()
_stand_in("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=_Models())
_stand_in("openai", OpenAI=object, RateLimitError=ConnectionError)
_stand_in("filelock", FileLock=nullcontext)  # nobody else writes its files
_stand_in("pandas")
_stand_in("tqdm", tqdm=iter)

from bfcl_eval.constants import category_mapping, default_prompts, enums, executable_backend_config  # noqa: E402
from bfcl_eval.eval_checker import eval_runner  # noqa: E402
from bfcl_eval.eval_checker.ast_eval import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils  # noqa: E402
from bfcl_eval.model_handler import utils as handler_utils  # noqa: E402
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler  # noqa: E402

# Nothing is written there, and what executed code writes into a new folder is removed.
shutil.rmtree(os.environ["BFCL_PROJECT_ROOT"])

__all__ = [
    "NATIVE",
    "PROMPTED",
    "ast_checker",
    "category_mapping",
    "default_prompts",
    "enums",
    "eval_runner",
    "executable_backend_config",
    "handler",
    "handler_utils",
    "multi_turn_utils",
]


def handler(name: str) -> Any:
    """The package's own handler of models with the interface of OpenAI, which makes tools and decodes answers. It asks no model."""
    made = OpenAICompletionsHandler.__new__(OpenAICompletionsHandler)
    made.model_name, made.is_fc_model, made.model_style = name, name == NATIVE, enums.ModelStyle.OPENAI_COMPLETIONS
    return made
