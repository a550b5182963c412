"""The stub's process: `python -m servers.stub_program <address file> <settings as JSON>`."""

import asyncio
import json
import sys
from collections import Counter, deque
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from servers.lifetime import announce, end_with_standard_input
from servers.stub import StubSettings
from servers.stub_answers import Asked, answer, asked
from servers.stub_http import Answer, HttpProtocol
from servers.stub_model import HashModel, Vocabulary, is_given, split
from servers.stub_slots import Slots

_TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")


class StubServer:
    """Routes of the server, and what it counts."""

    def __init__(self, settings: StubSettings) -> None:
        self._vocabulary = Vocabulary()
        self._random = Random(0)
        self._apply(settings)
        self._reset()

    def _apply(self, settings: StubSettings) -> None:
        self._settings = settings
        for token in settings.vocabulary:
            self._vocabulary.id_of(token)
        self._model = HashModel(settings.salt, settings.mean_tokens, settings.sigma)
        self._slots = Slots(settings.slots, settings.base_s, settings.text_s) if settings.slots else None

    def _reset(self) -> None:
        self._received: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._requests: deque[dict[str, Any]] = deque(maxlen=1000)
        self._usages: deque[tuple[int, int]] = deque(maxlen=100_000)
        self._rejected = self._at_once = self._most_at_once = self._tokens = 0

    def route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        if path in _TEXT_PATHS and method == "POST":
            return self._write(path, headers, json.loads(body))
        if path == "/v1/models":
            model = {"id": self._settings.model, "object": "model", "owned_by": "stub", "max_model_len": self._settings.context}
            return {"object": "list", "data": [model]}
        if path == "/health":
            return {"status": "ok"}
        if path == "/tokenize" and self._settings.tokenize:
            return self._tokenize(json.loads(body))
        if path.startswith("/control/"):
            return self._control(path.removeprefix("/control/"), body)
        raise Answer(404, f"{method} {path} is not served")

    def _control(self, name: str, body: bytes) -> Any:
        match name:
            case "counts":
                counts = {"rejected": self._rejected, "most_at_once": self._most_at_once, "tokens": self._tokens}
                return {"received": self._received, "answered": self._answered, **counts}
            case "usages":
                return list(self._usages)
            case "requests":
                return list(self._requests)
            case "settings":
                self._apply(replace(self._settings, **json.loads(body)))
            case "reset":
                self._reset()
            case _:
                raise Answer(404, f"no control {name!r}")
        return asdict(self._settings)

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        # vLLM names the text `prompt`, llama.cpp `content`.
        tokens = [self._vocabulary.id_of(token) for token in split(body.get("prompt", body.get("content", "")))]
        return {"tokens": tokens, "count": len(tokens), "max_model_len": self._settings.context} if "prompt" in body else {"tokens": tokens}

    def _write(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
        self._requests.append({"path": path, "headers": headers, "body": body})
        key = _key(body, self._settings.count_by)
        self._received[key] += 1
        if self._settings.reject_above and self._at_once >= self._settings.reject_above:
            self._rejected += 1
            raise Answer(429, "too many requests", **({"Retry_After": self._settings.retry_after} if self._settings.retry_after else {}))
        request = asked(body, self._settings, self._vocabulary)
        salt = str(self._random.random()) if self._random.random() < self._settings.noise or self._is_withheld(key) else ""
        self._at_once += 1
        self._most_at_once = max(self._most_at_once, self._at_once)
        if self._slots is not None:
            return self._finish_in_slot(self._slots, key, request, salt)
        try:
            return self._finish(key, request, *answer(request, self._model, self._settings, self._vocabulary, salt))
        finally:
            self._at_once -= 1

    def _is_withheld(self, prompt: str) -> bool:
        chances, luck = self._settings.chances, self._settings.luck
        part = next((part for part in chances if part in prompt), None)
        return part is not None and not is_given(luck, part, self._received[prompt], chances[part])

    def _finish(self, key: str, request: Asked, whole: dict[str, Any], tokens: int) -> dict[str, Any]:
        self._answered[key] += 1
        self._usages.append((len(request.prompt_tokens), tokens))
        self._tokens += tokens
        return whole

    async def _finish_in_slot(self, slots: Slots, key: str, request: Asked, salt: str) -> dict[str, Any]:
        try:
            whole, tokens = answer(request, self._model, self._settings, self._vocabulary, salt)
            await slots.write(tokens)
            return self._finish(key, request, whole, tokens)
        finally:
            self._at_once -= 1


def _key(body: dict[str, Any], field: str) -> str:
    if field in body:
        return str(body[field])
    prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


async def main() -> None:
    end_with_standard_input()
    server = StubServer(StubSettings(**json.loads(sys.argv[2])))
    listener = await asyncio.get_running_loop().create_server(lambda: HttpProtocol(server.route), "127.0.0.1", 0, backlog=4096)
    announce(Path(sys.argv[1]), f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
