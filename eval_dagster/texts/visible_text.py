"""Writes texts of models, datasets, files and servers so that each reader shows them as text and obeys nothing in them.

Each function is for one kind of reader. Control characters, invisible characters and characters that reorder a line become escapes of
Python: `\\x1b`, `\\u202e`, `\\U000e0041`. The escapes cannot be distinguished from the same letters in the original text. So the lake and
the data formats hold the original texts.
"""

import html
import json
import math
import re
import unicodedata
from typing import Any

_SHOWN = frozenset("\n\t\u200c\u200d")
"""Line break and tab; the two joiners, without which emoji and several scripts cannot be written."""
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters by their category that are drawn as nothing."""
_SELECTORS = range(0xE0100, 0xE01F0)
"""Variation selectors that can carry a hidden text."""
_EMOJI = range(0x1F000, 0x1FC00)
_IDEOGRAPHS = range(0x20000, 0x3FFFE)
"""Blocks to which Unicode adds characters that a Python of today calls unassigned."""
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories: controls, formats such as bidirectional marks, lone surrogates, private and unassigned characters, separators."""
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_FORMULA = re.compile(r"\s*[=+\-@|%\t\r\n＝＋－＠]")
"""The beginning of a cell that spreadsheets compute, also after a tab or a line break."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]|~#$])")
_MENTION = re.compile(r"(?<![^\W_])@(?=\w)")
_CHAT_MENTION = re.compile(r"@(?=[^\s\d])|(?<![^\W_])@(?=\d)")
"""Chats find mentions within words, too (`Error@everyone`) and between marks (`_@everyone_`, `@**all**`). `pass@1` is none."""
_CHAT_TAG = re.compile(r"<(?=[!@#]|\w+:|at\b|users/)", re.IGNORECASE)


class _Escapes(dict[int, str]):
    """The replacement of each character, by its code. Visible characters are cached."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if not _is_hidden(character):
            self[code] = character
            return character
        return escaped(character)


_ESCAPES = _Escapes()


def visible(text: str) -> str:
    """A text for people, without control characters other than line breaks and tabs, bidirectional marks and invisible characters."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """A text for people on one line, with a sign for each line break."""
    return visible(text.replace("\r\n", "\n").replace("\n", "⏎").replace("\t", " "))


def storable(text: str) -> str:
    """A text that UTF-8 can hold: a lone surrogate, which is half of a character, becomes `\\ud83d`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_storable(text: str) -> bool:
    """Whether UTF-8 can hold a text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON in which hidden characters are escapes of JSON.

    Values of other types become text. NaN and infinity become null.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, indent=indent, allow_nan=False)
    except (ValueError, TypeError):
        text = json.dumps(_json_like(value), ensure_ascii=False, default=str, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(character if character == "\n" or not _is_hidden(character) else json.dumps(character)[1:-1] for character in text)


def markdown_text(text: str) -> str:
    """A text for one line or cell of GitHub-flavoured Markdown, without any effect as markup, HTML, link or mention."""
    flat = html.escape(" ".join(visible(text).split()), quote=False)
    flat = _MARKDOWN.sub(r"\\\1", flat)
    flat = re.sub(r":(?=//)|(?<=\bwww)\.", r"\\\g<0>", flat, flags=re.IGNORECASE)
    # A backslash does not prevent a mention, because GitHub finds mentions in the finished text.
    return _MENTION.sub("@<!-- -->", flat).replace("@", r"\@")


def message_text(text: str) -> str:
    """A text for mail and chats that can neither mention people (`@channel`, `<!here>`) nor hide an address behind words."""
    return _CHAT_MENTION.sub("@ ", _CHAT_TAG.sub("‹", visible(text)).replace("](", "] ("))


def starts_formula(text: str) -> bool:
    """Whether a spreadsheet would compute a cell with this text. A number with a sign is not a formula."""
    return bool(_FORMULA.match(text)) and not _NUMBER.fullmatch(text.strip())


def spreadsheet_text(text: str) -> str:
    """A text for a cell of a spreadsheet: visible, and with an apostrophe before a formula."""
    shown = visible(text)
    return f"'{shown}" if starts_formula(text) else shown


def escaped(character: str) -> str:
    """A character as Python's escape of it."""
    code = ord(character)
    short = {0x09: r"\t", 0x0A: r"\n", 0x0D: r"\r"}.get(code)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _json_like(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _json_like(item) for key, item in value.items()}
    return [_json_like(item) for item in value] if isinstance(value, list | tuple) else value


def _is_hidden(character: str) -> bool:
    if character in _SHOWN or ord(character) in _EMOJI or ord(character) in _IDEOGRAPHS:
        return False
    return unicodedata.category(character) in _HIDDEN or character in _BLANK_LETTERS or ord(character) in _SELECTORS
