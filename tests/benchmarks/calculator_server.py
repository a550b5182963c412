"""A chat server on loopback whose model calls `add` until it has been told nine results: `python calculator_server.py DELAY_S`.

It answers each request after so many seconds, without work of its own, and prints its port.
"""

import asyncio
import json
import re
import sys
from functools import partial

CALLS = 9
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_RESULT = re.compile(rb'"role": ?"tool"')
_MODELS = {"object": "list", "data": [{"id": "calculator", "object": "model"}]}


class _Connection(asyncio.Protocol):
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._read[:end])
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._read) < whole:
                return
            head, body, self._read = self._read[:end], self._read[end + 4 : whole], self._read[whole:]
            answer = _MODELS if head.startswith(b"GET") else _answer(body)
            asyncio.get_running_loop().call_later(self._delay_s, partial(self._say, answer))

    def _say(self, answer: object) -> None:
        if not self._transport.is_closing():
            text = json.dumps(answer).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def _answer(body: bytes) -> object:
    told = len(_RESULT.findall(body))
    message: dict[str, object] = {"role": "assistant", "content": str(told)}
    if told < CALLS and b'"tools"' in body:
        function = {"name": "add", "arguments": json.dumps({"x": told, "y": 1})}
        message = {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{told}", "type": "function", "function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    named = {"id": f"r{hash(body)}", "object": "chat.completion", "created": 1, "model": "calculator"}
    return {**named, "choices": [choice], "usage": usage}


async def _main(delay_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(delay_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - its result
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(float(sys.argv[1])))
