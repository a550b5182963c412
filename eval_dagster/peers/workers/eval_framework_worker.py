"""eval-framework's benchmarks: descriptions, prompts and metric values, made by eval-framework. It runs in the environment that has it.

It finds out which form the installed release has: the contract of 0.11 and later, or the task classes before.
"""

from importlib.util import find_spec

if find_spec("eval_framework.contract") is not None:
    import eval_framework_programs

    eval_framework_programs.install()
    from eval_framework_contract import aggregate as aggregate
    from eval_framework_contract import describe, names, render, rows, score

    eval_framework_programs.install_late()
else:
    from eval_framework_tasks import describe, names, render, rows, score

__all__ = ["describe", "names", "render", "rows", "score"]
