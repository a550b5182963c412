"""Tags of runs. They identify a run's home and suite, since one Dagster instance can serve several projects.

Dagster's pages leave out tags that begin with `.dagster/`: those are for this package.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from eval_dagster.config.models import Resources
from eval_dagster.config.schema import Config

HOME_TAG = ".dagster/eval_home"
"""The home that a run writes to, as an absolute path."""
MACHINE_TAG = ".dagster/eval_machine"
"""The machine on which a run computes, and the folder of its locks."""
SUITE_TAG = "eval_dagster/suite"
"""The suite that a run belongs to."""
SINCE_TAG = ".dagster/eval_since"
"""When the run's evaluation of a suite began, in ISO 8601. All runs of an evaluation and its gate have the same value."""
PLANNED_TAG = ".dagster/eval_planned_runs"
"""Number of runs that a tick of the suite's schedule requests. The gate waits for all of them."""
MODEL_TAG = "eval_dagster/model"
"""The model of a run that evaluates one. A limit of the queue on this tag keeps a model from running twice at once."""
ENDPOINT_TAG = "eval_dagster/endpoint"
"""The host of the served model of a run that evaluates one. Models of one server share it."""
LAUNCH_TAG = ".dagster/eval_launch"
"""Hash of the suite, evals and models of the command that launched a run, by which the same command finds it again."""
CHECKPOINT_TAG = ".dagster/eval_checkpoint"
"""The model of a run that the sensor of new checkpoints has requested."""
JUDGED_BY_TAG = ".dagster/eval_judged_by"
"""`command` if the command that started the run judges the suite."""
EARLIER_TAGS = {
    "eval_dagster/home": HOME_TAG,
    "eval_dagster/machine": MACHINE_TAG,
    "eval_dagster/planned_runs": PLANNED_TAG,
    "eval_dagster/launch": LAUNCH_TAG,
    "eval_dagster/since": SINCE_TAG,
    "eval_dagster/judged_by": JUDGED_BY_TAG,
}
"""The tags of earlier releases, which Dagster's pages show, and the tags that stand for them now."""
KUBERNETES_TAG = "dagster-k8s/config"
"""The tag in which `dagster-k8s` reads the container and the pod of a run."""
RAY_TAG = "dagster-ray/config"
"""The tag in which `dagster-ray` reads the resources of a run."""
_GPU = "nvidia.com/gpu"
_BYTES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def home_tags(home: Path | str) -> dict[str, str]:
    """The tag of all runs of a home."""
    return {HOME_TAG: str(home)}


def suite_tags(home: Path | str, suite: str) -> dict[str, str]:
    """The tags of all runs of a suite."""
    return {**home_tags(home), SUITE_TAG: suite}


def model_tags(config: Config, models: Sequence[str]) -> dict[str, str]:
    """The tags of a run that evaluates these models, one after the other.

    Models and endpoints are named if there is one. Resources are the most that one of the models needs. If they need none and another
    model of the configuration does, the tags say so, since the tags of the run's job would hold otherwise.
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
    pod: dict[str, object] = {"container_config": {"resources": {"requests": given, "limits": limits}}} if given else {}
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


def _merged(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """Both mappings; if both have a value, the second, or what both have if it is a mapping."""
    merged = dict(first)
    for name, value in second.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
