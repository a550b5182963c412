"""Inside the sandbox: becomes a process that answers many times, without privileges. It uses the standard library only.

Its argument is the request as JSON: limits, user, command and environment.
"""

import json
import os
import sys

from eval_dagster.sandbox.launcher import become_nobody, require_no_network


def main() -> None:
    """Give up every privilege, and become the command of the request."""
    request = json.loads(sys.argv[1])
    require_no_network()
    become_nobody(request)
    os.execve(request["command"][0], request["command"], request["environment"])  # noqa: S606


if __name__ == "__main__":
    main()
