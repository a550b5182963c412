"""A page as a reader has it: its text, its tags, and what it would load."""

import re
from html.parser import HTMLParser

_VOID = frozenset(("meta", "br", "link", "img", "input", "hr"))
_LOADED_BY = ("src", "href", "srcset", "data", "action", "poster", "xlink:href")


class Page(HTMLParser):
    """Parses as a browser does, and fails where an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, f"{tag} is closed at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        path = tuple(f"{tag}#{attrs.get('id') or ''}" for tag, attrs in self._open)
        self._texts.append((path, data))

    def text(self, within: str = "body#") -> str:
        """What can be read in an element, as `tag#id`, with single spaces."""
        found = [data for path, data in self._texts if within in path and not path[-1].startswith(("style", "script"))]
        return " ".join(" ".join(found).split())

    @property
    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]

    @property
    def targets(self) -> set[str]:
        """All that the page refers to or loads."""
        by_attribute = {str(attrs[name]) for _, attrs in self.tags for name in _LOADED_BY if attrs.get(name)}
        styles = [data for path, data in self._texts if path and path[-1].startswith("style")]
        styles += [str(value) for _, attrs in self.tags for value in attrs.values() if value]
        in_styles = {found for text in styles for pair in re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", text) for found in pair if found}
        return by_attribute | in_styles
