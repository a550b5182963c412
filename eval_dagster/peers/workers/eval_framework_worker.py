"""eval-framework's benchmarks: descriptions, prompts and metric values, made by eval-framework. It runs in the environment that has it.

It finds out which form the installed release has: the contract of 0.11 and later, or the task classes before.
"""

from importlib import import_module
from importlib.util import find_spec

import eval_framework_programs

if find_spec("langdetect") is not None:  # it draws, so that the values of IFEval would change from run to run
    import_module("langdetect").DetectorFactory.seed = 0
eval_framework_programs.install()
if find_spec("eval_framework.contract") is not None:
    from eval_framework_contract import aggregate as aggregate
    from eval_framework_contract import describe, names, render, rows, score
else:
    from eval_framework_tasks import describe, names, render, rows, score
eval_framework_programs.install_late()

__all__ = ["describe", "names", "render", "rows", "score"]
