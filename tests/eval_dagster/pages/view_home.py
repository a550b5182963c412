"""A home whose results a test chooses text by text, and the pages of `eval-dagster view` over it."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.pages.server.application import Refresher, application

AT = datetime(2026, 3, 2, 5, tzinfo=UTC)
KEY = {"eval": "trivia", "model": "mine"}
Rows = Sequence[Mapping[str, Any]]


class Home:
    """A lake to which results are written, and its pages."""

    def __init__(self, folder: Path, refresher: Refresher | None = None) -> None:
        self.lake = Lake(folder)
        self.reader = CatalogReader(self.lake)
        self.client = TestClient(application(self.reader, refresher), base_url="http://127.0.0.1:4000")

    def write(
        self,
        scores: Mapping[str, Sequence[float | None]],
        *,
        model: str = "mine",
        at: datetime = AT,
        higher_is_better: bool | None = True,
        prompts: Rows = (),
        responses: Rows = (),
        of_scores: Rows = (),
    ) -> None:
        """Write a result: the values of each metric by sample, and what else the samples have."""
        key = {**KEY, "model": model}
        count = len(next(iter(scores.values())))

        def rows(more: Rows, **common: Any) -> list[dict[str, Any]]:
            return [{**key, "sample_id": f"s{n}", **common, **(more[n] if n < len(more) else {})} for n in range(count)]

        versions = {"dataset_snapshot": "d" * 16, "rendered_prompts": "p" * 16, "model": "m" * 16, "model_content": "c" * 16}
        asked = {"messages": json.dumps([{"role": "user", "content": "What?"}]), "prompt": "What?", "response_type": "completion"}
        self._write("prompts", rows(prompts, **asked), at, versions, "p" * 16)
        self._write("responses", rows(responses, text=["yes"]), at, versions, f"r-{model}")
        values = [
            {**row, "metric": metric, "value": value, "source_id": row["sample_id"]}
            for metric, of_samples in scores.items()
            for row, value in zip(rows(of_scores), of_samples, strict=True)
        ]
        path = self._write("scores", values, at, versions | {"model_outputs": f"r-{model}"}, f"s-{model}")
        common = {**key, "aggregation": "micro", "value": 0.5, "n": count, "n_errors": 0, "higher_is_better": higher_is_better}
        common |= {"materialized_at": at, "dagster_run_id": "r", "scores_file": str(path.relative_to(self.lake.root))}
        common |= {"prompt_version": "p" * 16, "model_version": "m" * 16, "metric_version": "1" * 16}
        means = [{**common, "metric": metric, "is_headline": place == 0} for place, metric in enumerate(scores)]
        self._write("metrics", means, at, versions | {"sample_scores": f"s-{model}"}, f"x-{model}")
        publish(self.lake)

    def _write(self, table: str, rows: list[dict[str, Any]], at: datetime, inputs: dict[str, str], version: str) -> Path:
        info = FileInfo(
            fingerprint=version, version=version, run_id="r", materialized_at=at.isoformat(timespec="microseconds"), inputs=inputs
        )
        return self.lake.write(table, table_of(table, rows), eval_name=rows[0]["eval"], model=rows[0]["model"], info=info).path

    def get(self, address: str, status: int = 200) -> str:
        answer = self.client.get(address)
        assert answer.status_code == status, answer.text
        return answer.text

    def found(self, query: str) -> list[str]:
        """The samples of the first part of a list of the model `mine`."""
        return re.findall(r"sample=(s\d+)", self.get(f"/samples?eval=trivia&model=mine&{query}"))

    def offered(self, query: str = "", name: str = "show") -> list[str]:
        """The choices of a field of the form."""
        text = self.get(f"/samples?eval=trivia&model=mine&{query}")
        field = re.search(rf'<select name="{name}">(.*?)</select>', text, re.DOTALL)
        assert field is not None
        return re.findall(r'<option value="([^"]+)"', field[1])
