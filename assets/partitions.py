"""Partitions by eval, and by eval and model, in the order of evals.yaml."""

from collections.abc import Iterable

import dagster as dg

from eval_dagster.config.schema import Config


def eval_partitions(config: Config) -> dg.StaticPartitionsDefinition:
    """One partition for each eval."""
    return dg.StaticPartitionsDefinition(list(config.evals))


def eval_model_partitions(config: Config) -> dg.MultiPartitionsDefinition:
    """One partition for each eval and model, with keys `eval|model`."""
    return dg.MultiPartitionsDefinition({"eval": eval_partitions(config), "model": dg.StaticPartitionsDefinition(list(config.models))})


def split_keys(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Partition keys `eval|model` as pairs."""
    pairs = (key.split("|") for key in keys)
    return [(eval_name, model) for eval_name, model in pairs]
