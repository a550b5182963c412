"""A machine's process that writes to a shared lake: `shared_writes_program.py <home> <name> <count> <seconds that its clock is ahead>`.

Each result that it wrote is a line of its output.
"""

import sys
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from shared_writes import write_results

from eval_dagster.lake import files


def main() -> None:
    home, name, count, ahead = sys.argv[1:]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=float(ahead))

    files.datetime = Clock  # type: ignore[misc]
    for run in write_results(files.Lake(Path(home)), name, int(count)):
        sys.stdout.write(f"{run}\n")


if __name__ == "__main__":
    main()
