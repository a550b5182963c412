"""Limits how long threads of torch's OpenMP spin while they wait for each other.

By default they spin for seconds. Beside other busy processes, the thread that the others wait for then gets no core, and a step of a
network takes several times longer than necessary. A process that runs alone is as fast with short spinning as with long.

The OpenMP library reads its environment once, when torch is imported. So the package sets it on its own import, which comes first in every
process that loads a model through it.
"""

import os
import sys

_SPINS = "1000"
"""Rounds of spinning, some microseconds in all. Without any (`OMP_WAIT_POLICY=PASSIVE`), two idle cores lost up to a fifth of the speed."""

_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def limit_spinning() -> bool:
    """Make OpenMP threads wait without long spinning, in this process and its children, unless the user chose a way to wait.

    Returns:
        Whether the setting is in time: false if torch was imported before and read another one.
    """
    if any(name in os.environ for name in _VARIABLES):
        return True
    os.environ["GOMP_SPINCOUNT"] = _SPINS
    return "torch" not in sys.modules


IS_SPINNING_LIMITED = limit_spinning()
"""Whether torch's OpenMP threads wait without long spinning in this process: false if torch was imported before this package."""
