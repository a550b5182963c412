"""Runs `transformers serve` on a free port: `python -m servers.transformers_serve_program <address file> <folder of the model>`."""

import sys
import time
from pathlib import Path

from transformers.cli.serve import Serve

from servers.lifetime import announce, end_with_standard_input

_POLL_S = 0.05


def main() -> None:
    end_with_standard_input()
    address, model = sys.argv[1:]
    served = Serve(force_model=model, host="127.0.0.1", port=0, device="cpu", dtype="float32", non_blocking=True)
    while not served.server.started:
        time.sleep(_POLL_S)
    port = served.server.servers[0].sockets[0].getsockname()[1]
    announce(Path(address), f"http://127.0.0.1:{port}")


if __name__ == "__main__":
    main()
