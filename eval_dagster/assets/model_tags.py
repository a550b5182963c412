"""Tags of runs that evaluate chosen models: for limits of Dagster's queue, and for launchers of clusters."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from eval_dagster.assets.tags import ENDPOINT_TAG, MODEL_TAG
from eval_dagster.config.models import Resources
from eval_dagster.config.schema import Config

KUBERNETES_TAG = "dagster-k8s/config"
"""The tag in which `dagster-k8s` reads the container and the pod of a run."""
RAY_TAG = "dagster-ray/config"
"""The tag in which `dagster-ray` reads the resources of a run."""
_GPU = "nvidia.com/gpu"
_BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def model_tags(config: Config, models: Sequence[str]) -> dict[str, str]:
    """The tags of a run that evaluates these models, one after the other.

    Models and endpoints are named where there is one. Resources are the most that one of the models needs. Where they need none and another
    model of the configuration does, the tags say so, since those of the run's job would hold otherwise.
    """
    sections = [config.models[name] for name in models]
    endpoints = {urlsplit(str(getattr(section, "base_url", ""))).netloc for section in sections}
    endpoint = endpoints.pop() if len(endpoints) == 1 else ""
    return {
        **({MODEL_TAG: models[0]} if len(models) == 1 else {}),
        **({ENDPOINT_TAG: endpoint} if endpoint else {}),
        **dict.fromkeys(_resource_tags([section.resources for section in config.models.values()]), "{}"),
        **_resource_tags([section.resources for section in sections]),
    }


def _resource_tags(needs: Sequence[Resources]) -> dict[str, str]:
    gpus, cpus = _most(need.gpus for need in needs), _most(need.cpus for need in needs)
    memory = max((need.memory for need in needs if need.memory is not None), key=_bytes, default=None)
    amounts = {"cpu": _number(cpus), "memory": memory, _GPU: _number(gpus)}
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    # A core that is not in use is for others, so that there is no limit on cores. Kubernetes wants limits of the other two.
    limits = {name: amount for name, amount in given.items() if name != "cpu"}
    pod: dict[str, Any] = {"container_config": {"resources": {"requests": given, "limits": limits}}} if given else {}
    for need in needs:
        pod = _merged(pod, need.kubernetes)
    ray = {"num_gpus": gpus, "num_cpus": cpus, "memory": None if memory is None else _bytes(memory)}
    ray = {name: amount for name, amount in ray.items() if amount}
    return {**({KUBERNETES_TAG: json.dumps(pod)} if pod else {}), **({RAY_TAG: json.dumps(ray)} if ray else {})}


def _most(amounts: Iterable[float | None]) -> float | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _number(amount: float | None) -> str | None:
    return None if amount is None else f"{amount:g}"


def _bytes(memory: str) -> int:
    return int(memory[:-2]) * _BYTES[memory[-2:]]


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings; where both have a value, the second, or what both have where it is a mapping."""
    merged = dict(first)
    for name, value in second.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
