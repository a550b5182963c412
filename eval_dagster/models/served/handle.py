"""The backend `openai`: a model behind a server with the interface of OpenAI."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.endpoint_state import EndpointState, StateFile, declared
from eval_dagster.models.served.model import ServedModel
from eval_dagster.models.served.pacing import Pace, PaceSettings
from eval_dagster.models.served.secrets import headers_of
from eval_dagster.models.served.threads import result_of
from eval_dagster.records import Message
from eval_dagster.suggestions import did_you_mean
from eval_dagster.versions import stable_hash

ENGINE_VERSION = 1
"""Version of the code that makes calls of requests and reads answers. Raise it where an answer may change."""
_LOOK_TIMEOUT_S = 15.0


class ServedHandle:
    """A model behind a server."""

    SECTION = OpenAIModel

    def __init__(self, name: str, config: OpenAIModel, *, home: Path) -> None:
        """`name` is that of the model in evals.yaml, `home` the folder of all state."""
        self._name = name
        self._config = config
        self._folder = home / "endpoints" / stable_hash(config.base_url.rstrip("/"))
        self._file = StateFile(self._folder / f"{stable_hash(config.model)}.json")
        self._state: EndpointState | None = None

    @classmethod
    def open(cls, name: str, config: OpenAIModel, *, folder: Path, home: Path) -> "ServedHandle":  # noqa: ARG003
        """The handle of a section of evals.yaml. Nothing is asked yet."""
        return cls(name, config, home=home)

    def check(self) -> None:
        """Ask the server for the model. Raises `ModelNotFoundError` where the key, the server or the model is not there."""
        before = self._file.read() or EndpointState()
        # A server that is starting may declare nothing yet.
        self._state = EndpointState(facts=self._look() or before.facts, epoch=before.epoch)
        if self._state != before or not self._file.exists():
            self._file.write(self._state)

    def version(self) -> str:
        """Hash of the model's name and address (or its pin), of what the server declares, and of the settings of its requests.

        Raises `ModelNotFoundError` where nothing is known of the server and it cannot be asked.
        """
        config = self._config
        asked = {"headers": config.headers, "headers_env": config.headers_env, "extra_body": config.extra_body}
        return stable_hash({"content": self.content_version(), "asked": asked, "engine": ENGINE_VERSION})

    def content_version(self) -> str:
        """Hash of the pin; without one, of the model's name and address, and of what the server declares. Raises as `version` does."""
        if self._config.pin is not None:
            return stable_hash({"pin": self._config.pin})
        state = self._known()
        return stable_hash([self._config.base_url.rstrip("/"), self._config.model, state.facts, state.epoch])

    def image_mark(self) -> str:
        """Raise `ModelError`: images are sent in messages only."""
        raise ModelError(f"Model {self._name!r} is sent images as messages only. Set `prompt_format: chat` for it in evals.yaml.")

    def takes_messages(self) -> bool:
        """Whether the model is sent messages: always, since the server has the template."""
        return True

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:  # noqa: ARG002
        """Raise `ModelError`: the server has the template."""
        raise ModelError(f"Model {self._name!r} has its chat template on its server; messages are sent to it as they are.")

    def template_version(self) -> str:
        """The same always: no template is applied here."""
        return stable_hash("the server's template")

    def load(self) -> ServedModel:
        """The model; nothing is sent yet. Raises `ModelNotFoundError` where the key is not there."""
        return ServedModel(self._name, self._config, headers_of(self._name, self._config), self._pace)

    def _pace(self) -> Pace:
        config = self._config
        settings = PaceSettings(
            fixed=config.concurrency, requests_per_minute=config.requests_per_minute, tokens_per_minute=config.tokens_per_minute
        )
        return Pace(settings, self._folder)

    def _known(self) -> EndpointState:
        if self._state is None:
            self._state = self._file.read()
        if self._state is None:
            self.check()
        assert self._state is not None, "`check` sets it"
        return self._state

    def _look(self) -> Mapping[str, Any]:
        """What the server declares about the model. A server without a list of models declares nothing."""
        headers, base_url = headers_of(self._name, self._config), self._config.base_url

        async def look() -> Any:
            async with Client(self._name, base_url, headers, min(_LOOK_TIMEOUT_S, self._config.timeout_s)) as client:
                return await client.get("/models")

        try:
            models = result_of(look)
        except (PushbackError, BadAnswerError) as error:
            raise ModelNotFoundError(
                f"Model {self._name!r}: no server answers at {base_url}/models: {error}. "
                "Start the server, or correct `base_url` in evals.yaml."
            ) from None
        except StoppedError as error:
            if error.status in (403, 404, 405):  # it keeps the list to itself
                return {}
            raise ModelNotFoundError(str(error)) from None
        facts, names = declared(models, self._config.model)
        if facts is None and names and self._config.pin is None:
            raise ModelNotFoundError(
                f"Model {self._name!r}: the server at {base_url} has no model {self._config.model!r}"
                f"{did_you_mean(self._config.model, names)}; it has: {', '.join(names[:20])}. Correct `model` in evals.yaml. "
                "If the server answers for it without listing it, set `pin` to what identifies the model."
            )
        return facts or {}
