"""The side of lm-eval, in its own environment: `python lm_eval_served_side.py WORK.json RESULT.json FOLDER 1,4,8`.

Sends the prompts of a work to a server by its model class `local-completions`, with each of these numbers of requests at once.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


def main(work_file: str, result_file: str, _folder: str, concurrencies: str) -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    found = {concurrency: _measured(work, int(concurrency)) for concurrency in concurrencies.split(",")}
    Path(result_file).write_text(json.dumps(found), "utf-8")


def _measured(work: dict[str, Any], concurrency: int) -> dict[str, Any]:
    model = LocalCompletionsAPI(
        model=work["model"],
        base_url=f"{work['base_url']}/completions",
        tokenizer_backend="None",
        tokenized_requests=False,
        num_concurrent=concurrency,
    )
    settings = {"until": [], "max_gen_toks": work["max_tokens"], "do_sample": False, "temperature": 0.0, **work["body"]}
    asked = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(settings)), idx=number)
        for number, prompt in enumerate(work["prompts"])
    ]
    started = time.perf_counter()
    texts = model.generate_until(asked, disable_tqdm=True)
    return {"seconds": time.perf_counter() - started, "answers": texts}


if __name__ == "__main__":
    main(*sys.argv[1:])
