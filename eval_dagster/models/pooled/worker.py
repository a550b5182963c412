"""The process of a worker: it reports about itself, opens the model from its section of evals.yaml, loads it once, and streams answers."""

import os
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from eval_dagster.config.models import BUILT_IN
from eval_dagster.errors import ConfigError, ModelNotFoundError
from eval_dagster.models.base import Model, ModelHandle
from eval_dagster.models.registry import is_file, open_model, registered_sections, section_in_file
from eval_dagster.models.transformers.network.devices import device_kind, device_of
from eval_dagster.models.usage import Usage
from eval_dagster.records import Message, ModelResponse, Request

_FIRST = ("python", "torch", "transformers", "tokenizers", "llguidance", "pillow", "vllm", "eval_dagster")
"""Packages that are named first if several differ."""
_MOST = 6
"""Most packages that a message names."""
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_CONNECT_S = 10.0
_MOST_ANSWERS = 64
"""Most answers of a batch."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a worker."""

    node: str
    """Address of its node."""
    node_id: str
    """The cluster's name of its node."""
    pid: int

    @property
    def name(self) -> str:
        """Node and process."""
        return f"{self.node}:{self.pid}"


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A worker before it loads the model."""

    version: str
    """The version of the model as this worker would answer."""
    content: str
    """The version of the model without its engine."""
    template: str
    """The version of the chat template."""
    takes_messages: bool
    answers_vary: bool
    device: str
    """What the model would run on; empty if its backend does not say."""
    packages: Mapping[str, str]
    """Versions of all installed packages, and of Python."""


def installed_packages() -> dict[str, str]:
    """Versions of all installed packages, and of Python."""
    found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in metadata.distributions() if each.metadata["Name"]}
    return found | {"python": ".".join(map(str, sys.version_info[:3]))}


def differences(found: WorkerFacts, expected: WorkerFacts) -> str:
    """The differences that make a worker another model version."""
    parts: list[str] = []
    if found.content != expected.content:
        parts.append(f"its weights, tokenizer or chat template are others ({found.content}, expected {expected.content})")
    if found.device != expected.device:
        parts.append(f"it runs on {found.device or 'no device'}, expected {expected.device or 'no device'}")
    both = found.packages.keys() | expected.packages.keys()
    names = [name for name in both if found.packages.get(name) != expected.packages.get(name)]
    if names:
        first = {name.replace("_", "-"): index for index, name in enumerate(_FIRST)}
        names.sort(key=lambda name: (first.get(name, len(first)), name))
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        shown = [f"{name} {found.packages.get(name, 'missing')} (expected {expected.packages.get(name, 'none')})" for name in names[:_MOST]]
        parts.append(f"packages: {', '.join(shown)}{more}")
    return "; ".join(parts) or "neither weights, device nor packages differ, but its settings or code do"


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """The instructions for a worker. It needs no file of the driver."""

    name: str
    """The name of the model."""
    section: Mapping[str, object]
    """Its section of evals.yaml, without the workers."""
    folder: str
    """The folder of evals.yaml on the driver's machine, where relative paths start."""
    gpus: float
    every_s: float = 0.25
    """Seconds between two batches of answers."""
    lifeline: tuple[str, int] | None = None
    """Host and port of the driver, to which a connection breaks when its process ends."""


