"""Serves a GGUF file by llama.cpp: `python -m servers.llama_cpp_program <address file> <GGUF file> <model name> <settings as JSON>`.

Settings are `slots`, `threads`, `batch` (tokens) and `is_exact`. With weights and cache in float32 and without flash attention, its
log-probabilities agree with those of transformers in float32.
"""

import json
import sys
import threading
from pathlib import Path

import xllamacpp

from servers.lifetime import announce, end_with_standard_input

SLOTS = 4
CONTEXT = 2048
"""Tokens a slot."""


def main() -> None:
    end_with_standard_input()
    address, file, name, given = sys.argv[1:]
    chosen = {"slots": SLOTS, "threads": 1, "batch": 0, "is_exact": True, **json.loads(given)}
    settings = xllamacpp.CommonParams()
    settings.model.path = file
    settings.model_alias = {name}
    settings.hostnames, settings.port = ["127.0.0.1"], 0
    settings.n_parallel, settings.n_ctx = chosen["slots"], CONTEXT * chosen["slots"]
    if chosen["batch"]:
        settings.n_batch = settings.n_ubatch = chosen["batch"]
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = chosen["threads"]
    if chosen["is_exact"]:
        settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)
    announce(Path(address), server.listening_address)
    threading.Event().wait()


if __name__ == "__main__":
    main()
