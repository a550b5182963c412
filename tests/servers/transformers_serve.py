"""`transformers serve` as a server of the demo model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval_dagster.models.transformers.weights.checkpoint import Digests
from eval_dagster.models.transformers.weights.gguf import GGUFCheckpoint
from servers.processes import RunningServer, running_server


@contextmanager
def transformers_serve(source: Path, kept: Path, folder: Path) -> Iterator[RunningServer]:
    """Serve a GGUF file's weights in float32.

    The server's name for the model is the path of a folder: it serves no other name than what it loads.

    Args:
        source: The GGUF file.
        kept: Where the checkpoint that is made of it is kept, for later sessions too.
        folder: Of the log and of an empty cache of the Hub.
    """
    checkpoint = GGUFCheckpoint("demo", lambda: source, kept, Digests(kept / "models" / "digests.json")).folder()
    (folder / "hub").mkdir(exist_ok=True)
    variables = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with running_server(
        "transformers_serve_program", str(checkpoint), model=str(checkpoint), folder=folder, variables=variables, ready_s=300
    ) as server:
        yield server
