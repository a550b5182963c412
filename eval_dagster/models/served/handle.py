"""The backend `openai`: a model behind a server with the interface of OpenAI."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import EvalDagsterError, ModelError, ModelNotFoundError, ModelUnreachableError
from eval_dagster.models.base import FindKnown, Look, ModelHandle
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.client import Client, PushbackError, StoppedError, headers_of
from eval_dagster.models.served.calls.threads import result_of
from eval_dagster.models.served.canaries import is_chat
from eval_dagster.models.served.looking import Watch, look_calls
from eval_dagster.models.served.model import Replica, ServedModel
from eval_dagster.models.served.pace.pacing import Pace, PaceSettings
from eval_dagster.models.served.scoring.tokenizers import LocalTokenizer, require_same_tokens
from eval_dagster.models.served.spend import CappedClient, Spend
from eval_dagster.models.served.watch import Epoch, minute
from eval_dagster.models.transformers.weights.sources import open_tokenizer
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message
from eval_dagster.stores.whole_files import replaced
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.versions.hashes import stable_hash

_FACTS = ("context_length", "max_model_len", "meta", "parent", "quantization", "root")
"""Keys of `/models` that describe the model. Others, such as a price, change under the same model."""
ENGINE_VERSION = 2
"""Version of the code that makes calls of requests and reads answers. Raise it if an answer may change."""
_LOOK_TIMEOUT_S = 15.0
_LOOKS, _BETWEEN_LOOKS_S = 3, 0.2
"""Times that the list of models is asked for, if the answer is none."""
_PATIENCE_S = 60.0
"""Seconds without an answer to a canary after which a look ends."""


def declared(models: object, name: str) -> tuple[Mapping[str, object] | None, list[str]]:
    """The declaration of a model in `/models`, and the names of all models there. None if the model is not among them."""
    entries = models.get("data") if isinstance(models, dict) else models
    listed = [(each.get("id"), each) for each in (entries if isinstance(entries, list) else ()) if isinstance(each, dict)]
    named = [(known, each) for known, each in listed if isinstance(known, str)]
    for known, each in named:
        aliases = each.get("aliases")
        if name == known or (isinstance(aliases, list) and name in aliases):
            return {key: value for key, value in sorted(each.items()) if key in _FACTS}, [known for known, _ in named]
    return None, [known for known, _ in named]


class ServedHandle(ModelHandle):
    """A model behind a server."""

    SECTION = OpenAIModel

    def __init__(self, name: str, config: OpenAIModel, *, home: Path, folder: Path | None = None) -> None:
        """`name` is the model's, `home` the folder of all state, `folder` the folder of evals.yaml (the current one if None)."""
        self._name = name
        self._config = config
        self._folder = home / "endpoints" / stable_hash(config.base_url.rstrip("/"))
        self._file = self._folder / f"{stable_hash(config.model)}.json"
        self._facts: Mapping[str, object] | None = None
        """Declarations of the server about the model, such as its path, the size of its file and the length of its context."""
        self._tokenizer: LocalTokenizer | None = None
        if config.tokenizer is not None:
            self._tokenizer = LocalTokenizer(name, open_tokenizer(name, config.tokenizer, folder=folder or Path(), home=home))
        endpoint = stable_hash([self._identity(), self._asked(), is_chat(config), config.generation.temperature])
        self._watch = Watch(name, config, home, endpoint)
        self._down: str | None = None
        self._spend = Spend(name, config, self._folder)

    @classmethod
    def open(cls, name: str, config: OpenAIModel, *, folder: Path, home: Path) -> "ServedHandle":
        """The handle of a section of evals.yaml. Nothing is asked yet."""
        return cls(name, config, home=home, folder=folder)

    def check(self) -> None:
        """Ask the server for the model.

        Raises:
            ModelUnreachableError: The server gives no answer; the version is known from an earlier run.
            ModelNotFoundError: The key, the server or the model or its tokenizer is not there.
        """
        if self._tokenizer is not None:
            self._tokenizer.check()
        before = self._last_facts()
        try:
            found = self._declared(self._config.base_url)
        except ModelUnreachableError as error:
            for address in self._config.replicas:  # another server may answer that does not contradict what is known
                with suppress(EvalDagsterError):
                    found = self._declared(address)
                    if before is None or not found or found == before:
                        break
            else:
                if before is None:
                    raise ModelNotFoundError(str(error)) from None
                self._down = str(error)
                raise
        self._down = None
        # A server that is starting may declare nothing yet.
        self._facts = found or before or {}
        if self._facts != before or not self._file.is_file():
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self._file) as temporary:
                temporary.write_text(json.dumps({"facts": self._facts}, indent=1, sort_keys=True), "utf-8")

    def look(self, known: FindKnown, run_id: str) -> Look:
        """Compare the server's answers with those that opened the epoch, and begin an epoch if they changed."""
        if not self._config.canaries:
            return self._without_server(self._down) if self._down else Look()
        with self._watch.alone():
            try:
                self.check()
                config = _hasty(self._config)
                if (problem := self._spend.too_little_for(look_calls(config, self._watch.epoch))) is not None:
                    return Look(warnings=(f"it is not known whether {self._name} changed, because {problem}",))
                return self._watch.look(self._model(config), config, known(), self._known(), run_id)
            except ModelNotFoundError as error:
                return self._without_server(str(error))
            except StoppedError as error:
                return Look(warnings=(f"it is not known whether {self._name} changed, because its canaries got no answer: {error}",))

    def version(self) -> str:
        """Hash of the model's name and address (or its pin), of what the server declares, and of the settings of its requests.

        Raises `ModelNotFoundError` if nothing is known of the server and it cannot be asked.
        """
        return self._version(self.content_version())

    def loads_at_once(self) -> bool:
        """True: the server has the weights."""
        return True

    def must_ask(self) -> bool:
        """Whether nothing is known of the server yet."""
        return self._facts is None and self._last_facts() is None

    def must_prepare(self) -> bool:
        """Whether `tokenizer` renders messages, whose files may have to be fetched."""
        return self._tokenizer is not None and not self.takes_messages()

    def content_version(self) -> str:
        """Hash of the pin; without one, of the model's name and address, of what the server declares, and of the epoch.

        Raises as `version` does.
        """
        return self._content(self._watch.epoch)

    def declared_versions(self) -> tuple[str, str]:
        """The versions in the epoch 0. Raises as `version` does."""
        content = self._content(Epoch())
        return self._version(content), content

    def image_mark(self) -> str:
        """Raise `ModelError`: images are sent in messages only."""
        raise ModelError(f"Model {self._name!r} is sent images as messages only. Set `prompt_format: chat` for it in evals.yaml.")

    def takes_messages(self) -> bool:
        """Whether the model is sent messages, to which the server applies its template. Else the template of `tokenizer` is applied."""
        return self._config.send == "messages"

    def answers_vary(self) -> bool:
        """Whether a fresh answer may differ: always, since rounding follows what else the server has to do."""
        return True

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:
        """Render messages by the template of `tokenizer`. Raises `ModelError` with images or tools, or if the server has the template."""
        if self._tokenizer is None or self.takes_messages():
            raise ModelError(f"Model {self._name!r} has its chat template on its server; messages are sent to it as they are.")
        if images:
            raise ModelError(f"Model {self._name!r} is sent images as messages only. Set `send: messages` for it in evals.yaml.")
        if tools:
            raise ModelError(f"Model {self._name!r} is told of tools with messages only. Set `send: messages` for it in evals.yaml.")
        return self._tokenizer.render(messages)

    def template_version(self) -> str:
        """Hash of `tokenizer` if it renders messages; else the same always, since no template is applied here."""
        if self._tokenizer is None or self.takes_messages():
            return stable_hash("the server's template")
        return self._tokenizer.template_version()

    def load(self) -> ServedModel:
        """The model. Where evals.yaml names its tokenizer, the server's has to give the same tokens.

        Raises:
            ModelNotFoundError: The key is not there.
            ModelError: The two tokenizers differ, or cannot be compared.
        """
        if self._tokenizer is not None:
            local, headers = self._tokenizer, headers_of(self._name, self._config)

            async def compare() -> None:
                async with CappedClient(self._name, self._config, headers, self._spend) as client:
                    await require_same_tokens(self._name, self._config, client, local)

            local.tokens("", add_special_tokens=False)  # loaded here, where progress is reported
            try:
                result_of(compare)
            except BadAnswerError as error:
                raise ModelError(f"Model {self._name!r}: its `tokenizer` cannot be compared with that of the server: {error}") from None
        return self._model(self._config, self._replicas())

    def _replicas(self) -> list[Replica]:
        """All servers of the model but those that would answer as another one; empty if there is one server alone."""
        found: list[Replica] = []
        for address in self._config.replicas:
            config = self._config.model_copy(update={"base_url": address, "replicas": ()})
            replica = Replica(config=config, pace=partial(self._pace, address), problem=partial(self._problem, config))
            try:
                problem = replica.problem()
            except ModelUnreachableError:
                problem = None  # it is left out until it answers
            except EvalDagsterError as error:
                problem = str(error)
            if problem is None:
                found.append(replica)
            else:
                current_reporter().note(f"{self._name}: the server at {address} is refused: {problem}")
        first = Replica(config=self._config, pace=self._pace, problem=partial(self._problem, self._config))
        return [first, *found] if found else []

    def _problem(self, config: OpenAIModel) -> str | None:
        """Why a server would answer as another model than the one that was looked at; None if it would not.

        Raises:
            ModelUnreachableError: It does not answer.
            ModelNotFoundError, StoppedError: It does not have the model, or refuses.
        """
        found, expected = self._declared(config.base_url), self._known()
        if found != expected and found:
            return f"it declares {found} of the model, expected {expected}"
        if not config.canaries:
            return None
        hasty = _hasty(config)
        return self._watch.difference(self._model(hasty, pace=partial(self._pace, config.base_url)), hasty)

    def _model(self, config: OpenAIModel, replicas: Sequence[Replica] = (), pace: Callable[[], Pace] | None = None) -> ServedModel:
        lengths = (self._known().get(name) for name in ("max_model_len", "context_length"))
        context = next((each for each in lengths if isinstance(each, int) and not isinstance(each, bool) and each > 0), None)
        headers, spend, pace = headers_of(self._name, config), self._spend, pace or self._pace
        return ServedModel(self._name, config, headers, pace, spend, tokenizer=self._tokenizer, context=context, replicas=replicas)

    def _pace(self, address: str | None = None) -> Pace:
        config = self._config
        settings = PaceSettings(
            fixed=config.concurrency, requests_per_minute=config.requests_per_minute, tokens_per_minute=config.tokens_per_minute
        )
        return Pace(settings, self._folder if address is None else self._folder.with_name(stable_hash(address.rstrip("/"))))

    def _identity(self) -> dict[str, str] | list[str]:
        return {"pin": self._config.pin} if self._config.pin is not None else [self._config.base_url.rstrip("/"), self._config.model]

    def _asked(self) -> dict[str, object]:
        config = self._config
        return {"headers": config.headers, "headers_env": config.headers_env, "extra_body": config.extra_body}

    def _version(self, content: str) -> str:
        asked = self._asked()
        if self._tokenizer is not None:
            asked["tokenizer"] = self._tokenizer.version()
        # Defaults do not count, so that a new key keeps the versions of configurations without it.
        for name in ("send", "continue_cue", "max_length", "finish_reasons"):
            if getattr(self._config, name) != OpenAIModel.model_fields[name].get_default(call_default_factory=True):
                asked[name] = getattr(self._config, name)
        return stable_hash({"content": content, "asked": asked, "engine": ENGINE_VERSION})

    def _content(self, epoch: Epoch) -> str:
        if self._config.pin is not None:
            return stable_hash(self._identity())
        return stable_hash([*self._identity(), self._known(), epoch.mark()])

    def _known(self) -> Mapping[str, object]:
        if self._facts is None:
            self._facts = self._last_facts()
        if self._facts is None:
            self.check()
        assert self._facts is not None, "`check` sets it"
        return self._facts

    def _last_facts(self) -> Mapping[str, object] | None:
        """The kept declaration; without one, or if its file is damaged, the one that the last look recorded."""
        try:
            found: Mapping[str, object] = json.loads(self._file.read_text("utf-8"))["facts"]
        except (OSError, ValueError, KeyError, TypeError):
            return self._watch.last_facts()
        return found

    def _without_server(self, problem: str) -> Look:
        looked_at = minute(self._watch.epoch.looked_at)
        state = f"as the look at {looked_at} UTC found it" if looked_at else "as it was last known"
        return Look(down=problem, warnings=(f"{problem} Cached answers of {self._name} are used, {state}.",))

    def _declared(self, base_url: str) -> Mapping[str, object]:
        """A server's declaration of the model. A server without a list of models declares nothing."""
        headers = headers_of(self._name, self._config)

        async def look() -> object:
            async with Client(self._name, base_url, headers, min(_LOOK_TIMEOUT_S, self._config.timeout_s)) as client:
                for _ in range(_LOOKS - 1):
                    try:
                        return await client.get("/models")
                    except (BadAnswerError, PushbackError, StoppedError) as error:
                        if isinstance(error, PushbackError) and error.is_broken and not error.may_be_billed:
                            raise  # nobody listens
                        await asyncio.sleep(_BETWEEN_LOOKS_S)
                return await client.get("/models")

        try:
            models = result_of(look)
        except (PushbackError, BadAnswerError) as error:
            raise ModelUnreachableError(
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


def _hasty(config: OpenAIModel) -> OpenAIModel:
    """The section for a look, which ends soon if a server does not answer."""
    patience = min(_PATIENCE_S, config.patience_s)
    return config.model_copy(update={"attempts": 2, "patience_s": patience, "timeout_s": min(patience, config.timeout_s)})
