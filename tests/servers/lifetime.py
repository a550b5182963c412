"""For the programs of this package: how a server says that it is ready, and when it ends."""

import os
import sys
import threading
from pathlib import Path


def announce(address: Path, url: str) -> None:
    """Write the URL to the address file: the server accepts requests from now on."""
    partial = address.with_suffix(".partial")
    partial.write_text(url)
    partial.rename(address)


def end_with_standard_input() -> None:
    """End the process, in whatever it does, when its standard input ends."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
