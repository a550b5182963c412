import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from eval_dagster.datasets.dataset_lock import DatasetLock
from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.errors import ConfigError, DataError, DatasetNotFoundError, TaskDefinitionError
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import DatasetSource, ResponseType, Row
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.hashes import stable_hash
from eval_dagster.versions.source_files import load_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "org/quiz"
    DATASET_REVISION: str | None = COMMIT
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT: str | None = "dev"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    SUBJECTS: tuple[str, ...] = ("biology", "physics")

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["question"])

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"])


class Single(Quiz):
    SUBJECTS = ("main",)


def write(folder: Path, name: str, rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / name)
    return folder / name


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    for subject in Quiz.SUBJECTS:
        folder = tmp_path / "mirror/org/quiz" / subject
        write(folder, "test-00000-of-00002.parquet", [{"question": f"{subject} 0", "choices": ["a", "b"], "answer": 1}])
        write(folder, "test-00001-of-00002.parquet", [{"question": f"{subject} 1", "choices": [], "answer": None}])
    write(tmp_path / "mirror/org/quiz/biology", "dev-00000-of-00001.parquet", [{"question": "dev", "choices": ["c"], "answer": 0}])
    return tmp_path / "mirror"


class ByField(Quiz):
    DATASET_PATH = "org/fields"
    SUBJECT_FIELD = "topic"


@pytest.fixture
def fields(tmp_path: Path) -> DatasetReader:
    folder = tmp_path / "mirror/org/fields/default"
    topics = ["physics", "biology", "physics"]
    write(folder, "test-00000-of-00001.parquet", [{"question": f"{n}", "topic": topic} for n, topic in enumerate(topics)])
    write(folder, "dev-00000-of-00001.parquet", [{"question": "example", "topic": "physics"}])
    return DatasetReader(tmp_path / "mirror")


def test_a_field_of_the_rows_names_their_subject(fields: DatasetReader) -> None:
    fields.check(ByField, ByField.SUBJECTS, fewshot=True)
    physics = fields.read(ByField(), "physics", fewshot=True)
    assert {split: [row["question"] for row in rows] for split, rows in physics.items()} == {"test": ["0", "2"], "dev": ["example"]}
    biology = fields.read(ByField(), "biology", fewshot=True)
    assert {split: [row["question"] for row in rows] for split, rows in biology.items()} == {"test": ["1"], "dev": []}


def test_rows_of_a_subject_that_the_task_lacks_are_not_lost(fields: DatasetReader) -> None:
    class Physics(ByField):
        SUBJECTS = ("physics",)

    with pytest.raises(DataError, match=r"'topic' of org/fields .* names biology, which SUBJECTS lacks"):
        fields.read(Physics(), "physics")


def test_the_stamp_tells_one_field_and_one_choice_of_subjects_from_another(fields: DatasetReader) -> None:
    class Other(ByField):
        SUBJECT_FIELD = "question"

    stamps = [
        fields.stamp(ByField, ["physics"]),
        fields.stamp(ByField, ["biology"]),
        fields.stamp(ByField, ["physics"], fewshot=True),
        fields.stamp(Other, ["physics"]),
    ]
    assert all(stamps.count(stamp) == 1 for stamp in stamps)
    assert fields.stamp(ByField, ["physics"]) == stamps[0]


def test_a_mirror_is_read_as_plain_rows(mirror: Path) -> None:
    reader = DatasetReader(mirror)
    rows = reader.read(Quiz(), "biology", fewshot=True)
    assert list(rows) == ["test", "dev"]
    assert rows["test"] == [
        {"question": "biology 0", "choices": ["a", "b"], "answer": 1},
        {"question": "biology 1", "choices": [], "answer": None},
    ]
    assert rows["dev"] == [{"question": "dev", "choices": ["c"], "answer": 0}]
    assert list(reader.read(Quiz(), "biology")) == ["test"]
    assert reader.source(Quiz) == DatasetSource(path="org/quiz", revision=None)


