"""Templates of the pages, and the addresses that they link to. All values are escaped, with visible control characters."""

from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval_dagster.lake.tables.columns import MetricFigures
from eval_dagster.pages.server.results import Result
from eval_dagster.texts.figures import counted, interval, number, p_value
from eval_dagster.texts.visible_text import one_line, visible

FOLDER = Path(__file__).parent
REPORT_TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
REPORT_STYLE = REPORT_TEMPLATES / "style.css"
FOOTER: ContextVar[str | None] = ContextVar("FOOTER", default=None)
"""What the footer of a page says about the results, in the context of its request."""
_MOST_CHARACTERS = 200_000
"""Most characters of a text that a page shows."""


def page(template: str, **parts: Any) -> str:
    """A page of a template."""
    return _environment().get_template(template).render(footer=FOOTER.get(), **parts)


def link(path: str, **query: Any) -> str:
    """An address within the pages. Parameters that are null or empty are left out; times are written as `time_text` does."""
    kept = {
        name: time_text(value) if isinstance(value, datetime) else str(value) for name, value in query.items() if value not in (None, "")
    }
    return path + (f"?{urlencode(kept, quote_via=quote)}" if kept else "")


def result_link(result: Result) -> str:
    """The address of the whole page of a result."""
    return "/results/" + "/".join(quote(each, safe="") for each in (result.eval, result.model, time_text(result.materialized_at)))


def time_text(time: datetime) -> str:
    """A time in UTC, with microseconds: it names a materialization."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@cache
def _environment() -> Environment:
    def interval_of(row: MetricFigures, sign: str = "") -> str:
        return interval(row["ci_low"], row["ci_high"], sign)

    def short(text: str | None, most: int = 160) -> str:
        """The beginning of a text on one line."""
        return "" if text is None else one_line(text if len(text) <= most else f"{text[:most]}…")

    def end(text: str | None, most: int = 200) -> str:
        """The end of a prompt on one line, since the question is there."""
        return "" if text is None else one_line(text if len(text) <= most else f"…{text[-most:]}")

    environment = Environment(
        loader=FileSystemLoader([FOLDER / "templates", REPORT_TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "number": number,
        "p_value": p_value,
        "minute": lambda time: "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M}",
        "age": _age,
        "interval": interval_of,
        "short": short,
        "end": end,
        "line": one_line,
        "count": lambda value: "" if value is None else f"{value:,}",
    }
    environment.globals |= {"link": link, "result_link": result_link}
    return environment


def _shown(value: Any) -> Any:
    """A value as a template shows it: a text with visible control characters, null as nothing."""
    if value is None:
        return ""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = visible(value)
    left_out = len(text) - _MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:_MOST_CHARACTERS]}… ({left_out:,} more characters)"


def _age(time: datetime) -> str:
    """How long ago a time is, in its largest unit."""
    seconds = max(0.0, (datetime.now(UTC) - time).total_seconds())
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length or (unit == "minute" and seconds >= length):
            count = int(seconds // length)
            return counted(count, unit)
    return "less than a minute"
