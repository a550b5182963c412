"""A console that prints texts as texts."""

import os
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from eval_dagster.visible_text import visible

_CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
_CI_COMMAND = re.compile(r"(?<=^)(?=[ \t]*::[A-Za-z])|#(?=#(vso|teamcity)?\[)", re.MULTILINE)
"""How lines of a log begin, or what they hold, that a CI system obeys: `::error::`, `##vso[...]`."""


class PlainConsole(Console):
    """A console for texts that others wrote: control characters are shown, not obeyed, and nothing is read as markup or as an emoji.

    What is bold or coloured is a `Text`, or printed with a `style`.
    """

    def __init__(self, **settings: Any) -> None:
        """Open a console with the settings of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make a text of a string, as wide as it is shown."""
        return super().render_str(_obeyed_by_none(visible(text)), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make segments; only those that rich itself moves the cursor with hold control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _obeyed_by_none(text: str) -> str:
    """A text that, where a CI system reads the output, is no command to it."""
    if not any(map(os.environ.get, _CI_VARIABLES)):
        return text
    return _CI_COMMAND.sub(lambda found: r"\x23" if found[0] else "|", text)