def test_a_few_shot_split_is_needed_only_for_examples(mirror: Path) -> None:
    reader = DatasetReader(mirror)
    reader.check(Quiz, ["physics"])
    with pytest.raises(
        DatasetNotFoundError, match=r"org/quiz lacks the split 'dev': looked for .*physics/dev\.parquet, \.jsonl and \.csv, .* splits: test"
    ):
        reader.check(Quiz, ["biology", "physics"], fewshot=True)

    class NoExamples(Quiz):
        FEWSHOT_SPLIT = None

    reader.check(NoExamples, ["physics"])
    with pytest.raises(TaskDefinitionError, match="Quiz names no split to draw few-shot examples from"):
        reader.check(NoExamples, ["physics"], fewshot=True)


def test_a_missing_dataset_or_config_says_where_it_was_looked_for(mirror: Path) -> None:
    class Elsewhere(Quiz):
        DATASET_PATH = "org/other"

    with pytest.raises(
        DatasetNotFoundError, match=r"org/other is not there: looked for the folder .*mirror/org/other; add it to the mirror"
    ):
        DatasetReader(mirror).check(Elsewhere, ["biology"])
    with pytest.raises(
        DatasetNotFoundError, match=r"lacks the config 'biologie': .*did you mean 'biology'\?; .* configs: biology, physics"
    ):
        DatasetReader(mirror).check(Quiz, ["biologie"])


def test_the_config_default_serves_a_task_with_one_subject_only(tmp_path: Path) -> None:
    write(tmp_path / "org/quiz/default", "test-00000-of-00001.parquet", [{"question": "q"}])
    assert DatasetReader(tmp_path).read(Single(), "main") == {"test": [{"question": "q"}]}
    with pytest.raises(DatasetNotFoundError, match="the dataset has the configs: default"):
        DatasetReader(tmp_path).check(Quiz, ["biology"])


def test_a_damaged_file_is_named(mirror: Path) -> None:
    (mirror / "org/quiz/biology/test-00000-of-00002.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"biology/test-00000-of-00002\.parquet cannot be read: ArrowInvalid"):
        DatasetReader(mirror).read(Quiz(), "biology")


def test_a_stamp_changes_with_the_files_and_not_with_time(mirror: Path) -> None:
    reader = DatasetReader(mirror)
    before = reader.stamp(Quiz, ["biology"])
    assert before == reader.stamp(Quiz, ["biology"]) == json.loads(json.dumps(before))
    assert before != reader.stamp(Quiz, ["biology"], fewshot=True)
    assert before != reader.stamp(Quiz, ["physics"])
    os.utime(mirror / "org/quiz/biology/dev-00000-of-00001.parquet", ns=(1, 1))
    assert before == reader.stamp(Quiz, ["biology"])
    os.utime(mirror / "org/quiz/biology/test-00001-of-00002.parquet", ns=(1, 1))
    assert before != reader.stamp(Quiz, ["biology"])


def test_a_folder_of_split_files(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"question": "a\u2028b", "answer": "1"}\n\n', "utf-8")
    (tmp_path / "test.csv").write_text("question,answer\nwhy,3\n", "utf-8")

    class Local(Single):
        DATASET_PATH = str(tmp_path)

    reader = DatasetReader(None)
    reader.check(Local, ["main"], fewshot=True)
    rows = reader.read(Local(), "main", fewshot=True)
    assert rows == {"test": [{"question": "why", "answer": 3}], "dev": [{"question": "a\u2028b", "answer": "1"}]}
    (tmp_path / "dev.jsonl").write_text("{broken\n", "utf-8")
    with pytest.raises(DataError, match=r"dev\.jsonl cannot be read: line 1: JSONDecodeError"):
        reader.read(Local(), "main", fewshot=True)


@pytest.mark.parametrize("path", ["./rows", "../here/rows", "."])
def test_a_folder_is_relative_to_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir("/")
    write(tmp_path / "here/rows", "test-00000-of-00001.parquet", [{"question": "q"}])
    reader = DatasetReader(None, tmp_path / "here/rows" if path == "." else tmp_path / "here")
    reader.check(single(path), ["main"])
    assert reader.read(single(path)(), "main") == {"test": [{"question": "q"}]}
    assert reader.source(single(path)) == DatasetSource(path=path, revision=None)


def test_a_missing_folder_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=rf"\./gone is not there: looked for the folder {tmp_path}/gone; correct DATASET_PATH"):
        DatasetReader(tmp_path, tmp_path).check(single("./gone"), ["main"])


