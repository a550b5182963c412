"""A reporter for tests that read what a person would have read."""

from eval_dagster.progress.reporting import CombinedReporter


class KeptNotes(CombinedReporter):
    """Keeps the lines that it is told, and shows no progress."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)
