"""Conversations with a scripted user: `python turns_side.py WORK.json RESULT.json FOLDER kept|read`.

All conversations ask at once, turn by turn. `kept` keeps keys and values between turns, `read` reads each prompt from its start.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

from eval_dagster.config.models import TransformersModel
from eval_dagster.models.registry import open_model
from eval_dagster.records import GenerationSettings, Message, Request, Role

# isort: split
import meter  # imports torch, before which the package chooses how its threads wait
from token_tree import count_nodes
from transformers import AutoTokenizer

_WORDS = ("what", "how", "many", "small", "green", "river", "bread", "market", "window", "letter", "train", "seven", "water", "bridge")


def main(work_file: str, result_file: str, folder: str, how: str) -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    draw = Random(work["seed"])
    system = Message(role=Role.SYSTEM, content=_text(tokenizer, draw, work["system_tokens"]))
    settings = GenerationSettings(max_tokens=work["answer_tokens"])
    sequences: list[list[int]] = []
    turn_nodes: list[int] = []
    with tempfile.TemporaryDirectory() as home:
        section = TransformersModel.model_validate({"backend": "transformers", "source": {"folder": folder}, "device": "auto"})
        handle = open_model("benchmark", section, folder=Path(home), home=Path(home))
        model = handle.load()

        def warm_up() -> None:
            list(model.respond([Request(request_id="text", prompt="Once upon a", generation=GenerationSettings(max_tokens=2))]))

        def converse() -> list[str]:
            histories, texts = [[system] for _ in range(work["conversations"])], list[str]()
            for turn in range(work["turns"]):
                for messages in histories:
                    messages.append(Message(role=Role.USER, content=_text(tokenizer, draw, work["user_tokens"])))
                asked = [
                    Request(request_id=f"{turn}-{place}", prompt=handle.apply_chat_template(messages), generation=settings)
                    for place, messages in enumerate(histories)
                ]
                for request, response in model.respond(asked):
                    if response.error is not None:
                        raise RuntimeError(f"request {request.request_id}: {response.error}")
                    sequences.append([*response.input_tokens, *response.output_tokens[0][:-1]])
                    texts.append(f"{request.request_id}: {response.text[0]}")
                    place = int(request.request_id.split("-")[1])
                    histories[place].append(Message(role=Role.ASSISTANT, content=response.text[0]))
                turn_nodes.append(count_nodes(sequences[-len(asked) :]))
                sys.stderr.write(f"turn {turn + 1}: {model.usage()[1].computed():,} tokens for {count_nodes(sequences):,} nodes\n")
            return sorted(texts)

        with model.conversing() if how == "kept" else nullcontext():
            warm_up()  # the check of what is kept belongs to it
            before = model.usage()[1]
            result = meter.measure(converse, lambda: None)
        usage = model.usage()[1]
    counted = {
        "nodes": count_nodes(sequences),
        "nodes_by_turn": turn_nodes,
        "read": usage.prompt_tokens_computed - before.prompt_tokens_computed,
        "asked": usage.prompt_tokens_asked - before.prompt_tokens_asked,
        "decoded": usage.tokens_decoded - before.tokens_decoded,
        "reason": usage.reason,
    }
    meter.write(result_file, {**result, **counted})


def _text(tokenizer: Any, draw: Random, tokens: int) -> str:
    """Words, of about so many tokens."""
    return str(tokenizer.decode(tokenizer.encode(" ".join(draw.choices(_WORDS, k=tokens)))[:tokens], skip_special_tokens=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