def test_a_folder_that_happens_to_be_there_stands_for_no_dataset(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = mirror.parent / "here"
    for folder in (here / "org/quiz", here / "org/other"):
        write(folder, "test-00000-of-00001.parquet", [{"question": "hijacked"}])
    monkeypatch.chdir(here)
    reader = DatasetReader(mirror, here)
    assert reader.read(Quiz(), "biology")["test"][0]["question"] == "biology 0"
    with pytest.raises(
        DatasetNotFoundError,
        match=r"there is the folder .*here/org/other; did you mean DATASET_PATH = '\./org/other'\? .*org/other is not there: ",
    ):
        reader.check(variant("org/other", COMMIT), ["biology"])


@pytest.mark.parametrize(("path", "meant"), [("tickets", "tickets"), ("tickets/test.jsonl", "tickets")])
def test_a_folder_without_its_beginning_is_asked_about_before_the_hub_is(tmp_path: Path, path: str, meant: str) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "tickets").mkdir()
    (tmp_path / "tickets/test.jsonl").write_text('{"question": "q"}\n')
    reader, task = DatasetReader(tmp_path / "mirror", tmp_path), variant(path, COMMIT)
    # What is checked before a run, and what a run records as the reason.
    for look in (lambda: reader.check(task, ["biology"]), lambda: reader.stamp(task, ["biology"]), lambda: reader.read(task(), "biology")):
        with pytest.raises(DatasetNotFoundError, match=rf"^there is no dataset '{path}' .*; did you mean DATASET_PATH = '\./{meant}'\?"):
            look()


def test_a_folder_may_lie_beside_the_file_of_the_task(tmp_path: Path) -> None:
    """First that of evals.yaml; without evals.yaml first that of the task's file."""
    task_file = tmp_path / "tasks/quiz.py"
    code = "from eval_dagster.tasks.base import BaseTask\n\n\nclass Beside(BaseTask):\n    DATASET_PATH, SAMPLE_SPLIT = './rows', 'test'\n"
    for folder in ("tasks/rows", "here"):
        (tmp_path / folder).mkdir(parents=True)
    task_file.write_text(code)
    (tmp_path / "tasks/rows/test.jsonl").write_text('{"question": "beside the task"}\n')
    task = load_file(task_file).Beside

    def question(*, beside_tasks: bool) -> str:
        return str(DatasetReader(None, tmp_path / "here", beside_tasks=beside_tasks).read(task(), "default")["test"][0]["question"])

    assert question(beside_tasks=False) == question(beside_tasks=True) == "beside the task"
    (tmp_path / "here/rows").mkdir()
    (tmp_path / "here/rows/test.jsonl").write_text('{"question": "here"}\n')
    assert [question(beside_tasks=False), question(beside_tasks=True)] == ["here", "beside the task"]


class Own(Quiz):
    def _load_dataset(self, subject: str) -> dict[str, list[Row]] | None:
        return {"test": [{"question": subject}], "dev": []}


class SetsDataset(Quiz):
    def _load_dataset(self, subject: str) -> None:
        self.dataset = {"test": [{"question": f"set {subject}"}]}


