"""After any sequence of changes, the catalog that was brought up to date is the one that is made from nothing, without packs."""

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from few import few

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog import packs, scanning
from eval_dagster.lake.catalog.index import Index, copied_index, index_path
from eval_dagster.lake.catalog.publishing import publish, publish_locked
from eval_dagster.lake.catalog.relations import NATIVE_TABLES, build
from eval_dagster.lake.catalog.scanning import scan
from eval_dagster.lake.files import Configured, ConfiguredAggregate, Lake, catalog_path, table_of
from eval_dagster.lake.format.damage import PACKS
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_info, read_table, write_parquet
from eval_dagster.lake.records import add_attempts, append
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.lake.tables.schemas import SUITE_TABLES, TABLES

EVALS, MODELS = ("a", "b", "it's"), ("m", "n")
PUBLIC = (
    *("samples", "prompts", "responses", "scores", "scores_history", "metrics", "metrics_history", "leaderboard", "score_history"),
    *("regressions", "regressions_history", "sample_changes", "change_points", "confirmations", "attempts", "damaged_files"),
    *("notices", "acceptances", "human_labels", "endpoint_states", "leaderboard_all", "checkpoints", "learning_curves", "aggregates"),
    *("night_plans", "history_looks", "aggregate_regressions", "aggregate_regressions_history"),
)
STEPS = 5
SEEDS, MANY_SEEDS = 2, 60


