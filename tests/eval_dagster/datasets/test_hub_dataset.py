"""A Hub of one dataset on this machine; the reader runs in a process of its own, since the Hub's address is read at import."""

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval_dagster.datasets.reader import DatasetReader

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"question": "q0", "answer": 1, "choices": ["a", "b"]}, {"question": "q1", "answer": 0, "choices": []}]
CARD = b"""---
configs:
- config_name: biology
  data_files:
  - {split: test, path: biology/test-*}
  - {split: dev, path: biology/dev-*}
- config_name: physics
  data_files:
  - {split: test, path: physics/test-*}
---
"""


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), buffer)
    return buffer.getvalue()


FILES = {"README.md": CARD} | dict.fromkeys(
    [f"{name}-00000-of-00001.parquet" for name in ("biology/test", "biology/dev", "physics/test")], parquet()
)


def entry(path: str) -> dict[str, Any]:
    if path in FILES:
        return {"type": "file", "path": path, "size": len(FILES[path]), "oid": hashlib.sha1(FILES[path]).hexdigest()}
    return {"type": "directory", "path": path, "oid": "0" * 40}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "/resolve/" in path:
            name = path.split("/resolve/")[1].partition("/")[2]
            if name not in FILES:
                return self.answer(404, b"", error="EntryNotFound")
            return self.answer(200, FILES[name])
        if "/tree/" in path:
            folder = path.split("/tree/")[1].partition("/")[2]
            parts = [name.removeprefix(f"{folder}/") for name in FILES if not folder or name.startswith(f"{folder}/")]
            here = dict.fromkeys(f"{folder}/{part}".strip("/") for part in (part.split("/")[0] for part in parts))
            return self.answer(200, json.dumps([entry(name) for name in here]).encode())
        siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
        return self.answer(200, json.dumps({"id": "org/quiz", "_id": "1", "sha": COMMIT, "siblings": siblings}).encode())

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        folders = {name.rpartition("/")[0] for name in FILES}
        self.answer(200, json.dumps([entry(path) for path in form.get("paths", []) if path in FILES or path in folders]).encode())

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status: int, body: bytes, error: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


SCRIPT = """
import json, sys
from eval_dagster.errors import DatasetNotFoundError
from eval_dagster.datasets.hub import HubRepo

repo, answers = HubRepo("org/quiz", sys.argv[1], 2), []
for subject, splits in json.loads(sys.argv[2]):
    try:
        repo.check([subject], splits)
        answers.append(repo.read(subject, splits))
    except DatasetNotFoundError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def ask(home: Path, revision: str, *questions: tuple[str, list[str]], **environment: str) -> list[Any]:
    command = [sys.executable, "-c", SCRIPT, revision, json.dumps(questions)]
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment}
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.mark.long
def test_rows_come_from_the_hub_once_and_from_the_cache_afterwards(endpoint: str, tmp_path: Path) -> None:
    questions = [("biology", ["test", "dev"]), ("physics", ["dev"]), ("biologie", ["test"])]
    rows, no_split, no_config = ask(tmp_path, COMMIT, *questions, HF_ENDPOINT=endpoint)
    assert rows == {"test": ROWS, "dev": ROWS}
    assert no_split == f"dataset org/quiz at commit {COMMIT} lacks the split 'dev'; it has: test"
    assert "'biologie' not found. Available: ['biology', 'physics']. SUBJECTS names the configs" in no_config

    assert ask(tmp_path, COMMIT, ("biology", ["test"]), HF_ENDPOINT="http://127.0.0.1:9") == [{"test": ROWS}]
    assert ask(tmp_path, COMMIT, ("biology", ["test"]), HF_HUB_OFFLINE="1") == [{"test": ROWS}]
    (other,) = ask(tmp_path, "f" * 40, ("biology", ["test"]), HF_HUB_OFFLINE="1")
    assert f"org/quiz at commit {'f' * 40} is not in the cache" in other


EVALS = """
models: {}
evals:
  quiz: {task: "quiz.py:Quiz", subjects: [biology], num_fewshot: 1}
  physics: {task: "quiz.py:Quiz", subjects: [physics], num_fewshot: 0}
  sums: {task: arithmetic}
"""
QUIZ = f"""
from eval_dagster import BaseTask
from eval_dagster.task_defs.capitals import CapitalsChoice

class Quiz(CapitalsChoice):
    NAME = "Quiz"
    DATASET_PATH = "org/quiz"
    DATASET_REVISION = "{COMMIT}"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "dev"
    SUBJECTS = ["biology", "physics"]
    _load_dataset = BaseTask._load_dataset
"""


def mirror(folder: Path, endpoint: str) -> "subprocess.CompletedProcess[str]":
    (folder / "evals.yaml").write_text(EVALS)
    (folder / "quiz.py").write_text(QUIZ)
    env = os.environ | {"HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "COLUMNS": "150", "HF_ENDPOINT": endpoint}
    command = [sys.executable, "-m", "eval_dagster.cli", "mirror", "copy"]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_a_mirror_of_what_the_evals_read_is_fetched_once_and_serves_without_the_hub(endpoint: str, tmp_path: Path) -> None:
    done = mirror(tmp_path, endpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    size = len(parquet())
    assert f"to fetch: {3 * size / 1000:.1f} kB" in done.stdout
    assert "sums: its rows are in a folder or come with the task; nothing to fetch" in done.stdout
    files = sorted(str(file.relative_to(tmp_path / "copy")) for file in (tmp_path / "copy").rglob("*") if file.is_file())
    assert files == [f"org/quiz/{split}-00000-of-00001.parquet" for split in ("biology/dev", "biology/test", "physics/test")]
    assert DatasetReader(tmp_path / "copy").read(quiz()(), "biology", fewshot=True) == {"test": ROWS, "dev": ROWS}

    (tmp_path / "copy/org/quiz/physics/test-00000-of-00001.parquet").unlink()  # as after an interruption
    again = mirror(tmp_path, "http://127.0.0.1:9")  # what was fetched once is in the cache of the Hub
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("is there") == 1
    assert (tmp_path / "copy/org/quiz/physics/test-00000-of-00001.parquet").is_file()


def quiz() -> type[Any]:
    found: dict[str, Any] = {"__name__": "quiz"}
    exec(QUIZ, found)
    task: type[Any] = found["Quiz"]
    return task


def test_a_dataset_that_cannot_be_fetched_is_an_error_beside_the_others(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    missing = EVALS.replace("num_fewshot: 0", "num_fewshot: 1")  # physics has no split `dev`
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "EVALS", missing)
        done = mirror(tmp_path, endpoint)
    assert done.returncode == 1
    assert "org/quiz, physics: dataset org/quiz" in done.stderr
    assert "lacks the split 'dev'" in done.stderr
    assert "1 of 2 configurations could not be fetched" in done.stderr
    assert (tmp_path / "copy/org/quiz/biology/dev-00000-of-00001.parquet").is_file()
