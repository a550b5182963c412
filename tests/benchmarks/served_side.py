"""The side of this package: `python served_side.py WORK.json RESULT.json FOLDER`. Sends the prompts of a work to a server."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.records import GenerationSettings, Request


def main(work_file: str, result_file: str, _folder: str) -> None:
    """`WORK.json` has `base_url`, `model`, `prompts`, `max_tokens` `body` (further keys of each request), `home` (a folder that
    keeps the concurrency that was found) and `concurrency` (null to find it)."""
    work = json.loads(Path(work_file).read_text("utf-8"))
    settings = GenerationSettings(max_tokens=work["max_tokens"], temperature=0)
    requests = [Request(request_id=str(number), prompt=prompt, generation=settings) for number, prompt in enumerate(work["prompts"])]
    chosen = {name: work[name] for name in ("base_url", "model", "concurrency")}
    handle = ServedHandle("served", OpenAIModel(backend="openai", extra_body=work["body"], **chosen), home=Path(work["home"]))
    handle.check()
    model = handle.load()
    started, cpu_started = time.perf_counter(), time.process_time()
    answers: dict[str, Any] = {request.request_id: response for request, response in model.respond(requests)}
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if failed := [response.error for response in answers.values() if response.error is not None]:
        raise RuntimeError(f"{len(failed)} of {len(requests)} requests failed: {failed[0]}")
    texts = [answers[request.request_id].text[0] for request in requests]
    Path(result_file).write_text(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "answers": texts}), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