def test_a_task_may_bring_its_own_rows() -> None:
    reader = DatasetReader(Path("no-such-mirror"))
    reader.check(Own, ["biology"])
    assert reader.read(Own(), "biology") == {"test": [{"question": "biology"}]}
    assert reader.read(SetsDataset(), "physics") == {"test": [{"question": "set physics"}]}
    assert reader.source(Own) == DatasetSource(path=f"{__name__}:Own", revision=None)
    assert reader.stamp(Own, ["biology"]) == reader.stamp(Own, ["biology"]) != reader.stamp(SetsDataset, ["biology"])


OWN_FILES = """
from pathlib import Path

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import ResponseType
from eval_dagster.tasks.base import BaseTask


class Mine(BaseTask[str]):
    NAME = "Mine"
    DATASET_PATH = "mine"
    DATA_FILES = ["rows.txt", "more"]
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [ExactMatch]
    SUBJECTS = ["all"]

    def _load_dataset(self, subject):
        return {"test": [{"text": (Path(__file__).parent / "rows.txt").read_text()}]}

    def _get_instruction_text(self, item):
        return item["text"]

    def _get_ground_truth(self, item):
        return item["text"]
"""


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir("/")
    (tmp_path / "tasks/more/deep").mkdir(parents=True)
    (tmp_path / "tasks/mine.py").write_text(OWN_FILES)
    (tmp_path / "tasks/rows.txt").write_text("one")
    (tmp_path / "tasks/more/deep/a.txt").write_text("a")
    return tmp_path / "tasks"


def test_files_that_an_own_loader_reads_count_for_its_stamp(own_files: Path) -> None:
    class Derived(load_task("mine.py:Mine", {}, own_files)):  # type: ignore[misc]
        """Reads the files beside the class that it is derived from."""

    stamps = []

    def stamp() -> None:
        reader.check(Derived, ["all"])
        stamps.append(json.dumps(reader.stamp(Derived, ["all"])))

    reader = DatasetReader(None)
    stamp()
    stamp()
    assert len(set(stamps)) == 1
    (own_files / "rows.txt").write_text("three")
    stamp()
    (own_files / "more/deep/a.txt").rename(own_files / "more/a.txt")
    stamp()
    (own_files / "more/b.txt").write_text("b")
    stamp()
    assert len(set(stamps)) == 4
    (own_files / "else.txt").write_text("not read")
    stamp()
    assert len(set(stamps)) == 4


def test_a_missing_file_of_an_own_loader_is_named(own_files: Path) -> None:
    (own_files / "rows.txt").unlink()
    task = load_task("mine.py:Mine", {}, own_files)
    message = rf"task Mine reads 'rows\.txt' \(DATA_FILES\), which is not there: looked for {own_files}/rows\.txt; .* of Mine"
    with pytest.raises(DatasetNotFoundError, match=message):
        DatasetReader(None).check(task, ["all"])
    with pytest.raises(DatasetNotFoundError, match=message):
        DatasetReader(None).stamp(task, ["all"])


def test_what_goes_wrong_in_an_own_loader_is_named() -> None:
    class Breaks(Quiz):
        def _load_dataset(self, subject: str) -> None:
            raise RuntimeError("disk on fire")

    with pytest.raises(DataError, match=r"Breaks, subject 'physics' raised RuntimeError: disk on fire"):
        DatasetReader(None).read(Breaks(), "physics")
    with pytest.raises(DataError, match=r"SetsDataset, subject 'physics' brings no split 'dev'; it brings: test"):
        DatasetReader(None).read(SetsDataset(), "physics", fewshot=True)


