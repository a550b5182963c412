"""The workers of a model: they are started, checked, loaded, replaced if they are lost, and ended.

They run on a Ray cluster, which is reached by its address, or on a Ray of this machine alone.
"""

import importlib.util
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval_dagster.config.models import WorkersConfig
from eval_dagster.errors import ConfigError, ModelError, RequirementError
from eval_dagster.models.pooled.worker import Place, Worker, WorkerFacts, WorkerTask, differences
from eval_dagster.models.usage import Usage
from eval_dagster.progress.reporting import Reporter, current_reporter

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
_NOTE_S = 10.0
"""Seconds after which workers without room are reported."""
_DEATHS_A_WORKER, _FEWEST_DEATHS = 3, 9
"""Workers that may end without any answer in between, by the number of workers, and at least."""
_MOST_FAILURES = 3
"""Workers that may fail to start, beyond the number of workers, before no further one is started."""
_MOST_CONNECTIONS = 4096
_NODE_LABEL = "ray.io/node-id"


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
    if is_local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a run leaves the machine
    with current_reporter().track("connect to Ray", total=1, unit="cluster") as advance, _kept_handlers():
        try:
            host, colon, port = (address or "").rpartition(":")
            if colon:  # if nothing listens there, Ray would wait a quarter of an hour
                socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
            ray.init(
                address=address or "local",
                include_dashboard=False if is_local else None,
                object_store_memory=_STORE_BYTES if is_local else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
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
    amounts = [f"{total[key]:g} {word} ({free.get(key, 0.0):g} free)" if total.get(key) else f"no {word}" for key, word in _RESOURCES]
    return f"{len(alive_nodes())} nodes, {', '.join(amounts)}"


def needs(config: WorkersConfig) -> str:
    """The resources that a worker asks of the cluster."""
    return f"{config.cpus:g} CPUs and {config.gpus:g} GPUs"


@dataclass(eq=False, kw_only=True)
class Member:
    """A worker, as the driver sees it."""

    actor: Any
    place: Place | None = None
    """Null before it has a place in the cluster."""
    usages: Sequence[Usage] = ()

    @property
    def name(self) -> str:
        """Node and process."""
        return self.place.name if self.place else "a worker that was starting"


@dataclass(kw_only=True)
class Crew:
    """The workers of one model."""

    name: str
    """The name of the model."""
    config: WorkersConfig
    task: WorkerTask
    expected: WorkerFacts
    """What each worker has to be like; its node and process do not count."""
    reporter: Reporter
    idle: list[Member] = field(default_factory=list)
    """Workers that wait for requests."""
    starting: dict[Any, Member] = field(default_factory=dict)
    """Workers that get a place, describe themselves, or load the model, by the reference that is ready afterwards."""
    members: list[Member] = field(default_factory=list)
    """All that are not lost or refused."""
    past_usages: list[Sequence[Usage]] = field(default_factory=list)
    """The work of workers that were lost."""
    wanted: int = 0
    refusals: dict[str, str] = field(default_factory=dict)
    """Why workers of a node were refused as another version, by the id of the node."""
    _lifeline: socket.socket | None = None
    """A port to which workers connect. The system closes the connections when this process ends, also when it is killed."""
    _deaths: int = 0
    """Workers that ended since the last answer."""
    _last_end: str = ""
    _failures: int = 0
    """Workers that could not start."""
    _last_failure: str = ""
    _without_since: float = field(default_factory=time.monotonic)
    """Since when no worker has a place."""
    _waiting_since: float = field(default_factory=time.monotonic)
    _noted: tuple[int, int] = (0, 0)

    def start(self, count: int) -> None:
        """Want so many workers from now on."""
        self.wanted = count
        for ref in list(self.starting)[max(0, count - len(self.members) + len(self.starting)) :]:
            self._drop(self.starting.pop(ref))
        self.fill()

    def fill(self) -> None:
        """Start as many workers as are wanted and missing. They wait in the cluster until it has room."""
        import ray

        while len(self.members) < self.wanted:
            if self._failures > self.wanted + _MOST_FAILURES or (self.refusals and not alive_nodes() - self.refusals.keys()):
                return  # a further worker would not answer either
            if self._lifeline is None:
                # Connections are never accepted: they wait in the queue of the system.
                self._lifeline = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=_MOST_CONNECTIONS)
            host, port = self._lifeline.getsockname()[:2]
            task = replace(self.task, lifeline=(host, port))
            member = Member(actor=new_actor(self.config, task, without=self.refusals))
            self.members.append(member)
            self.starting[member.actor.place.remote()] = member
            self._waiting_since = time.monotonic()

    def settle(self, ref: Any) -> None:
        """Take the result of a worker that got a place, has described itself, or has loaded the model."""
        import ray

        member = self.starting.pop(ref)
        try:
            result = ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            self._drop(member)
            self._failures += 1
            self._last_failure = f"{member.name}: {first_line(getattr(error, 'cause', error))}"
            self.reporter.note(f"{self.name}: a worker could not start: {self._last_failure}")
            self.fill()
        except ray.exceptions.RayError as error:
            self.lost(member, error)
        else:
            if isinstance(result, Place):
                member.place = result
                self._waiting_since = time.monotonic()
                self.starting[member.actor.describe.remote()] = member
            elif isinstance(result, WorkerFacts):
                if result.version == self.expected.version:
                    self.starting[member.actor.load.remote()] = member
                    return
                assert member.place is not None, "`place` comes first"
                reason = differences(result, self.expected)
                self._drop(member)
                self.refusals[member.place.node_id] = f"{member.name}: {reason}"
                self.reporter.note(
                    f"{self.name}: the worker {member.name} is refused, since it would answer as another model version: {reason}"
                )
                self.fill()
            else:
                self.idle.append(member)
                self.note_count()

    def lost(self, member: Member, error: BaseException) -> bool:
        """Replace a worker that ended. Returns whether its node has ended with it, or cannot be reached."""
        import ray

        self._drop(member)
        self.past_usages.append(member.usages)
        is_unreachable = isinstance(error, ray.exceptions.ActorUnavailableError)
        node_is_gone = member.place is not None and (is_unreachable or member.place.node_id not in alive_nodes())
        self._deaths += 1
        self._last_end = first_line(error)
        what = "its node has ended or cannot be reached" if node_is_gone else self._last_end
        self.reporter.note(f"{self.name}: lost the worker {member.name} ({what}); {len(self.members)} of {self.wanted} are left")
        if self._deaths > max(_FEWEST_DEATHS, _DEATHS_A_WORKER * self.wanted):
            raise ModelError(
                f"Model {self.name!r}: {self._deaths} workers ended without an answer in between; the last one: {self._last_end}. "
                "Look at the memory and the logs of the nodes (/tmp/ray/session_latest/logs), then run again: answers so far are kept."
            )
        self.fill()
        return node_is_gone

    def answered(self) -> None:
        """Count an answer."""
        self._deaths = 0

    def require(self) -> None:
        """Go on if a worker has a place.

        Raises:
            ModelError: All were refused or could not start, or none got a place in time.
        """
        now = time.monotonic()
        if any(member.place for member in self.members):
            self._without_since = now
        if self._failures and not self.members:
            raise ModelError(
                f"Model {self.name!r}: {self._failures} workers could not start; the last one: {self._last_failure}. "
                f"Look at the memory and the weights of the nodes, then run again: answers so far are kept.{self._refused()}"
            )
        if self.refusals and not self.members:
            reasons = "\n".join(f"- {reason}" for reason in self.refusals.values())
            raise ModelError(f"Model {self.name!r}: all its workers were refused:\n{reasons}")
        if now - self._without_since > self.config.patience_s:
            raise ModelError(
                f"Model {self.name!r}: no worker got a place within {self.config.patience_s:g} s (`patience_s`). Each of {self.wanted} "
                f"asks for {needs(self.config)}; the cluster has {room()}. "
                f"Lower `cpus` or `gpus` of its `workers` in evals.yaml, or add nodes.{self._refused()}"
            )
        waiting = sum(member.place is None for member in self.members)
        if waiting and now - self._waiting_since > _NOTE_S and self._noted != (len(self.members), waiting):
            self._noted = (len(self.members), waiting)
            self.reporter.note(
                f"{self.name}: goes on with {len(self.members) - waiting} of {self.wanted} workers, since the cluster has no room for "
                f"more: each asks for {needs(self.config)}, and there are {room()}"
            )

    def _refused(self) -> str:
        """Lines about workers that were refused; empty without one."""
        reasons = "".join(f"\n- {reason}" for reason in self.refusals.values())
        return f" Refused, as another model version:{reasons}" if reasons else ""

    def note_count(self) -> None:
        """Report how many workers are ready, first one and all."""
        ready = len(self.members) - len(self.starting)
        if ready in (1, self.wanted) and self._noted != (ready, 0):
            self._noted = (ready, 0)
            self.reporter.note(f"{self.name}: {self.state()}")

    def state(self) -> str:
        """How many workers are ready."""
        return f"{len(self.members) - len(self.starting)} of {max(self.wanted, len(self.members))} workers"

    def end(self) -> None:
        """End all workers at once."""
        for member in list(self.members):
            self._drop(member)
            self.past_usages.append(member.usages)
        self.starting.clear()
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def usages(self) -> list[Sequence[Usage]]:
        """The work of all workers, also of those that were lost."""
        return [*self.past_usages, *(member.usages for member in self.members)]

    def _drop(self, member: Member) -> None:
        import ray

        self.members.remove(member)
        if member in self.idle:
            self.idle.remove(member)
        if ray.is_initialized():  # it is not where the process ends
            ray.kill(member.actor)


def new_actor(config: WorkersConfig, task: WorkerTask, *, without: Mapping[str, str] | Sequence[str] = ()) -> Any:
    """A new actor, which waits in the cluster until there is room. `without` are the ids of nodes if it may not be."""
    import ray

    options: dict[str, object] = {"num_cpus": config.cpus, "num_gpus": config.gpus, "max_restarts": 0, "max_task_retries": 0}
    if without:
        options["label_selector"] = {_NODE_LABEL: f"!in({','.join(without)})"}
    if config.python is not None:
        options["runtime_env"] = {"py_executable": config.python}
    return ray.remote(Worker).options(**options).remote(task)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, with its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
