"""Labels of people: a CSV file out, and back into the lake whole or not at all."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_texts import FORMULAS, MARKUP

from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

ANSWERS = [*FORMULAS, *MARKUP, "a plain answer"]
Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a result whose answers are hostile texts."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "model.py").write_text(
        f"ANSWERS = {ANSWERS!r}\n\ndef answer(request):\n    return ANSWERS[sum(map(ord, request.prompt)) % len(ANSWERS)]\n"
    )
    (folder / "evals.yaml").write_text(
        'models:\n  one: {backend: scripted, function: "model.py:answer"}\nevals:\n  sums: {task: arithmetic, limit: 40}\n'
    )
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    list(evaluate(project, [("sums", "one")], stages=set(STAGES), run_id="r", reporter=SilentReporter()))
    return folder


@pytest.fixture
def cli(evaluated: Path, cli_in: Callable[[Path], Callable[..., str]]) -> Callable[..., str]:
    return cli_in(evaluated)


def labels(evaluated: Path) -> list[dict[str, object]]:
    return read_rows(Lake(evaluated / "home"), "select * from human_labels order by labelled_at, sample_id")


def read(file: Path) -> Rows:
    return list(csv.DictReader(io.StringIO(file.read_text("utf-8-sig"))))


def write(file: Path, rows: Rows, separator: str = ",") -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.long
def test_the_same_seed_gives_the_same_samples(cli: Callable[..., str], tmp_path: Path) -> None:
    cli("label", "export", "sums", "one", "--count", "10", "--seed", "3", "--to", "a.csv")
    cli("label", "export", "sums", "one", "--count", "10", "--seed", "3", "--to", "b.csv")
    cli("label", "export", "sums", "one", "--count", "10", "--seed", "4", "--to", "c.csv")
    a, b, c = (read(tmp_path / f"{name}.csv") for name in "abc")
    assert a == b
    assert {row["sample_id"] for row in a} != {row["sample_id"] for row in c}
    assert len({row["sample_id"] for row in a}) == 10
    assert {row["label"] for row in a} == {""}
    assert all("What is" in row["prompt"] for row in a)


@pytest.mark.long
def test_no_cell_is_a_formula(cli: Callable[..., str], tmp_path: Path) -> None:
    cli("label", "export", "sums", "one", "--count", "1000", "--to", "all.csv")
    cells = [row["answer"] for row in read(tmp_path / "all.csv")]
    assert sum(cell.startswith("'") for cell in cells) >= 5
    assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "＝")]


@pytest.mark.long
def test_labels_come_back_with_the_answers_of_the_lake(cli: Callable[..., str], evaluated: Path, tmp_path: Path) -> None:
    cli("label", "export", "sums", "one", "--count", "20", "--to", "ada.csv")
    rows = read(tmp_path / "ada.csv")
    for row in rows[:12]:
        row |= {"label": "wrong", "comment": "=no number", "answer": "changed by a spreadsheet"}
    write(tmp_path / "ada.csv", rows, separator=";")
    assert "12 labels written; 8 rows have no label" in cli("label", "import", "ada.csv", "--by", "Ada")
    known = [row for row in labels(evaluated) if row["labelled_by"] == "Ada"]
    answers = {
        row["sample_id"]: row["answer"] for row in read_rows(Lake(evaluated / "home"), "select sample_id, answer from sample_results")
    }
    assert {row["sample_id"] for row in known} == {row["sample_id"] for row in rows[:12]}
    assert all(row["answer"] == answers[row["sample_id"]] for row in known)
    assert {(row["label"], row["comment"]) for row in known} == {("wrong", "=no number")}

    assert "0 labels written; 12 are there already" in cli("label", "import", "ada.csv", "--by", "Ada")
    rows[0]["label"] = "right"
    write(tmp_path / "ada.csv", rows)
    assert "1 labels written; 11 are there already" in cli("label", "import", "ada.csv", "--by", "Ada")
    history = [row["label"] for row in labels(evaluated) if row["labelled_by"] == "Ada" and row["sample_id"] == rows[0]["sample_id"]]
    assert history == ["wrong", "right"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_id": "nobody"}, r":4: found the sample 'nobody', which .* does not have"),
        ({"model": "two"}, r":4: found a result that is not in the lake"),
        ({"eval": "../../sums"}, r":4: found a result that is not in the lake"),
        ({"materialized_at": "1.1.26"}, r":4: found materialized_at '1.1.26'"),
        ({"label": "x" * 201}, r":4: found a label of 201 characters; expected 200 at most"),
    ],
)
def test_one_bad_row_and_nothing_is_written(
    cli: Callable[..., str], evaluated: Path, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    cli("label", "export", "sums", "one", "--count", "5", "--to", "bad.csv")
    rows = [{**row, "prompt": "", "label": "fine"} for row in read(tmp_path / "bad.csv")]
    rows[2] |= change
    write(tmp_path / "bad.csv", rows)
    before = labels(evaluated)
    with pytest.raises(UsageError, match=message):
        cli("label", "import", "bad.csv", "--by", "Eve")
    assert labels(evaluated) == before


def test_files_that_are_none(cli: Callable[..., str], tmp_path: Path) -> None:
    cli("label", "export", "sums", "one", "--count", "5", "--to", "once.csv")
    kept = (tmp_path / "once.csv").read_bytes()
    with pytest.raises(UsageError, match="exists, and could hold labels"):
        cli("label", "export", "sums", "one", "--to", "once.csv")
    assert (tmp_path / "once.csv").read_bytes() == kept
    rows = [{**row, "label": "fine"} for row in read(tmp_path / "once.csv")]
    write(tmp_path / "twice.csv", [*rows, rows[0]])
    with pytest.raises(UsageError, match=r"found the sample .* again, which line \d+ has"):
        cli("label", "import", "twice.csv", "--by", "Eve")
    (tmp_path / "latin.csv").write_bytes("eval,label\nsums,gré\n".encode("latin-1"))
    with pytest.raises(UsageError, match="cannot be read as CSV in UTF-8"):
        cli("label", "import", "latin.csv", "--by", "Eve")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="eval, model, materialized_at, sample_id, label are missing"):
        cli("label", "import", "other.csv", "--by", "Eve")
    write(tmp_path / "short.csv", rows)
    with (tmp_path / "short.csv").open("a") as file:
        file.write("sums,one\n")
    with pytest.raises(UsageError, match="a row of another length than the heading"):
        cli("label", "import", "short.csv", "--by", "Eve")
    with pytest.raises(UsageError, match="there is no such file"):
        cli("label", "import", "nothing.csv", "--by", "Eve")
    with pytest.raises(UsageError, match="found an empty --by"):
        cli("label", "import", "once.csv", "--by", " ")
    with pytest.raises(UsageError, match="there is no result of sums on nobody"):
        cli("label", "export", "sums", "nobody", "--to", "new.csv")
    assert not (tmp_path / "new.csv").exists()