class Player:
    """Changes a lake at random, as its writers and users do."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake = lake
        self.chance = random.Random(seed)
        self.kept: dict[Path, bytes] = {}
        """Files before their damage."""

    def play(self) -> str:
        deeds: list[Callable[[], None]] = [
            *[self.result] * 4,
            *(self.judgement, self.attempt, self.delete, self.damage, self.restore, self.write_again, self.prune, self.foreign),
            *(self.lose_pack, self.damage_pack, self.lose_index, self.lose_catalog, self.remove_folder),
            *(self.notice, self.acceptance, self.human_label, self.endpoint_state, self.checkpoint, self.night_plan, self.history_look),
            *(self.other_columns, self.configure),
        ]
        deed = self.chance.choice(deeds)
        deed()
        return deed.__name__

    def result(self) -> None:
        key = {"eval": self.chance.choice(EVALS), "model": self.chance.choice(MODELS)}
        version = f"{self.chance.random()}"
        self._write("samples", key, [{"eval": key["eval"], "sample_id": "s"}], version, model=False)
        self._write("prompts", key, [{**key, "sample_id": "s", "request_id": "r", "prompt": version}], version)
        self._write("responses", key, [{**key, "sample_id": "s", "request_id": "r", "text": [version]}], version)
        rows = [{**key, "sample_id": name, "metric": "accuracy", "value": self.chance.random()} for name in "st"]
        scores = self._write("scores", key, rows, version)
        row = {**key, "metric": "accuracy", "value": self.chance.random(), "stderr": 0.1, "n": 2, "n_errors": 0, "is_headline": True}
        row |= {"scores_file": str(scores.relative_to(self.lake.root)), "higher_is_better": True, "metric_version": "1"}
        self._write("metrics", key, [row], version, inputs={"sample_scores": version})

    def judgement(self) -> None:
        now = datetime.now(UTC)
        name, key = new_name("judge", now), {"eval": self.chance.choice(EVALS), "model": "m"}
        has_aggregates = self.chance.random() < 0.5
        inputs = {"aggregates": "1"} if has_aggregates else {}
        info = FileInfo(fingerprint=name, version=name, run_id="r", materialized_at=now.isoformat(), inputs=inputs)
        row = {"suite": "nightly", "judged_at": now, "run_id": "r", **key, "metric": "accuracy", "is_change_point": True}
        if has_aggregates:
            of_all = {**row, "aggregate": "all", "value": self.chance.random()}
            path = self.lake.folder("aggregate_regressions", "nightly") / name
            write_parquet(path, table_of("aggregate_regressions", [of_all]), info)
        for table in ("sample_changes", "looks", "regressions"):
            write_parquet(self.lake.folder(table, "nightly") / name, table_of(table, [row]), info)
        write_parquet(self.lake.folder("confirmations", *key.values()) / name, table_of("confirmations", [row]), info)

    def attempt(self) -> None:
        key = {"eval": self.chance.choice(EVALS), "model": "m"}
        now = datetime.now(UTC)
        add_attempts(self.lake, [Attempt(**key, run_id="r", finished_at=now, status="ok", stage="x", message=None, cached=False)])

    def notice(self) -> None:
        self._add("notices", {"suite": "nightly", "kind": "fell", "status": self.chance.choice(("sent", "failed"))}, "suite=nightly")

    def acceptance(self) -> None:
        row = {
            "suite": "nightly",
            "eval": self.chance.choice(EVALS),
            "model": "m",
            "verdict": "fell",
            "accepted_by": "Ada",
            "why": "new data",
        }
        self._add("acceptances", row, "suite=nightly")

    def human_label(self) -> None:
        row = {"eval": self.chance.choice(EVALS), "model": "m", "sample_id": "1", "label": "right", "labelled_by": "Ada"}
        append(self.lake, "human_labels", [{**row, "labelled_at": datetime.now(UTC)}], "label")

    def endpoint_state(self) -> None:
        row = {"model": self.chance.choice(MODELS), "looked_at": datetime.now(UTC)}
        append(self.lake, "endpoint_states", [row], "run")

    def checkpoint(self) -> None:
        row = {"model": self.chance.choice(MODELS), "family": "run", "step": 1, "place": "runs/1", "seen_at": datetime.now(UTC)}
        append(self.lake, "checkpoints", [row], "run")

    def night_plan(self) -> None:
        row = {"suite": "nightly", "eval": "one", "model": self.chance.choice(MODELS), "planned_at": datetime.now(UTC), "looks": [1, 2]}
        append(self.lake, "night_plans", [row], "run")

    def history_look(self) -> None:
        row = {"eval": "one", "model": self.chance.choice(MODELS), "chosen_at": datetime.now(UTC), "sample_ids": ["a"], "chances": [0.5]}
        append(self.lake, "history_looks", [row], "run")

    def other_columns(self) -> None:
        """A file of a later release, which has a column more, or of an earlier one, which has one less."""
        table = self.chance.choice([name for name in TABLES if name not in SUITE_TABLES])
        files = sorted((self.lake.root / table).glob("**/[0-9]*.parquet"))
        if files and (path := self.chance.choice(files)) not in self.kept:
            try:
                rows = read_table(path)
            except LakeError:  # another deed damaged it
                return
            which = self.chance.choice(("more", "other", "less"))
            if which == "less":
                rows = rows.drop_columns([rows.column_names[-1]])
            elif which not in rows.column_names:
                rows = rows.append_column(which, pa.array([which] * rows.num_rows))
            write_parquet(path.with_name(new_name("other")), rows, read_info(path))

    def configure(self) -> None:
        """Another evals.yaml names other evals and models."""
        evals, models = (tuple(name for name in names if self.chance.random() < 0.6) for names in (EVALS, MODELS))
        aggregates = tuple(
            ConfiguredAggregate(
                suite="nightly",
                name=of,
                of=of,
                evals=EVALS[: self.chance.choice((1, 2, 3))],
                weights=(1.0, 2.0, 3.0),
                models=models,
                normalised=False,
                metric=self.chance.choice((None, "accuracy")),
            )
            for of in ("weighted", "median")
        )
        aggregates = tuple(replace(each, weights=each.weights[: len(each.evals)]) for each in aggregates)
        self.lake.configured = self.chance.choice((None, Configured(evals=evals, models=models, aggregates=aggregates)))

    def delete(self) -> None:
        if files := self._files():
            self.chance.choice(files).unlink()

    def damage(self) -> None:
        if files := self._files():
            path = self.chance.choice(files)
            self.kept.setdefault(path, path.read_bytes())
            self._replace(path, path.read_bytes()[:100])

    def restore(self) -> None:
        for path, content in self.kept.items():
            if path.parent.exists():
                self._replace(path, content)
        self.kept.clear()

    def write_again(self) -> None:
        """Another content under the name of a file, as nobody should."""
        files = [path for path in self._files() if path.relative_to(self.lake.root).parts[0] == "scores"]
        if len(files) > 1:
            one, other = self.chance.sample(files, 2)
            self._replace(one, other.read_bytes())

    def prune(self) -> None:
        files = self._files()
        going = self.chance.sample(files, min(3, len(files)))
        with self.lake.lock("catalog"):
            publish_locked(self.lake, archiving=False, without=going)
            for path in going[:2]:  # killed before it deleted the last one
                path.unlink()

    def foreign(self) -> None:
        if files := self._files():
            (self.chance.choice(files).parent / "mine.parquet").write_bytes(b"mine")

    def lose_pack(self) -> None:
        if found := self._packs():
            self.chance.choice(found).unlink()

    def damage_pack(self) -> None:
        if found := self._packs():
            path = self.chance.choice(found)
            path.write_bytes(path.read_bytes()[:-20])

    def lose_index(self) -> None:
        index_path(self.lake).unlink(missing_ok=True)

    def lose_catalog(self) -> None:
        catalog_path(self.lake).unlink(missing_ok=True)

    def remove_folder(self) -> None:
        if files := self._files():
            shutil.rmtree(self.chance.choice(files).parent)

    def _write(self, table: str, key: dict[str, str], rows: list[dict[str, Any]], version: str, **more: Any) -> Path:
        model = key["model"] if more.get("model", True) else None
        time = self.lake.next_time(table, key["eval"], model)
        rows = [{**row, "materialized_at": datetime.fromisoformat(time)} for row in rows]
        info = FileInfo(fingerprint=version, version=version, run_id="run", materialized_at=time, inputs=more.get("inputs", {}))
        return self.lake.write(table, table_of(table, rows), eval_name=key["eval"], model=model, info=info).path

    def _add(self, table: str, row: dict[str, Any], folder: str) -> None:
        now = datetime.now(UTC)
        name = new_name("record", now)
        info = FileInfo(fingerprint=name, version=name, run_id="r", materialized_at=now.isoformat())
        write_parquet(self.lake.root / table / folder / name, table_of(table, [row]), info)

    def _replace(self, path: Path, content: bytes) -> None:
        temporary = path.with_name(".new")
        temporary.write_bytes(content)
        temporary.replace(path)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.lake.root.glob("[!p]*/**/[0-9]*.parquet")) + sorted(
            self.lake.root.glob("prompts/**/[0-9]*.parquet")
        )

    def _packs(self) -> list[Path]:
        return sorted((self.lake.root / PACKS).glob("*/*.parquet"))


def rows_in(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The rows of each relation, in an order of their own."""
    return {name: sorted(map(repr, connection.execute(f"select * from {name}").fetchall())) for name in PUBLIC}


