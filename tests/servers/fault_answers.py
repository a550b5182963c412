"""What a client gets in place of an answer, or instead of the right one."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from email.utils import formatdate
from time import time
from typing import Any

from aiohttp import web

from servers.faults import Fault, FaultSettings

_PAGE = "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"


async def lost(fault: Fault, request: web.Request, asked: dict[str, Any], settings: FaultSettings) -> web.StreamResponse:
    """The answer to a request that the server never gets."""
    match fault:
        case Fault.LIMITED | Fault.LIMITED_SECONDS | Fault.LIMITED_DATE:
            return web.json_response(_error("Rate limit reached"), status=429, headers=_wait(fault, settings.retry_after_s))
        case Fault.SERVER_ERROR:
            return web.json_response(_error("The server had an error"), status=500)
        case Fault.BAD_GATEWAY:
            return web.Response(status=502, text=_PAGE, content_type="text/html")
        case Fault.RESET:
            return _reset(request, web.Response())
        case Fault.RESET_IN_BODY | Fault.CUT_CHUNKS:
            return await _cut(fault, request, asked)
        case Fault.DELAY:
            await asyncio.sleep(settings.delay_s)
            return web.json_response(_error("Gateway timeout"), status=504)
        case Fault.GARBAGE:
            return web.Response(text="\x1f\x00 upstream\ufffd ok", content_type="application/json")
        case Fault.HALF_JSON:
            whole = json.dumps(_answer(asked, "half of the ans"))
            return web.Response(text=whole[: len(whole) // 2], content_type="application/json")
        case Fault.NO_CHOICES:
            return web.json_response({name: value for name, value in _answer(asked, "").items() if name != "choices"})
        case Fault.NULL_CONTENT:
            return web.json_response(_answer(asked, None))
        case Fault.ERROR_OBJECT:
            return web.json_response(_error("The model is overloaded"))
    raise ValueError(f"{fault!r} is no fault that loses an answer")


def altered(fault: Fault, response: web.Response) -> web.Response:
    """The server's answer with the same text, and something else wrong."""
    assert isinstance(response.body, bytes)
    answer = json.loads(response.body)
    match fault:
        case Fault.ABSURD_USAGE:
            answer["usage"] = {"prompt_tokens": 10**15, "completion_tokens": -1, "total_tokens": "many"}
        case Fault.NO_USAGE:
            answer.pop("usage", None)
        case Fault.OTHER_MODEL:
            answer["model"] = "another-model"
        case _:
            raise ValueError(f"{fault!r} is no fault that alters an answer")
    return web.json_response(answer)


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "injected_fault", "param": None, "code": None}}


def _wait(fault: Fault, seconds: int) -> dict[str, str]:
    if fault is Fault.LIMITED_SECONDS:
        return {"Retry-After": str(seconds)}
    return {"Retry-After": formatdate(time() + seconds, usegmt=True)} if fault is Fault.LIMITED_DATE else {}


def _answer(asked: dict[str, Any], text: str | None) -> dict[str, Any]:
    """As a server answers."""
    shown = {"message": {"role": "assistant", "content": text}} if "messages" in asked else {"text": text}
    choice = {"index": 0, **shown, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}
    return {"id": "fault", "object": "text", "model": asked.get("model"), "choices": [choice], "usage": usage}


async def _cut(fault: Fault, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
    whole = json.dumps(_answer(asked, "An answer of which only a part arrives.")).encode()
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    close: Callable[[web.Request, web.StreamResponse], web.StreamResponse] = _reset
    if fault is Fault.CUT_CHUNKS:
        response.enable_chunked_encoding()
        close = _close
    else:
        response.content_length = len(whole)
    await response.prepare(request)
    await response.write(whole[: len(whole) // 2])
    # Otherwise the reset may overtake what was written.
    await asyncio.sleep(0.05)
    return close(request, response)


def _close(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response


def _reset(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """End the connection by a reset."""
    if request.transport is not None:
        linger = struct.pack("ii", 1, 0)
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.transport.abort()
    return response
