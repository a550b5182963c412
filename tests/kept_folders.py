"""A project that the tests of a file share: evaluated once, and for each test as it was then."""

import shutil
from pathlib import Path

from eval_dagster.tracking.store import forget_connections


class KeptFolder:
    """A folder with a home in it. Its runs name its path, so each test has it in the same place.

    Files beside the home that no test changed are left alone. Of the others, contents and times are as before, but the file system's own
    times of changes are not: files of rows look changed.
    """

    def __init__(self, folder: Path) -> None:
        """Keep a folder as it is now."""
        self.folder = folder
        self._kept = folder.with_name(f"{folder.name}-kept")
        shutil.copytree(folder, self._kept, symlinks=True)
        self._beside = self._states()

    def restore(self) -> Path:
        """Put back what a test changed, and return the folder."""
        forget_connections(self.folder / "home" / "mlflow.db")
        shutil.rmtree(self.folder / "home")
        shutil.copytree(self._kept / "home", self.folder / "home", symlinks=True)
        states = self._states()
        for name in states.keys() - self._beside:
            (self.folder / name).unlink()
        for name, state in self._beside.items():
            if states.get(name) != state:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._kept / name, self.folder / name)
        return self.folder

    def is_untouched(self, name: str) -> bool:
        """Whether a file beside the home is the one of the beginning, and not put back."""
        return self._states()[Path(name)] == self._beside[Path(name)]

    def _states(self) -> dict[Path, tuple[int, int]]:
        """The files beside the home: which each is, and when it was changed."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and (self.folder / "home") not in path.parents]
        return {path.relative_to(self.folder): (path.stat().st_ino, path.stat().st_ctime_ns) for path in files}
