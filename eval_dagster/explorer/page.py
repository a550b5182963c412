"""The page of a result: one HTML file that shows its samples and needs no network.

The samples are JSON in gzip in base64. What samples share (examples, and the beginning and the end of a prompt) is in the page once.
"""

import base64
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval_dagster.explorer.samples import ResultSamples
from eval_dagster.versions import stable_hash
from eval_dagster.visible_text import visible

_FOLDER = Path(__file__).parent
_LONGEST = (100_000, 20_000, 5_000, 1_000)
"""Most characters of a text, by how much text there is in all."""
_MOST_CHARACTERS = 60_000_000
"""Most characters of a page's texts, so that it stays under the 50 MiB that MLflow shows."""
_TEXTS = ("text", "raw", "reasoning", "tool_calls", "error", "prompt")


def result_page(samples: ResultSamples) -> bytes:
    """The page: HTML in UTF-8 with the samples in it. It works as a file, from a server, and in a frame that allows nothing but scripts."""
    content = _content(samples)
    style, script = _static("explorer.css"), _static("result.js")
    page: str = _template().render(
        title=visible(f"{samples.eval} · {samples.model}: samples"),
        policy=page_policy(),
        stamp=page_stamp(samples.materialized_at),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - as above
        data=base64.b64encode(gzip.compress(content, 5, mtime=0)).decode("ascii"),
    )
    return page.encode("utf-8", errors="replace")


@cache
def page_policy() -> str:
    """The Content-Security-Policy of the page: no request, and no script but its own."""
    digest = base64.b64encode(sha256(_static("result.js").encode()).digest()).decode("ascii")
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def page_stamp(materialized_at: datetime) -> str:
    """The text at the beginning of a page: the time of its materialization, and the version of the code of pages."""
    return f"{materialized_at.astimezone(UTC).isoformat()} {_version()}"


@cache
def _version() -> str:
    """Hash of what pages are made of besides samples."""
    sources = (*_FOLDER.glob("*.py"), *_FOLDER.glob("static/*"), *_FOLDER.glob("templates/*"))
    return stable_hash([path.read_text("utf-8") for path in sorted(sources)])


@cache
def _static(name: str) -> str:
    return (_FOLDER / "static" / name).read_text("utf-8")


@cache
def _template() -> Any:
    environment = Environment(loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("result.html")


def _content(samples: ResultSamples) -> bytes:
    """The samples as JSON."""
    lengths = [len(text) for sample in samples.samples for text in _texts(sample)]
    longest = _longest(lengths)
    n_cut = sum(length > longest for length in lengths)
    shared: dict[str, dict[Any, int]] = {"examples": {}, "heads": {}, "tails": {}}
    rows = [_packed(_shortened(sample, longest) if n_cut else dict(sample), shared) for sample in samples.samples]
    cut = [f"{n_cut:,} texts of more than {longest:,} characters are cut here; the lake has them whole"] if n_cut else []
    against = samples.against
    content = {
        "eval": samples.eval,
        "model": samples.model,
        "materialized_at": samples.materialized_at.astimezone(UTC).isoformat(),
        "run_id": samples.run_id,
        "against": against and {**asdict(against), "materialized_at": against.materialized_at.astimezone(UTC).isoformat()},
        "headline": samples.headline,
        "metrics": samples.metrics,
        "total": samples.total,
        "notes": [*samples.notes, *cut],
        **{name: list(values) for name, values in shared.items()},
        "samples": rows,
    }
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a log-probability of minus infinity, for which JSON has no number
        text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # half of a character becomes an escape of JSON


def _packed(sample: dict[str, Any], shared: Mapping[str, dict[Any, int]]) -> dict[str, Any]:
    """A sample in which numbers stand for what it shares with others."""
    if examples := sample.get("examples"):
        sample["examples"] = _number(shared["examples"], tuple((role, text) for role, text in examples))
    question = sample["turns"][0][1] if sample.get("turns") else ""
    head, found, tail = sample["prompt"].rpartition(question) if question else ("", "", "")
    if found:
        sample["prompt"] = [_number(shared["heads"], head), _number(shared["tails"], tail)]
    return sample


def _number(known: dict[Any, int], value: Any) -> int:
    return known.setdefault(value, len(known))


def _texts(sample: Mapping[str, Any]) -> Iterator[str]:
    yield sample["prompt"]
    for _, text in sample.get("turns", ()):
        yield text
    for side in ("now", "before"):
        for name in _TEXTS:
            yield from _leaves(sample.get(side, {}).get(name))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)


def _longest(lengths: Sequence[int]) -> int:
    """Most characters of a text, by the lengths of all texts, so that the page does not become too large."""
    return next((most for most in _LONGEST if sum(min(length, most) for length in lengths) <= _MOST_CHARACTERS), _LONGEST[-1])


def _shortened(value: Any, longest: int) -> Any:
    """A copy of a value with its long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… [{len(value):,} characters]"
    if isinstance(value, Mapping):
        return {name: _shortened(item, longest) for name, item in value.items()}
    return [_shortened(item, longest) for item in value] if isinstance(value, list | tuple) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
