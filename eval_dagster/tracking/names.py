"""Names and texts as MLflow accepts them. The original names can be read back.

MLflow allows letters, digits, `_`, `-`, `.`, `:`, `/` and spaces in the name of a metric, a param or a tag, in at most 250 characters, and
no name that would be another one as a path. `pass@1` becomes `pass_at_1`; any other character becomes `_x<its code in hex>_`.
"""

import re
from hashlib import sha256

from eval_dagster.texts.visible_text import storable

MOST_CHARACTERS = 250
_ESCAPE = re.compile(r"_(?:at|x([0-9a-f]*))_")
_ALLOWED = re.compile(r"[\w.\- /]")
_EMPTY = "_x_"
_DIGEST_CHARACTERS = 16


def tracked_name(name: str) -> str:
    """The name of a metric, a param or a tag in MLflow. Different names stay different.

    `original_name` returns the original name, unless it is longer than `MOST_CHARACTERS`. Then a digest replaces its end.
    """
    encoded = _encoded(name[: MOST_CHARACTERS + 1])
    if len(encoded) <= MOST_CHARACTERS:
        return encoded
    end = f"_cut_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:_DIGEST_CHARACTERS]}"
    return encoded[: MOST_CHARACTERS - len(end)].rstrip("/. ") + end


def original_name(encoded: str) -> str:
    """The name that `tracked_name` was given."""
    return _ESCAPE.sub(lambda match: "@" if match[1] is None else chr(int(match[1], 16)) if match[1] else "", encoded)


def tracked_text(text: str) -> str:
    r"""A text as every database of MLflow accepts it: half characters and NUL become `\ud800` and `\x00`."""
    return storable(text).replace("\0", r"\x00")


def _encoded(name: str) -> str:
    if not name:
        return _EMPTY
    encoded = ""
    # From the end, since an underscore is escaped if the text after it would make it the beginning of an escape.
    for index in range(len(name) - 1, -1, -1):
        character = name[index]
        if character == "@":
            encoded = f"_at_{encoded}"
        elif _is_plain(name, index) and not (character == "_" and _ESCAPE.match(f"_{encoded}")):
            encoded = character + encoded
        else:
            encoded = f"_x{ord(character):x}_{encoded}"
    return encoded


def _is_plain(name: str, index: int) -> bool:
    """Whether MLflow accepts a character at its place: a part of a path may not be empty, and may not consist of one or two dots."""
    character = name[index]
    if character == "/":
        return 0 < index < len(name) - 1 and name[index - 1] != "/"
    if character == ".":
        part = name[:index].rpartition("/")[2] + "." + name[index + 1 :].partition("/")[0]
        return part not in (".", "..")
    return _ALLOWED.fullmatch(character) is not None
