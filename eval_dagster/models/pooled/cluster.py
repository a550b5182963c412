"""The connection to Ray: a cluster by its address, or one of this machine alone."""

import importlib.util
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval_dagster.config.workers import WorkersConfig
from eval_dagster.errors import ConfigError, ModelError, RequirementError
from eval_dagster.progress.reporting import current_reporter

_ADDRESS = "RAY_ADDRESS"
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable by which Ray keeps to the loopback interface, on Linux too: `0`. Addresses of 127.0.0.1 are replaced without it."""
_LOOPBACK = ("127.0.0.1:", "localhost:")
_CONNECT_S = 20.0
_STORE_BYTES = 200 * 2**20
"""Memory for answers on their way, of a Ray that is started here."""
_connected: list[tuple[str, str]] = []
"""The address that this process was given, and the one of the cluster that it found: one element, or none."""
_RESOURCES = (("CPU", "CPUs"), ("GPU", "GPUs"))


def require_ray(name: str) -> None:
    """Raise `RequirementError` if Ray is not installed. `name` is the model's."""
    if importlib.util.find_spec("ray") is None:
        raise RequirementError(f"Model {name!r} has `workers`, which need Ray; install it by: pip install 'eval_dagster[ray]'")


def connect(name: str, config: WorkersConfig) -> None:
    """Connect this process to the cluster, once. Without an address, Ray is started on the loopback interface.

    Raises:
        RequirementError: Ray is not installed.
        ConfigError: The interpreter of the workers is not there, and they are to run on this machine.
        ModelError: No cluster answers at the address.
    """
    require_ray(name)
    address = config.address or os.environ.get(_ADDRESS)
    is_local = address in (None, "local")
    if is_local or str(address).startswith(_LOOPBACK):
        os.environ[_CLUSTERS] = "0"  # read where Ray is imported first
    if is_local and config.python is not None and not Path(config.python).is_file():
        raise ConfigError(f"Model {name!r}: `python` of its `workers`, {config.python}, does not exist. Correct it in evals.yaml.")
    import ray

    if ray.is_initialized():
        _require_same(name, address)
        return
    if address is not None and address.startswith("ray://"):
        raise ModelError(
            f"Model {name!r}: `{_ADDRESS}` is {address}, by which no answers can be streamed; expected an address such as 10.0.0.1:6379. "
            "Start the run on a machine of the cluster."
        )
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if is_local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run leaves the machine
        quiet |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    with current_reporter().track("connect to Ray", total=1, unit="cluster") as advance, _kept_handlers():
        try:
            _require_port(address)
            ray.init(address=address or "local", **quiet)
        except Exception as error:
            raise ModelError(
                f"Model {name!r}: no Ray cluster answers at {address or 'this machine'} ({type(error).__name__}: {error}). Correct "
                f"`address` of its `workers` in evals.yaml, or {_ADDRESS}; without both, Ray is started on this machine."
            ) from error
        advance()
    found = ray.util.get_node_ip_address()
    if is_local and found != "127.0.0.1":
        ray.shutdown()
        raise ModelError(
            f"Model {name!r}: Ray would listen at {found}, which other machines reach; expected 127.0.0.1. Set {_CLUSTERS}=0 in the "
            f"environment, or {_ADDRESS} to the address of a cluster."
        )
    _connected[:] = [(address or "local", ray.get_runtime_context().gcs_address)]


def _require_same(name: str, address: str | None) -> None:
    """Raise `ModelError` if this process is connected to another cluster than the one at an address."""
    import ray

    now = ray.get_runtime_context().gcs_address
    # Where Ray was started by another part of the process, that cluster is meant.
    if any(found == now and (address or "local") not in (asked, now) for asked, found in _connected):
        raise ModelError(
            f"Model {name!r}: its workers are to run at {address or 'this machine'}, but this process is connected to Ray at {now} for "
            "another model. Give both the same `address` in evals.yaml, or run them one by one."
        )


def _require_port(address: str | None) -> None:
    """Raise `OSError` if nothing listens at an address, for which Ray would wait a quarter of an hour."""
    host, colon, port = (address or "").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()


@contextmanager
def _kept_handlers() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces: this process ends by its own rules."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def alive_nodes() -> set[str]:
    """The ids of the nodes that answer."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def room() -> str:
    """The resources of the cluster, all and free."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    amounts = [_amount(total, free, key, word) for key, word in _RESOURCES]
    return f"{len(alive_nodes())} nodes, {', '.join(amounts)}"


def _amount(total: Mapping[str, float], free: Mapping[str, float], key: str, word: str) -> str:
    return f"{total[key]:g} {word} ({free.get(key, 0.0):g} free)" if total.get(key) else f"no {word}"


def needs(config: WorkersConfig) -> str:
    """The resources that a worker asks of the cluster."""
    return f"{config.cpus:g} CPUs and {config.gpus:g} GPUs"
