"""sympy's parser of LaTeX, which asks for antlr 4.11. Its tables have the format of 4.10 and later, which 4.13 reads."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from eval_dagster.metrics.extras import extra_module


def accept_antlr(metric_name: str, *, reads_latex: bool) -> None:
    """Let the parser use the installed antlr, if a file has imported the parser. Without this, files that catch every error give 0.

    Raises:
        RequirementError: antlr is not installed, and the metric reads LaTeX.
    """
    if "sympy.parsing.latex" not in sys.modules or not (reads_latex or find_spec("antlr4")):
        return
    extra_module("antlr4", metric_name)
    grammar: Any = import_module("sympy.parsing.latex._parse_latex_antlr")
    if grammar.version("antlr4-python3-runtime").startswith("4.11"):
        return
    grammar.version = lambda _: "4.11"
    for each in (grammar.LaTeXLexer, grammar.LaTeXParser):
        each.checkVersion = lambda *_: None  # it prints both versions for each text
