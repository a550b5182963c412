"""A console that prints texts and never obeys them."""

import os
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from eval_dagster.texts.visible_text import visible

_CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
_CI_COMMAND = re.compile(r"(?<=^)(?=[ \t]*::[A-Za-z])|#(?=#(vso|teamcity)?\[)", re.MULTILINE)
"""Commands in log lines that CI systems obey: `::error::`, `##vso[...]`."""


class PlainConsole(Console):
    """A console for texts of any origin: control characters are shown, and nothing is read as markup or as an emoji.

    Bold or coloured text is a `Text`, or printed with a `style`.
    """

    def __init__(self, **settings: Any) -> None:
        """Open a console with the settings of `rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make a text of a string, with its visible width."""
        shown = visible(text)
        if any(map(os.environ.get, _CI_VARIABLES)):
            shown = _CI_COMMAND.sub(lambda found: r"\x23" if found[0] else "|", shown)
        return super().render_str(shown, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make segments. Only rich's own segments, which move the cursor, hold control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
