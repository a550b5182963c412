"""Half characters, wrong bytes and odd numbers in rows and answers: an error of one sample, or a text that says so, and nothing more."""

import contextlib
import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hostile_project import write_project
from hostile_texts import HALVES
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_dagster.cli.show import show_prompt
from eval_dagster.cli.task_page import show_task
from eval_dagster.datasets.row_files import rows_of
from eval_dagster.errors import DataError
from eval_dagster.lake.catalog.catalog import read_rows as query
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult
from eval_dagster.tasks.samples import build_samples
from eval_dagster.texts.visible_text import is_storable

Evaluate = Callable[..., tuple[Project, dict[str, StageResult]]]
GOOD = ("one", "two", "three")


@pytest.fixture
def evaluated(tmp_path: Path) -> Evaluate:
    """Evaluate the model that says the prompt again."""
    write_project(tmp_path, GOOD)

    def run(*stages: str) -> tuple[Project, dict[str, StageResult]]:
        project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
        chosen = set(stages or STAGES) - {"task_metrics"}  # which would wait for MLflow
        outcomes = list(evaluate(project, [("words", "echo")], stages=chosen, run_id="test", reporter=SilentReporter()))
        assert not [each for each in outcomes if isinstance(each, StageFailure)], outcomes
        return project, {each.stage: each for each in outcomes if isinstance(each, StageResult)}

    return run


def rewrite(folder: Path, *lines: bytes) -> None:
    """Put lines after the rows of the project."""
    file = folder / "rows" / "test.jsonl"
    file.write_bytes(b"\n".join([file.read_bytes(), *lines]))


def scores(results: dict[str, StageResult]) -> list[tuple[float | None, str | None]]:
    """Value and error of each sample."""
    return [(row["value"], row["error"]) for row in read_rows(results["sample_scores"].file.path) if row["metric"] == "exact_match"]


