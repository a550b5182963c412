"""The texts of a page: how many characters there are, and how they are cut so that the page does not become too large."""

from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = (100_000, 20_000, 5_000, 1_000, 200)
"""Most characters of a text, by how much text there is in all."""
_BYTES_OF_CHARACTER = 0.87
"""Of a character in a page: UTF-8 in gzip in base64. Prose has less than that, and texts of many scripts have more."""
_SHARED = ("examples", "heads", "tails")
"""Lists of a page's content that samples name by numbers."""
_NAMES = frozenset({"sample_id", "sample_name", "subject", "response_type"})
"""Fields of a sample that are never cut."""


def limits(content: Mapping[str, Any], most_bytes: int) -> list[int]:
    """Most characters of a text: limits of which the first keeps a page of prose below a size, and then shorter ones, for other texts.

    Args:
        content: What the page holds, each text once.
        most_bytes: Most bytes of the page.
    """
    lengths = [len(text) for name in (*_SHARED, "samples") for text in _texts(content[name])]
    most = most_bytes / _BYTES_OF_CHARACTER
    fitting = [longest for longest in _LONGEST if sum(min(length, longest) for length in lengths) <= most]
    return fitting or [_LONGEST[-1]]


def shortened(content: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """A copy of a page's content without what is longer. A note has the number of the texts that are cut, and their samples `texts_cut`."""
    is_cut = {name: [_count(value, longest) > 0 for value in content[name]] for name in _SHARED}
    n_cut = sum(_count(content[name], longest) for name in (*_SHARED, "samples"))
    if not n_cut:
        return dict(content)

    def row(sample: Mapping[str, Any]) -> dict[str, Any]:
        used = [("examples", sample["examples"])] if isinstance(sample.get("examples"), int) else []
        used += list(zip(("heads", "tails"), sample["prompt"], strict=True)) if isinstance(sample["prompt"], list) else []
        has_cut = _count(sample, longest) or any(is_cut[name][place] for name, place in used)
        return {**_cut(sample, longest), **({"texts_cut": True} if has_cut else {})}

    note = f"{n_cut:,} texts of more than {longest:,} characters are cut here; the lake has them whole"
    return {
        **content,
        **{name: _cut(content[name], longest) for name in _SHARED},
        "samples": [row(sample) for sample in content["samples"]],
        "notes": [*content["notes"], note],
    }


def _texts(value: Any) -> Iterator[str]:
    """All texts that can be cut."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _NAMES:
                yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _count(value: Any, longest: int) -> int:
    return sum(len(text) > longest for text in _texts(value))


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… [{len(value):,} characters]"
    if isinstance(value, Mapping):
        return {name: item if name in _NAMES else _cut(item, longest) for name, item in value.items()}
    return [_cut(item, longest) for item in value] if isinstance(value, list | tuple) else value
