r"""Compares answers in LaTeX: as texts (Hendrycks et al. 2021, arXiv:2103.03874), or by computer algebra."""

import re

from eval_dagster.peers.eval_framework.metrics.latex import ask_algebra

_REMOVED = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)


def is_equiv_minerva(x1: str, x2: str, timeout_seconds: int = 5) -> bool:
    """Whether the difference of two expressions is 0. False if one cannot be read, or if it takes longer."""
    return bool(ask_algebra({"difference": [x1, x2], "seconds": timeout_seconds}))


def is_equiv_hendrycks(str1: str | None, str2: str | None) -> bool:
    """Whether two answers are the same text after `strip_string_hendrycks`."""
    if str1 is None or str2 is None:
        return str1 is str2
    try:
        return strip_string_hendrycks(str1) == strip_string_hendrycks(str2)
    except Exception:  # the rules do not know this form
        return str1 == str2


def strip_string_hendrycks(string: str) -> str:
    """The answer without spaces, units, formats and the part before an equals sign, with fractions in one form."""
    for before, after in _REMOVED:
        string = string.replace(before, after)
    string = _without_units(string)
    for before, after in (("\\%", ""), (" .", " 0."), ("{.", "{0.")):
        string = string.replace(before, after)
    if not string:
        return string
    string = _right_side(f"0{string}" if string[0] == "." else string)
    string = _fractions(_roots(string).replace(" ", ""))
    string = _written_fraction("\\frac{1}{2}" if string == "0.5" else string)
    return re.sub(r"\b0(?=\d)", "", string)


def _right_side(string: str) -> str:
    parts = [part.strip() for part in string.split("=")]
    if len(parts) == 2:
        return parts[1] if len(parts[0]) <= 2 else string
    if len(parts) > 2 and all(len(part) <= 2 and re.match(r"^[a-zA-Z]\w*$", part) for part in parts[:-1]):
        return parts[-1]
    return string


def _without_units(string: str) -> str:
    r"""The text before the first `\text{...}`, else the text after it, else its content."""
    mark = r"\text{"
    if mark not in string:
        return string
    before, _, rest = string.partition(mark)
    if string.count(mark) > 1:
        return before
    depth = 1
    for place, letter in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "}" and depth == 0:
            return before.strip() or rest[place + 1 :].strip() or rest[:place].strip()
    return before.strip() or rest.strip()


def _roots(string: str) -> str:
    first, *parts = string.split("\\sqrt")
    found = first
    for part in parts:
        opened = f"{part[0]}}}" if part and part[0] != "{" else ""
        found += f"\\sqrt{{{opened}{part[1:]}"
    return found


def _fractions(string: str) -> str:
    first, *parts = string.split("\\frac")
    found = first
    for part in parts:
        found += "\\frac"
        if not part or part[0] == "{":
            found += part
            continue
        if len(part) < 2:
            return string
        closed = f"{part[1]}}}" if part[1] != "{" else ""
        found += f"{{{part[0]}}}{{{closed}{part[2:]}"
    return found


def _written_fraction(string: str) -> str:
    found = re.fullmatch(r"(-?(?:0|[1-9]\d*))/(-?(?:0|[1-9]\d*))", string)
    if not found or "-0" in found.groups():
        return string
    return f"\\frac{{{found[1]}}}{{{found[2]}}}"