def facts_of(handle: ModelHandle, task: WorkerTask) -> WorkerFacts:
    """The facts of a worker in this process. Raises `ModelNotFoundError` if the model is not there."""
    return WorkerFacts(
        version=handle.version(),
        content=handle.content_version(),
        template=handle.template_version(),
        takes_messages=handle.takes_messages(),
        answers_vary=handle.answers_vary(),
        device=device_text(task.section.get("device")),
        packages=installed_packages(),
    )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Answers that a worker sends together."""

    answers: Sequence[tuple[str, ModelResponse]]
    """By the id of the request."""
    usages: Sequence[Usage]
    """The work of this worker so far."""


class Worker:
    """An actor. The model is loaded and answers in one thread of its own, so that answers are sent while it computes."""

    def __init__(self, task: WorkerTask) -> None:
        if not task.gpus:
            for name in _GPU_VARIABLES:
                os.environ[name] = ""
        self._task = task
        if task.lifeline is not None:
            threading.Thread(target=_end_with_driver, args=(task.lifeline,), name="lifeline", daemon=True).start()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._opened: ModelHandle | None = None
        self._model: Model | None = None
        self._name = ""

    def place(self) -> Place:
        """The place of this worker. It is called first, since it takes no time, if a version is a hash of all weights."""
        import ray

        place = Place(node=ray.util.get_node_ip_address(), node_id=ray.get_runtime_context().get_node_id(), pid=os.getpid())
        self._name = place.name
        return place

    def describe(self) -> WorkerFacts:
        """The facts of this worker, and the version of its model.

        Raises:
            ModelNotFoundError: The weights or the device are not there.
            ConfigError: The section does not fit the backend that is installed here.
        """
        handle = self._handle()
        handle.check()
        return facts_of(handle, self._task)

    def load(self) -> None:
        """Load the model. Raises `ModelError` if that fails."""
        self._model = self._thread.submit(self._handle().load).result()

    def render(self, messages: Sequence[Message], images: int, tools: Sequence[str]) -> str:
        """The messages by the model's chat template."""
        return self._handle().apply_chat_template(messages, images=images, **({"tools": tools} if tools else {}))

    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt."""
        return self._handle().image_mark()

    def answer(self, requests: Sequence[Request]) -> Iterator[Batch]:
        """Answer the requests: batches of what is there, a few a second. An exception of the model is raised after its last answers."""
        model = self._model
        assert model is not None, "`load` comes first"
        queue: SimpleQueue[tuple[str, ModelResponse] | None] = SimpleQueue()
        work = self._thread.submit(self._respond, model, requests, queue)
        is_over = False
        while not is_over:
            answers = []
            first = queue.get()
            deadline = time.monotonic() + self._task.every_s
            is_over = first is None
            if first is not None:
                answers.append(first)
            while not is_over and len(answers) < _MOST_ANSWERS:
                try:
                    item = queue.get(timeout=max(0.0, deadline - time.monotonic()))
                except Empty:
                    break
                is_over = item is None
                if item is not None:
                    answers.append(item)
            if answers:
                yield Batch(answers=answers, usages=model.usage())
        work.result()
        yield Batch(answers=(), usages=model.usage())

    def _respond(self, model: Model, requests: Sequence[Request], queue: "SimpleQueue[tuple[str, ModelResponse] | None]") -> None:
        last = time.monotonic()
        try:
            for request, response in model.respond(requests):
                now = time.monotonic()
                queue.put((request.request_id, attributed(response, self._name, now - last, self._task.gpus)))
                last = now
        finally:
            queue.put(None)

    def _handle(self) -> ModelHandle:
        if self._opened is None:
            task = self._task
            section = section_of(task.name, task.section, Path(task.folder))
            self._opened = open_model(task.name, section, folder=Path(task.folder), home=node_home())
        return self._opened


def _end_with_driver(lifeline: tuple[str, int]) -> None:
    """End this process when the driver's ends: Ray takes seconds for it, in which the model would be asked for nobody.

    Where the driver cannot be reached, Ray ends the worker.
    """
    try:
        connection = socket.create_connection(lifeline, timeout=_CONNECT_S)
    except OSError:
        return
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(OSError):
        connection.recv(1)  # which nobody sends
    os._exit(1)


def attributed(response: ModelResponse, worker: str, seconds: float, gpus: float) -> ModelResponse:
    """The answer with its worker, the seconds of the worker since its answer before, and the seconds of its GPUs."""
    return replace(response, worker=worker, worker_s=seconds, gpu_s=seconds * gpus)


def section_of(name: str, values: Mapping[str, object], folder: Path) -> Any:
    """The checked section of a model. Raises `ConfigError` if the backend is not installed here, or has other keys."""
    backend = str(values.get("backend"))
    sections = {backend: section_in_file(backend, folder)} if is_file(backend) else {**registered_sections(), **BUILT_IN}
    if backend not in sections:
        raise ConfigError(f"Model {name!r}: no installed package has the backend {backend!r}; install the one that does on each node")
    try:
        return sections[backend].model_validate(values)
    except ValueError as error:
        raise ConfigError(f"Model {name!r}: its section does not fit the backend {backend!r} of this worker: {error}") from None


def device_text(setting: object) -> str:
    """The device of a model with this setting of `device`; empty without a setting."""
    if not isinstance(setting, str):
        return ""
    try:
        return " ".join(device_kind(device_of(setting)))
    except Exception as error:
        return f"{setting}, which is not there ({type(error).__name__})"


def node_home() -> Path:
    """The folder for what workers of this user prepare on a node, such as weights in another format.

    Raises:
        ModelNotFoundError: Somebody else owns the folder.
    """
    home = Path(tempfile.gettempdir()) / f"eval_dagster-workers-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    found = home.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise ModelNotFoundError(f"the folder {home} for the workers is not this user's alone; remove it, or set TMPDIR to another folder")
    return home
