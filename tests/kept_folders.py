"""A project that the tests of a file share: evaluated once, and for each test as it was then."""

import shutil
from pathlib import Path

from eval_dagster.tracking.store import forget_connections


class KeptFolder:
    """A folder with a home in it. Its runs name its path, so each test has it in the same place.

    Contents and times of the files are as before, but the file system's own times of changes are not: files of rows look changed.
    """

    def __init__(self, folder: Path) -> None:
        """Keep a folder as it is now."""
        self.folder = folder
        self._kept = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, self._kept, symlinks=True)

    def restore(self) -> Path:
        """Put back what a test changed, and return the folder."""
        forget_connections(self.folder / "home" / "mlflow.db")
        shutil.rmtree(self.folder)
        shutil.copytree(self._kept, self.folder, symlinks=True)
        return self.folder
