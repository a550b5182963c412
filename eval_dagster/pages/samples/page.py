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
from typing import Any, Literal, TypedDict

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval_dagster.results.samples import ResultSample, ResultSamples, SampleMetric
from eval_dagster.texts.visible_text import visible
from eval_dagster.versions.hashes import stable_hash

_LONGEST = (100_000, 20_000, 5_000, 1_000, 200)
"""Most characters of a text, by how much text there is in all."""
_BYTES_OF_CHARACTER = 0.87
"""Of a character in a page: UTF-8 in gzip in base64. Prose has less than that, and texts of many scripts have more."""
_Shared = Literal["examples", "heads", "tails"]
_SHARED: tuple[_Shared, ...] = ("examples", "heads", "tails")
"""Lists of a page's content that samples name by numbers."""
_TEXTS: tuple[Literal[_Shared, "samples"], ...] = (*_SHARED, "samples")
"""Lists of a page's content with texts that can be cut."""
_NAMES = frozenset({"sample_id", "sample_name", "subject", "response_type"})
"""Fields of a sample that are never cut."""
_FOLDER = Path(__file__).parent
MOST_BYTES = 50 * 2**20
"""Most bytes of a page: those that MLflow shows. Long texts are cut for it."""
MOST_BYTES_OF_ALL = 4 * MOST_BYTES
"""Most bytes of a page that was asked to hold all samples."""


class Content(TypedDict):
    """The content of a page, each text once."""

    eval: str
    model: str
    materialized_at: str
    run_id: str
    against: dict[str, object] | None
    """The other result of a comparison, as `Compared` says it."""
    headline: str
    metrics: Sequence[SampleMetric]
    total: int
    notes: list[str]
    examples: list[object]
    heads: list[object]
    tails: list[object]
    samples: list[dict[str, object]]
    """As `ResultSample`, with numbers in place of what samples share."""


def limits(content: Content, most_bytes: int) -> list[int]:
    """Most characters of a text: limits of which the first keeps a page of prose below a size, and then shorter ones, for other texts.

    Args:
        content: What the page holds, each text once.
        most_bytes: Most bytes of the page.
    """
    lengths = [len(text) for name in _TEXTS for text in _texts(content[name])]
    most = most_bytes / _BYTES_OF_CHARACTER
    fitting = [longest for longest in _LONGEST if sum(min(length, longest) for length in lengths) <= most]
    return fitting or [_LONGEST[-1]]


def shortened(content: Content, longest: int) -> Content:
    """A copy of a page's content without what is longer. A note has the number of the texts that are cut, and their samples `texts_cut`."""
    is_cut = {name: [_count(value, longest) > 0 for value in content[name]] for name in _SHARED}
    n_cut = sum(_count(content[name], longest) for name in _TEXTS)
    if not n_cut:
        return content

    def row(sample: Mapping[str, object]) -> dict[str, object]:
        examples, prompt = sample.get("examples"), sample["prompt"]
        head, tail = prompt if isinstance(prompt, list) else (None, None)
        used: tuple[tuple[_Shared, object], ...] = (("examples", examples), ("heads", head), ("tails", tail))
        has_cut = _count(sample, longest) or any(is_cut[name][place] for name, place in used if isinstance(place, int))
        return {**_cut(sample, longest), **({"texts_cut": True} if has_cut else {})}

    note = f"{n_cut:,} texts of more than {longest:,} characters are cut here; the lake has them whole"
    return {
        **content,
        "examples": _cut(content["examples"], longest),
        "heads": _cut(content["heads"], longest),
        "tails": _cut(content["tails"], longest),
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


def result_page(samples: ResultSamples, most_bytes: int = MOST_BYTES) -> bytes:
    """The page: HTML in UTF-8 with the samples in it. It works as a file, from a server, and in a frame that allows nothing but scripts.

    Texts are cut so that it has at most `most_bytes`. Only scores, log-probabilities and ids, which are never cut, can make it larger.
    """
    content, page = _content(samples), b""
    for longest in limits(content, most_bytes):
        page = _rendered(samples, _json(shortened(content, longest)))
        if len(page) <= most_bytes:
            break
    return page


def _rendered(samples: ResultSamples, content: bytes) -> bytes:
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


def _content(samples: ResultSamples) -> Content:
    shared: dict[_Shared, dict[object, int]] = {"examples": {}, "heads": {}, "tails": {}}
    rows = [_packed(sample, shared) for sample in samples.samples]
    against = samples.against
    return {
        "eval": samples.eval,
        "model": samples.model,
        "materialized_at": samples.materialized_at.astimezone(UTC).isoformat(),
        "run_id": samples.run_id,
        "against": {**asdict(against), "materialized_at": against.materialized_at.astimezone(UTC).isoformat()} if against else None,
        "headline": samples.headline,
        "metrics": samples.metrics,
        "total": samples.total,
        "notes": list(samples.notes),
        "examples": list(shared["examples"]),
        "heads": list(shared["heads"]),
        "tails": list(shared["tails"]),
        "samples": rows,
    }


def _json(content: Content) -> bytes:
    try:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a log-probability of minus infinity, for which JSON has no number
        text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # half of a character becomes an escape of JSON


def _packed(sample: ResultSample, shared: Mapping[_Shared, dict[object, int]]) -> dict[str, object]:
    """A sample in which numbers stand for what it shares with others."""
    packed = dict(sample)
    if examples := sample.get("examples"):
        packed["examples"] = _number(shared["examples"], tuple((role, text) for role, text in examples))
    turns = sample.get("turns")
    question = turns[0][1] if turns else ""
    head, found, tail = sample["prompt"].rpartition(question) if question else ("", "", "")
    if found:
        packed["prompt"] = [_number(shared["heads"], head), _number(shared["tails"], tail)]
    return packed


def _number(known: dict[object, int], value: object) -> int:
    return known.setdefault(value, len(known))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
