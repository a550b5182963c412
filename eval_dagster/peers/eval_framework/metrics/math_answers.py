r"""Finds the final answers of a solution in LaTeX and normalises them (Lewkowycz et al. 2022, arXiv:2206.14858, appendix D)."""

import re
from collections.abc import Callable, Mapping

INVALID_ANSWER = "[invalidanswer]"
"""Replaces a missing answer."""
END_SEQ = "I hope it is correct."
END_SEQ_DE = "Ich hoffe, die Antwort ist korrekt."

SUBSTITUTIONS = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
]
"""Texts and their replacements, in this order; from the paper."""
UNITS = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "ft",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
]
FORMATS = [
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    r"\mathrm{th}",
    r"^\circ",
    r"^{\circ}",
    r"\;",
    r",\!",
    "{,}",
    '"',
    "\\dots",
]
REMOVED_EXPRESSIONS = [*UNITS, *FORMATS]
"""Texts to remove after that; from the paper."""

_RELAXED = re.compile(r"(?is)(?:the\s+)?final\s+answer\s*:\s*the\s+(?:final\s+)?answer\s+is\s*(.*)")
_RELAXED_END = re.compile(r"(?i)\.?\s*i\s+hope\s+it\s+is\s+correct\.?\s*$")
_RELAXED_DE = re.compile(
    r"(?is)(?:finale|endgültige)\s+antwort\s*:\s*(?:die\s+(?:finale\s+|endgültige\s+)?antwort\s+(?:ist|lautet)\s*)?(.*)"
)
_RELAXED_END_DE = re.compile(r"(?i)\.?\s*ich\s+hoffe,?\s+(?:die\s+antwort|sie|es)\s+(?:ist|sei)\s+korrekt\.?\s*$")
_STRICT = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")
_STRICT_DE = re.compile(r"Finale Antwort: Die finale Antwort lautet(.*?)\. Ich hoffe, die Antwort ist korrekt\.")
_LATEX = (
    (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
    (r"(\\text\{)(.*?)(\})", r"\2"),
    (r"(\\textbf\{)(.*?)(\})", r"\2"),
    (r"(\\overline\{)(.*?)(\})", r"\2"),
    (r"(\\boxed\{)(.*)(\})", r"\2"),
    (r"(frac)([^{])(.)", r"frac{\2}{\3}"),
    (r"(sqrt)([^{])", r"sqrt{\2}"),
)


def last_boxed_only_string(string: str) -> str | None:
    r"""The last `\boxed{...}` of a text, else the last `\fbox{...}`; None without one."""
    if "\\boxed " in string:
        return "\\boxed " + string.rpartition("\\boxed ")[2].partition("$")[0]
    start = max(string.rfind("\\boxed"), -1)
    start = start if start >= 0 else string.rfind("\\fbox")
    depth = 0
    for place in range(start, len(string)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(string[place], 0)
        if string[place] == "}" and depth == 0:
            return string[start : place + 1]
    return None


def remove_boxed(s: str) -> str:
    r"""The content of `\boxed`.

    Raises:
        AssertionError: The text has another form.
    """
    if "\\boxed " in s:
        assert s.startswith("\\boxed ")
        return s.removeprefix("\\boxed ")
    assert s.startswith("\\boxed{")
    assert s.endswith("}")
    return s.removeprefix("\\boxed{")[:-1]


def get_unnormalized_answer(text: str, relaxed: bool = False) -> str:
    """The answer of a text that ends as Minerva's examples do; `relaxed` accepts other forms of that sentence."""
    return _answer(text, (_RELAXED, _RELAXED_END) if relaxed else (_STRICT, END_SEQ))


def get_unnormalized_answer_de(text: str, relaxed: bool = False) -> str:
    """The same in German."""
    return _answer(text, (_RELAXED_DE, _RELAXED_END_DE) if relaxed else (_STRICT_DE, END_SEQ_DE))


def _answer(text: str, form: tuple[re.Pattern[str], re.Pattern[str] | str]) -> str:
    pattern, end = form
    found = pattern.search(text + end if isinstance(end, str) else text)
    if found is None:
        return INVALID_ANSWER
    answer = found[1].strip()
    return answer if isinstance(end, str) else end.sub("", answer).strip()


COT_EXTRACTORS: Mapping[str, Callable[..., str]] = {"minerva": get_unnormalized_answer, "minerva_de": get_unnormalized_answer_de}
"""By the style of the examples."""


def normalized_gold_from_solution(solution: str) -> str | None:
    """The normalised answer that a solution boxes; None without one."""
    boxed = last_boxed_only_string(solution)
    try:
        return None if boxed is None else normalize_final_answer(remove_boxed(boxed))
    except AssertionError:
        return None


def normalize_final_answer(final_answer: str) -> str:
    """The answer without the part before an equals sign, without units and formats."""
    text = final_answer.rpartition("=")[2]
    for before, after in SUBSTITUTIONS:
        text = text.replace(before, after)
    for expression in REMOVED_EXPRESSIONS:
        text = text.replace(expression, "")
    text = _normalize_latex_core(text)
    digits = text.replace(",", "")
    return digits if digits.isdigit() else text


def _normalize_latex_core(s: str) -> str:
    for pattern, by in _LATEX:
        s = re.sub(pattern, by, s)
    return s.replace("$", "")


def extract_answers(raw_answer: str, use_cot: bool = True, cot_style: str = "minerva", relaxed: bool = False) -> list[str]:
    """The normalised answers that a text may mean, the most probable first.

    Args:
        raw_answer: The text.
        use_cot: Whether it ends with a sentence that names the answer.
        cot_style: Which sentence: a key of `COT_EXTRACTORS`.
        relaxed: Whether other forms of the sentence count.

    Raises:
        ValueError: The style is not known.
    """
    text = str(raw_answer)
    dollars = [found.start() for found in re.finditer(r"\$", text)]
    if not use_cot:
        parts = [text, *([text[dollars[0] + 1 : dollars[1]]] if len(dollars) > 1 else [])]
        return [normalize_final_answer(part) for part in parts]
    if cot_style not in COT_EXTRACTORS:
        raise ValueError(f"the style is {cot_style!r}; expected one of {', '.join(COT_EXTRACTORS)}")
    named = normalize_final_answer(COT_EXTRACTORS[cot_style](text, relaxed=relaxed))
    boxed = normalized_gold_from_solution(text)
    found = [*([named] if named and named != INVALID_ANSWER else []), *([] if boxed is None else [boxed])]
    if found:
        return found
    return [normalize_final_answer(text[dollars[-2] + 1 : dollars[-1]] if len(dollars) > 1 else text)]
