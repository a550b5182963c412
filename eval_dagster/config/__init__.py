"""The configuration file evals.yaml: its schema, its loading, and messages about its mistakes."""

from eval_dagster.config.gate import GateConfig
from eval_dagster.config.loading import MIRROR_VARIABLE, load_config
from eval_dagster.config.models import (
    FolderSource,
    GenerationConfig,
    GGUFSource,
    HubSource,
    ModelConfig,
    ModelSection,
    PackageSource,
    ScriptedModel,
    Source,
    TransformersModel,
)
from eval_dagster.config.schema import Config, EvalConfig, FewshotSets, SuiteConfig, config_class
from eval_dagster.config.values import LAST_PASSED, PREVIOUS, identifier

__all__ = [
    "LAST_PASSED",
    "MIRROR_VARIABLE",
    "PREVIOUS",
    "Config",
    "EvalConfig",
    "FewshotSets",
    "FolderSource",
    "GGUFSource",
    "GateConfig",
    "GenerationConfig",
    "HubSource",
    "ModelConfig",
    "ModelSection",
    "PackageSource",
    "ScriptedModel",
    "Source",
    "SuiteConfig",
    "TransformersModel",
    "config_class",
    "identifier",
    "load_config",
]
