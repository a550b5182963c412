"""Writes small logs in the format of inspect_ai: zip archives of JSON, packed by Zstandard, deflate or not at all."""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORED, DEFLATE, ZSTANDARD = 0, 8, 93

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """A call of a tool in a sample."""

    name: str
    arguments: Mapping[str, object]
    result: str = ""
    error: str | None = None


def log_sample(
    sample_id: int | str,
    answer: str | None = None,
    *,
    scores: Mapping[str, object] | None = None,
    epoch: int = 1,
    question: str | None = None,
    target: str | Sequence[str] = "4",
    tools: Sequence[ToolUse] = (),
    error: str | None = None,
    limit: str | None = None,
    system: str | None = None,
    padding: str = "",
    uuid: str = "",
) -> Json:
    """A sample; without an answer, one that failed before its first answer. `padding` is text that nobody needs, in an event."""
    question = question or f"What is {sample_id}+1?"
    asked = [{"id": "q", "role": "user", "content": question, "source": "input"}]
    messages: list[Json] = [*([{"id": "s", "role": "system", "content": system}] if system else []), *asked]
    events: list[Json] = [{"event": "info", "id": 7, "data": padding, "output": "events of other kinds have other types here"}]
    usage = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14}

    def said(message: Json) -> None:
        reason = "tool_calls" if "tool_calls" in message else "stop"
        output = {"model": "mock/m", "choices": [{"message": message, "stop_reason": reason}], "usage": usage, "time": 0.4}
        events.append({"event": "model", "model": "mock/m", "input_refs": [[0, 1]], "output": output, "working_time": 0.5})
        messages.append(message)

    for number, use in enumerate(tools):
        call = {"id": f"call_{number}", "function": use.name, "arguments": dict(use.arguments), "type": "function"}
        said({"id": f"m{number}", "role": "assistant", "content": "", "source": "generate", "tool_calls": [call]})
        result = {"id": f"t{number}", "role": "tool", "content": use.result, "tool_call_id": f"call_{number}", "function": use.name}
        events.append({"event": "tool", "id": f"call_{number}", "result": use.result, "error": None, "working_time": 0.25})
        messages.append(result if use.error is None else {**result, "error": {"type": "unknown", "message": use.error}})
    if answer is not None:
        said({"id": "a", "role": "assistant", "content": answer, "source": "generate"})
    last = messages[-1] if answer is not None else None
    return {
        "id": sample_id,
        "epoch": epoch,
        "input": question,
        "target": target,
        "messages": messages,
        "output": {
            "model": "mock/m",
            "choices": [] if last is None else [{"message": last, "stop_reason": "stop"}],
            "completion": answer or "",
            "usage": usage,
        },
        "scores": {
            name: score if isinstance(score, dict) and "value" in score else {"value": score} for name, score in (scores or {}).items()
        },
        "metadata": {"level": 1},
        "store": {},
        "events": events,
        "model_usage": {"mock/m": usage} if answer is not None else {},
        "working_time": 0.75,
        "total_time": 1.0,
        "uuid": uuid or f"{sample_id}-{epoch}",
        "attachments": {},
        **({"error": {"message": error, "traceback": "", "traceback_ansi": ""}} if error is not None else {}),
        **({"limit": {"type": limit, "limit": 3}} if limit is not None else {}),
    }


def _score(score: object) -> Json:
    return score if isinstance(score, dict) and "value" in score else {"value": score}


def log_header(
    *,
    task: str = "addition",
    model: str = "mock/m",
    created: str = "2026-03-01T02:00:00+00:00",
    eval_id: str = "",
    scorers: Sequence[str] = ("match",),
    status: str = "success",
    args: Mapping[str, object] | None = None,
    packages: Mapping[str, str] | None = None,
    asked: int | None = None,
    headline: Mapping[str, str] | None = None,
) -> Json:
    """The header of a log."""
    return {
        "version": 2,
        "status": status,
        "eval": {
            "eval_id": eval_id or f"{task}-{model}-{created}",
            "task": task,
            "model": model,
            "created": created,
            "task_args_passed": dict(args or {}),
            "dataset": {"name": "sums", "samples": asked},
            "packages": dict(packages or {"inspect_ai": "0.3.285"}),
            "scorers": [{"name": name, "options": {}} for name in scorers],
            "config": {"epochs": 1},
        },
        "plan": {"steps": [{"solver": "generate", "params": {}}], "config": {}},
        **({"results": {"headline": dict(headline)}} if headline else {}),
    }


def write_log(path: Path, header: Json, samples: Iterable[Json], *, method: int = ZSTANDARD, is_ended: bool = True) -> Path:
    """Write a log; with `is_ended` false as a killed evaluation leaves it, without a header."""
    start = {name: value for name, value in header.items() if name not in ("status", "results")}
    members = [("_journal/start.json", start)]
    members += [(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample) for sample in samples]
    members += [("header.json", header)] if is_ended else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_archive(path, ((name, json.dumps(content).encode()) for name, content in members), method=method)
    return path


def write_archive(path: Path, members: Iterable[tuple[str, bytes]], *, method: int = ZSTANDARD) -> None:
    """Write a zip archive by any of the three methods. Archives of many members have the wider form of their directory."""
    if method == ZSTANDARD:
        import zstandard

        pack = zstandard.ZstdCompressor().compress
    else:
        pack = _deflated if method == DEFLATE else bytes
    directory: list[bytes] = []
    with path.open("wb") as file:
        for name, content in members:
            packed, encoded, offset = pack(content), name.encode(), file.tell()
            common = struct.pack("<HHHHHIIIHH", 20, 0x800, method, 0, 33, zlib.crc32(content), len(packed), len(content), len(encoded), 0)
            file.write(b"PK\x03\x04" + common + encoded + packed)
            directory.append(b"PK\x01\x02" + struct.pack("<H", 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, offset) + encoded)
        start, size, count = file.tell(), sum(map(len, directory)), len(directory)
        file.write(b"".join(directory))
        if count > 0xFFFF:
            wide = struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, start)
            file.write(b"PK\x06\x06" + wide + b"PK\x06\x07" + struct.pack("<IQI", 0, start + size, 1))
        short = min(count, 0xFFFF)
        file.write(b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, short, short, min(size, 0xFFFFFFFF), min(start, 0xFFFFFFFF), 0))


def _deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()
