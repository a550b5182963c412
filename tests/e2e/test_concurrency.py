"""Six processes materialize different partitions at once while readers look on."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import duckdb
import pytest

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      a: {{backend: scripted, default: " 7"}}
      b: {{backend: scripted, default: " 8"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 1, limit: {limit}}}
      capitals: {{task: capitals, limit: {limit}}}
      names: {{task: capitals_completion, limit: {limit}}}
"""
PARTITIONS = [(name, model) for name in ("sums", "capitals", "names") for model in ("a", "b")]
LIMIT = 9
CONSISTENT = """
    select s.eval, s.model, s.metric, s.rows, s.samples, m.n + m.n_errors as measured
    from (
        select eval, model, metric, count(*) as rows, count(distinct sample_id) as samples from scores group by eval, model, metric
    ) as s
    full join (select * from metrics where subject is null and aggregation != 'macro') as m using (eval, model, metric)
"""


def _configure(folder: Path, *, limit: int) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(limit=limit)))


def _start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_HOME": str(folder / "home" / "dagster"),
    }
    command = [sys.executable, "-m", "eval_dagster.cli", "run", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _answers(connection: duckdb.DuckDBPyConnection) -> list[tuple[object, ...]]:
    rows = connection.execute(CONSISTENT).fetchall()
    for row in rows:
        assert row[3] == row[4] == row[5], f"scores and metrics of different materializations: {row}"
    return sorted(rows)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_six_writers_and_open_readers_do_not_disturb_each_other(tmp_path: Path) -> None:
    _configure(tmp_path, limit=5)
    first = _start(tmp_path)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 0, output
    catalog = str(tmp_path / "home" / "evals.duckdb")
    queries = 0
    # A session in a process of its own that stays open throughout, as an analyst's does.
    with duckdb.connect(catalog, read_only=True) as session:
        opened = _answers(session)
        _configure(tmp_path, limit=LIMIT)
        writers = [_start(tmp_path, "--eval", name, "--model", model) for name, model in PARTITIONS]
        while any(writer.poll() is None for writer in writers):
            assert _answers(session) == opened, "an open session must keep seeing what it opened"
            queries += _read_in_another_process(catalog)
            time.sleep(0.3)
        for writer in writers:
            output = writer.communicate()[0]
            assert writer.returncode == 0, output
        assert _answers(session) == opened
    assert queries > 5
    with duckdb.connect(catalog, read_only=True) as connection:
        final = {(row[0], row[1]): row[4] for row in _answers(connection)}
        subjects = {"sums": 3, "capitals": 6, "names": 6}
        assert final == {(name, model): subjects[name] * LIMIT for name, model in PARTITIONS}
        assert connection.execute("select count(*) from damaged_files").fetchall() == [(0,)]
        [(runs, distinct)] = connection.execute("select count(*), count(distinct mlflow_run_id) from metrics where is_headline").fetchall()
        assert runs == distinct == len(PARTITIONS)


def _read_in_another_process(catalog: str) -> int:
    """A new session: DuckDB shares one file among the sessions of a process, so it needs a process of its own."""
    script = f"""
import duckdb
with duckdb.connect({catalog!r}, read_only=True) as connection:
    rows = connection.execute({CONSISTENT!r}).fetchall()
    assert rows and all(row[3] == row[4] == row[5] for row in rows), rows
    print(len(rows))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