class Hub(BaseHTTPRequestHandler):
    """Knows the dataset org/quiz at one commit."""

    def do_GET(self) -> None:
        if not self.path.startswith("/api/datasets/org/quiz"):
            status, code = 404, "RepoNotFound"
        elif self.path.endswith((COMMIT, "quiz")):
            status, code = 200, ""
        else:
            status, code = 404, "RevisionNotFound"
        body = json.dumps({"id": "org/quiz", "_id": "1", "sha": COMMIT, "private": False, "downloads": 0, "likes": 0, "tags": []})
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def variant(path: str, revision: str | None) -> type[Quiz]:
    return type("Variant", (Quiz,), {"DATASET_PATH": path, "DATASET_REVISION": revision, "__module__": __name__})


def single(path: str) -> type[Single]:
    return type("Variant", (Single,), {"DATASET_PATH": path, "__module__": __name__})


@pytest.mark.usefixtures("hub")
def test_the_hub_is_asked_for_the_commit() -> None:
    reader = DatasetReader(None)
    reader.check(variant("org/quiz", COMMIT), ["biology"])
    with pytest.raises(DatasetNotFoundError, match=f"org/quiz has no commit {'f' * 40}; set DATASET_REVISION"):
        reader.check(variant("org/quiz", "f" * 40), ["biology"])
    with pytest.raises(DatasetNotFoundError, match=r"there is no dataset org/none on the Hub, or it is gated"):
        reader.check(variant("org/none", COMMIT), ["biology"])


@pytest.mark.usefixtures("hub")
def test_a_dataset_without_a_commit_is_held_at_the_one_that_was_seen_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = DatasetReader(None, tmp_path)
    reader.check(variant("org/quiz", None), ["biology"])
    assert json.loads((tmp_path / "datasets.lock.json").read_text()) == {"org/quiz": COMMIT}
    # A later commit of the Hub does not move it, nor is the Hub asked again.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert DatasetReader(None, tmp_path).source(variant("org/quiz", None)).revision == COMMIT
    (tmp_path / "datasets.lock.json").write_text(json.dumps({"org/quiz": "f" * 40}))
    assert DatasetReader(None, tmp_path).source(variant("org/quiz", None)).revision == "f" * 40
    (tmp_path / "datasets.lock.json").write_text("{")
    with pytest.raises(ConfigError, match=r"datasets\.lock\.json is no JSON .*restore it, or delete it"):
        DatasetReader(None, tmp_path).source(variant("org/quiz", None))


def test_the_lock_of_the_commits_needs_nothing_of_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, shared, other = tmp_path / "project", tmp_path / "shared", tmp_path / "other"
    project.mkdir()
    shared.mkdir()
    other.write_text("another user's")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    path = project / "datasets.lock.json"
    # What another user could prepare in a folder that all may write to: links under every name that follows from the path.
    for name in (stable_hash(str(path)), path.name):
        (shared / f"eval_dagster-{name}.lock").symlink_to(other)
    assert DatasetLock(path).add("org/quiz", COMMIT) == COMMIT
    assert DatasetLock(path).add("org/quiz", "f" * 40) == COMMIT
    assert other.read_text() == "another user's"
    assert json.loads(path.read_text()) == {"org/quiz": COMMIT}


def test_no_network_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    begin = time.monotonic()
    with pytest.raises(
        DatasetNotFoundError, match=r"org/quiz at commit 0123.* Hub is out of reach .*datasets\.mirror .*EVAL_DAGSTER_DATASETS"
    ):
        DatasetReader(None).check(Quiz, ["biology"])
    assert time.monotonic() - begin < 8


def test_offline_mode_takes_the_cache_or_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DatasetNotFoundError, match=r"is not in the cache, and HF_HUB_OFFLINE forbids the Hub"):
        DatasetReader(None).check(Quiz, ["biology"])
    (tmp_path / "org___quiz/biology/0.0.0" / COMMIT).mkdir(parents=True)
    DatasetReader(None).check(Quiz, ["biology"])
    assert DatasetReader(None).source(Quiz) == DatasetSource(path="org/quiz", revision=COMMIT)
    assert COMMIT in DatasetReader(None).stamp(Quiz, ["biology"])