DAMAGED = [
    (json.dumps({"text": HALVES[0]}).encode(), "row 3 of split 'test' (subject 'default'): its prompt, choices or gold answer hold half"),
    (b'{"text": "caf\xe9"}', r"a byte that is no UTF-8: …caf\udce9"),
    (b'{"text": "broken', "line 6: JSONDecodeError"),
    (b'["no object"]', 'line 7: TypeError: found ["no object"]; expected a JSON object'),
    (b'{"text": "deep", "x": ' + b"[" * 300 + b"]" * 300 + b"}", "more than 100 levels deep"),
    (b'{"text": "deeper", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "line 9: RecursionError"),
    (b'{"text": "long", "x": ' + b"9" * 5000 + b"}", "line 10: ValueError: Exceeds the limit (4300 digits)"),
]
ODD = [
    json.dumps({"text": "fine", "c": HALVES[0]}).encode(),
    b'{"text": "numbers", "a": NaN, "b": -Infinity, "c": 123456789012345678901234567890}',
    b'{"text": "nul \\u0000 byte", "c": "a\\u0000b"}',
    b'{"text": "flags", "c": true}',
]


@pytest.mark.long
def test_a_damaged_row_is_the_error_of_its_sample(evaluated: Evaluate, tmp_path: Path) -> None:
    rewrite(tmp_path, *(line for line, _ in DAMAGED))
    _, results = evaluated()
    found = scores(results)
    assert found[:3] == [(1.0, None)] * 3
    for (value, error), (_, reason) in zip(found[3:], DAMAGED, strict=True):
        assert value is None
        assert reason in str(error)
    (warning,) = results["sample_scores"].warnings
    assert "7 of 10 samples have an error and no score: RowError: row 3 of split 'test'" in warning
    _, again = evaluated()
    assert all(each.cached for each in again.values())


def test_an_odd_row_is_evaluated(evaluated: Evaluate, tmp_path: Path) -> None:
    rewrite(tmp_path, *ODD)
    project, results = evaluated()
    assert scores(results) == [(1.0, None)] * 7
    rows = query(project.lake, "select row->>'c' as c from samples where row_index > 3 order by row_index")
    assert [row["c"] for row in rows] == ["123456789012345678901234567890", "a\x00b", "true"]


def test_a_damaged_row_is_no_example(tmp_path: Path, evaluated: Evaluate) -> None:
    rewrite(tmp_path, b"{broken", json.dumps({"text": HALVES[1]}).encode())
    config = (tmp_path / "evals.yaml").read_text().replace('"words.py:Words"', '"words.py:Words", num_fewshot: 2')
    (tmp_path / "evals.yaml").write_text(config)
    task = (tmp_path / "words.py").read_text().replace('SAMPLE_SPLIT = "test"', 'SAMPLE_SPLIT = "test"\n    FEWSHOT_SPLIT = "test"')
    (tmp_path / "words.py").write_text(task)
    _, results = evaluated("rendered_prompts")
    assert results["rendered_prompts"].file.info.counts["errors"] == 2


@pytest.mark.long
def test_half_a_character_in_an_answer_is_stored_scored_and_said(evaluated: Evaluate, tmp_path: Path) -> None:
    answer = """
        def echo(request):
            return "half \\ud83d" if "two" in request.prompt else request.prompt
        def other(request):
            return ""
    """
    (tmp_path / "answer.py").write_text(textwrap.dedent(answer))
    for _ in range(2):
        _, results = evaluated()
        rows = read_rows(results["model_outputs"].file.path, ["text", "text_is_escaped"])
        assert [row["text"] for row in rows if row["text_is_escaped"]] == [[r"half \ud83d"]]
        assert len(scores(results)) == 3
        (warning,) = results["model_outputs"].warnings
        assert "words|echo: 1 answer holds half of a character" in warning, "also where all is current"


def test_half_a_character_in_an_error_hides_no_error(evaluated: Evaluate, tmp_path: Path) -> None:
    answer = """
        def echo(request):
            raise ValueError("half \\ud83d")
        def other(request):
            return ""
    """
    (tmp_path / "answer.py").write_text(textwrap.dedent(answer))
    _, results = evaluated()
    assert scores(results) == [(None, r"ValueError: half \ud83d (answer.py, line 3)")] * 3


@pytest.mark.long
def test_an_answer_of_ten_megabytes_is_an_answer(evaluated: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "answer.py").write_text('def echo(request):\n    return "x[/\\x1b]" * 2_000_000\ndef other(request):\n    return ""\n')
    project, results = evaluated()
    assert scores(results) == [(0.0, None)] * 3
    assert query(project.lake, "select len(text[1]) as n from responses") == [{"n": 10_000_000}] * 3


def test_rows_of_csv_and_parquet_survive_wrong_bytes(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_bytes(b'\xef\xbb\xbfq,n,big\n"caf\xe9\nau lait",1,12345678901234567891\nplain,2,1.5\n')
    assert list(rows_of([tmp_path / "test.csv"])) == [
        {"q": "caf\udce9\nau lait", "n": 1, "big": 12345678901234567891},
        {"q": "plain", "n": 2, "big": 1.5},
    ]
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9", b"ok"]).buffers())
    nested = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1, 2], broken)], ["texts"])
    pq.write_table(pa.table({"q": broken, "n": [1, None], "in": nested, "raw": pa.array([b"\xff", b"ok"])}), tmp_path / "test.parquet")
    assert list(rows_of([tmp_path / "test.parquet"])) == [
        {"q": "caf\udce9", "n": 1, "in": {"texts": ["caf\udce9"]}, "raw": b"\xff"},
        {"q": "ok", "n": None, "in": {"texts": ["ok"]}, "raw": b"ok"},
    ]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("test.csv", b"a,a\n1,2\n", "the column 'a' more than once"),
        ("test.csv", b"a,b\n1,2,3\n", "row 0 (line 2): expected 2 cells, as the first line has, got 3"),
        ("test.csv", b"", "it is empty"),
        ("test.jsonl", b"[\n1,\n2\n]\n", "line 1: JSONDecodeError"),
        ("test.jsonl", b"\xff\xfe{\x00}\x00", "line 1: JSONDecodeError"),
        ("test.parquet", b"PAR1", "ArrowInvalid"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(rows_of([tmp_path / name]))
    assert f"{tmp_path / name} cannot be read: " in str(caught.value)
    assert problem in str(caught.value)


LINES = st.lists(st.binary(max_size=30) | st.sampled_from([line for line, _ in DAMAGED[:4]] + ODD), max_size=6).map(b"\n".join)
CELLS = st.lists(
    st.sampled_from([b"a", b"1", b",", b"\n", b'"', b"\xff", b"\x00", b"9" * 30, b"1.5", b"\r", b"2026-01-31", b"\xef\xbb\xbf"])
)


@pytest.mark.long
@settings(max_examples=300)
@given(content=LINES | CELLS.map(b"".join) | st.binary(max_size=60), ending=st.sampled_from(["csv", "jsonl", "parquet"]))
def test_any_bytes_are_rows_or_one_message(tmp_path_factory: pytest.TempPathFactory, content: bytes, ending: str) -> None:
    file = tmp_path_factory.getbasetemp() / f"test.{ending}"
    file.write_bytes(content)
    with contextlib.suppress(DataError):
        samples = build_samples({"test": list(rows_of([file]))}, "all")
        assert all(is_storable(json.dumps(sample.row, ensure_ascii=False)) for sample in samples)
        assert len({sample.sample_id for sample in samples}) == len(samples)


def test_the_commands_show_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], evaluated: Evaluate
) -> None:
    rewrite(tmp_path, json.dumps({"text": HALVES[0]}).encode(), b"{broken")
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    show_prompt("words", "echo", "3")
    assert r"half \ud83d of one" in capsys.readouterr().out
    show_prompt("words", "echo", "4")
    assert "line 5: JSONDecodeError" in capsys.readouterr().out
    with pytest.raises(typer.Exit):  # its second metric gives every text 1
        show_task("words", None, None)
    printed = " ".join(capsys.readouterr().err.split())
    assert "2 of 5 rows cannot be asked, which is an error of its sample in an eval; the first: " in printed
    assert "row 3 of split 'test'" in printed