def made_from_nothing(lake: Lake) -> dict[str, list[str]]:
    """The rows of a catalog that is made of the files alone."""
    with closing(copied_index(Lake(lake.home / "none"))) as memory, duckdb.connect() as connection:
        index = Index(memory)
        scan(lake, index)
        build(connection, lake, index)
        return rows_in(connection)


def check(lake: Lake, deeds: list[str]) -> None:
    messages = publish(lake)
    with duckdb.connect(str(catalog_path(lake)), read_only=True) as connection:
        found = rows_in(connection)
    expected = made_from_nothing(lake)
    for name in PUBLIC:
        assert found[name] == expected[name], f"{name} after {deeds}"
    assert len(messages) == len(found["damaged_files"])
    assert sorted(publish(lake)) == sorted(messages)


def play(folder: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "FRESH", 2)
    if seed % 2:  # as in a lake whose folders changed long ago
        monkeypatch.setattr(scanning, "_COARSE_NS", 0)
    lake = Lake(folder / f"home{seed}")
    player = Player(lake, seed)
    deeds: list[str] = []
    had_packs = False
    for _ in range(3):
        player.result()
    for _ in range(steps):
        deeds.append(player.play())
        if player.chance.random() < 0.7:
            check(lake, deeds)
            had_packs = had_packs or bool(player._packs())
    check(lake, deeds)
    assert had_packs or player._packs(), "a lake of so many files has packs"


@pytest.mark.long
@few("table", [*NATIVE_TABLES, "scores", "prompts"], kept=["scores", NATIVE_TABLES[0]])
def test_a_column_goes_with_the_last_file_that_has_it(table: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    player = Player(lake, 1)
    for deed in (
        player.result,
        player.notice,
        player.acceptance,
        player.human_label,
        player.endpoint_state,
        player.checkpoint,
        player.night_plan,
        player.attempt,
    ):
        deed()
    check(lake, ["written"])
    path = max((lake.root / table).glob("**/[0-9]*.parquet"))
    rows, added = read_table(path), path.with_name(new_name("later"))
    write_parquet(added, rows.append_column("more", pa.array(["more"] * rows.num_rows)), read_info(path))
    check(lake, ["a file with one more column"])
    added.unlink()
    check(lake, ["deleted"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_catalog_brought_up_to_date_is_that_made_from_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(tmp_path, seed, STEPS, monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_many_catalogs_brought_up_to_date_are_those_made_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS, MANY_SEEDS):
        play(tmp_path, seed, 2 * STEPS, monkeypatch)
        shutil.rmtree(tmp_path / f"home{seed}")


def test_all_tables_of_a_judgement_are_compared() -> None:
    assert {name for name in SUITE_TABLES if name != "looks"} <= set(PUBLIC)
