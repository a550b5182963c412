"""`eval-dagster` with a network one of whose passes takes seconds, in one operation that nothing interrupts.

`PASSES_LOG` names a file that gets a line as each pass of the work begins, and `LONG_PASS` the number of the one that is long.
"""

import inspect
import os
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from eval_dagster.cli.main import main
from eval_dagster.models.transformers.model import LoadedModel

_LOG, _LONG = Path(os.environ["PASSES_LOG"]), int(os.environ["LONG_PASS"])
_SIZE = 5000
_forward, _respond = LlamaForCausalLM.forward, LoadedModel.respond
_passes = 0


def _slowed(*arguments: Any, **named: Any) -> Any:
    global _passes
    _passes += 1
    with _LOG.open("a") as log:
        log.write(f"pass {_passes}\n")
    if _passes == _LONG:
        torch.mm(torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, 4 * _SIZE))
        with _LOG.open("a") as log:
            log.write("the long operation is over\n")
    return _forward(*arguments, **named)


def _work(self: LoadedModel, requests: Any) -> Any:
    """Slow passes down from now on: what the loaded model checks itself by is over."""
    LlamaForCausalLM.forward = _slowed
    return _respond(self, requests)


_slowed.__signature__ = inspect.signature(_forward)  # type: ignore[attr-defined]
LoadedModel.respond = _work  # type: ignore[method-assign]
main()
