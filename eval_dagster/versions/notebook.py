"""The code of a notebook as the source of a module: what its cells define, without what they do."""

import ast
import sys
from collections.abc import Iterator, Sequence

_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def is_notebook() -> bool:
    """Whether this process runs a notebook, or another session of IPython: its code lies in cells instead of a file."""
    main = sys.modules.get("__main__")
    return main is not None and getattr(main, "__file__", None) is None and isinstance(vars(main).get("In"), list)


def notebook_source() -> str:
    """The imports, functions and classes of all cells that ran, and the assignments to names that these functions and classes use.

    Each definition stands once, as it was executed last. To run a cell once more changes nothing, nor does a cell that only calls.
    """
    return source_of_cells([str(cell) for cell in vars(sys.modules["__main__"])["In"]])


def source_of_cells(cells: Sequence[str]) -> str:
    """The source of a module that these cells make, in the order in which they ran; cells that are not Python are left out."""
    statements = [statement for cell in cells for statement in _statements(cell)]
    kept = {index for index, statement in enumerate(statements) if isinstance(statement, _KEPT)}
    used = {name for index in kept for name in _names_used(statements[index])}
    while True:
        more = {
            index
            for index, statement in enumerate(statements)
            if index not in kept and isinstance(statement, _ASSIGNMENTS) and used & set(_names_given(statement))
        }
        if not more:
            break
        kept |= more
        used |= {name for index in more for name in _names_used(statements[index])}
    last = {ast.unparse(statements[index]): index for index in sorted(kept)}
    defined = {name: index for index in sorted(last.values()) for name in _defined(statements[index])}
    current = (index for index in sorted(last.values()) if all(defined[name] == index for name in _defined(statements[index])))
    return "\n".join(ast.unparse(statements[index]) for index in current)


def _statements(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except SyntaxError:
        return []


def _names_used(statement: ast.stmt) -> Iterator[str]:
    return (node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _names_given(statement: ast.stmt) -> Iterator[str]:
    return (node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _defined(statement: ast.stmt) -> list[str]:
    """The name of a function or class; none of another statement, all of which count."""
    return [statement.name] if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
