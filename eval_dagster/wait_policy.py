"""Limits how long threads of torch's OpenMP spin while they wait for each other.

By default they spin for seconds. Beside other busy processes, the thread that the others wait for then gets no core, and a step of a
network takes several times longer than necessary. A process that runs alone is as fast with short spinning as with long.

The OpenMP library reads its environment once, when torch is imported. So the package sets it on its own import, which comes first in every
process that loads a model through it. If the user chose a way to wait, the package sets nothing.
"""

import os
import sys

_SPINS = "1000"
"""Rounds of spinning, some microseconds in all. None (`OMP_WAIT_POLICY=PASSIVE`) cost up to a fifth of the speed on two idle cores."""

_is_chosen = any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
if not _is_chosen:
    os.environ["GOMP_SPINCOUNT"] = _SPINS

IS_SPINNING_LIMITED = _is_chosen or "torch" not in sys.modules
"""Whether torch's OpenMP threads wait as the user or the package chose: false if torch was imported before the package chose."""
