"""Lake files with random damage: each reading gives the right rows, or names the file, and no query gives another number."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_lakes import make_home

from eval_dagster.errors import LakeError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.format import damage
from eval_dagster.lake.format.damage import require_sound
from eval_dagster.lake.format.parquet_files import parquet_files, read_head, read_info
from eval_dagster.lake.format.parquet_files import read_rows as rows_of_file
from eval_dagster.lake.records import read_attempts

QUERIES = (
    "select model, value, n from leaderboard order by all",
    "select model, avg(value) as value, count(*) as n from scores group by model order by all",
    "select model, text, choice_logprobs from responses order by all",
    "select eval, model, status from attempts order by all",
)
WIDE, LONG = 40, 1500
"""How many examples are tried each time, and by `make test-long`."""

Damage = tuple[str, int, int]
DAMAGES = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("zeros"), st.integers(0, 10**6), st.integers(1, 600)),
    st.tuples(st.just("insert"), st.integers(0, 10**6), st.integers(1, 64)),
    st.tuples(st.just("twice"), st.just(0), st.just(0)),
)


def damaged(content: bytes, kind: str, place: int, size: int) -> bytes:
    place %= len(content)
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ (1 << size)]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    if kind == "zeros":
        return content[:place] + bytes(min(size, len(content) - place)) + content[place + size :]
    return content[:place] + content[place : place + size] + content[place:] if kind == "insert" else content * 2


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_home(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture(autouse=True)
def each_reading_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "_VALID_S", 0.0)


def _files(lake: Lake) -> list[Path]:
    return sorted(path for path in lake.root.rglob("*.parquet"))


def _answer(call: object) -> object:
    """What a reading gives; the message where it is refused."""
    try:
        return call()  # type: ignore[operator]
    except LakeError as error:
        return str(error)


def _readings(path: Path) -> dict[str, object]:
    columns = ["model"] if "response_cache" not in str(path) else ["request_id"]
    readings = {"rows": lambda: rows_of_file(path), "head": lambda: read_head(path, 3, columns), "verify": lambda: require_sound(path)}
    if "response_cache" not in str(path):
        readings["info"] = lambda: read_info(path)
    return {name: _answer(reading) for name, reading in readings.items()}


def _check_file(path: Path, damages: list[Damage]) -> None:
    content, expected = path.read_bytes(), _readings(path)
    broken = content
    for each in damages:
        broken = damaged(broken, *each) if broken else b""
    try:
        path.write_bytes(broken)
        for name, answer in _readings(path).items():
            is_named = isinstance(answer, str) and str(path) in answer and "\n" not in answer
            assert is_named or answer == expected[name], f"{name} of {path}: {answer}"
    finally:
        path.write_bytes(content)


@pytest.mark.long
@settings(max_examples=WIDE)
@given(place=st.integers(0, 10**6), damages=st.lists(DAMAGES, min_size=1, max_size=3))
def test_a_damaged_file_is_named_or_read_right(lake: Lake, place: int, damages: list[Damage]) -> None:
    files = _files(lake)
    _check_file(files[place % len(files)], damages)


@pytest.mark.long
@settings(max_examples=LONG)
@given(place=st.integers(0, 10**6), damages=st.lists(DAMAGES, min_size=1, max_size=4))
def test_a_damaged_file_is_named_or_read_right_at_length(lake: Lake, place: int, damages: list[Damage]) -> None:
    files = _files(lake)
    _check_file(files[place % len(files)], damages)


def _check_queries(lake: Lake, place: int, each: Damage, expected: list[list[dict[str, object]]]) -> None:
    """Right rows, or those of the partitions that are left; never a row that the sound lake does not have."""
    files = [path for path in _files(lake) if "response_cache" not in str(path)]
    path = files[place % len(files)]
    content = path.read_bytes()
    try:
        path.write_bytes(damaged(content, *each))
        catalog_path(lake).unlink()
        refresh(lake)
        listed = [row["path"] for row in read_rows(lake, "select path from damaged_files")]
        for query, sound in zip(QUERIES, expected, strict=True):
            rows = read_rows(lake, query)
            assert all(row in sound for row in rows), f"{query} after {each} in {path}"
            assert rows == sound or listed == [str(path)]
        assert len(read_attempts(lake)) <= 2
    finally:
        path.write_bytes(content)


@pytest.fixture(scope="module")
def sound(lake: Lake) -> list[list[dict[str, object]]]:
    refresh(lake)
    return [read_rows(lake, query) for query in QUERIES]


@pytest.mark.long
@settings(max_examples=8)
@given(place=st.integers(0, 10**6), each=DAMAGES)
def test_no_query_gives_another_number(lake: Lake, sound: list[list[dict[str, object]]], place: int, each: Damage) -> None:
    _check_queries(lake, place, each, sound)


@pytest.mark.long
@settings(max_examples=60)
@given(place=st.integers(0, 10**6), each=DAMAGES)
def test_no_query_gives_another_number_at_length(lake: Lake, sound: list[list[dict[str, object]]], place: int, each: Damage) -> None:
    _check_queries(lake, place, each, sound)


@settings(max_examples=15)
@given(each=DAMAGES)
def test_a_damaged_answer_is_never_taken_for_another(lake: Lake, each: Damage) -> None:
    cache = ResponseCache(lake, "a")
    wanted = {f"a-s{number:02}" for number in range(40)}
    expected = cache.find(wanted)
    assert len(expected) == len(wanted)
    [path] = parquet_files(cache.folder)
    content = path.read_bytes()
    try:
        path.write_bytes(damaged(content, *each))
        found = _answer(lambda: cache.find(wanted))
        assert found == expected or (isinstance(found, str) and str(path) in found)
    finally:
        path.write_bytes(content)
