"""The response cache: every answer a model ever gave, by model version and request.

Files live in `lake/response_cache/model_version=<version>/`, flushed every few seconds while a model works, so that a killed run
loses at most one flush. The version stands for everything that can change an answer, so an answer found here is the answer.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog import rows_of
from eval_dagster.lake.damage import damage_named, damages_of, require_sound
from eval_dagster.lake.files import Lake, new_name, parquet_files, write_parquet
from eval_dagster.lake.rows import to_table
from eval_dagster.lake.schemas import RESPONSE_CACHE
from eval_dagster.records import ModelResponse
from eval_dagster.visible_text import is_storable, storable

_MERGE_ABOVE = 24
_SMALL_BYTES = 16 * 2**20
_ONE_EACH = "qualify row_number() over (partition by request_id order by latency_s, hash(choice_logprobs), hash(text)) = 1"
"""Processes at work at once may both have asked: which answer counts must not depend on the order of files."""


class ResponseCache:
    """Answers under one model version."""

    def __init__(self, lake: Lake, model_version: str) -> None:
        self._lake = lake.answers
        self._model_version = model_version
        self.folder = self._lake.root / "response_cache" / f"model_version={model_version}"
        """The folder of its files."""

    def find(self, request_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """The stored rows of those requests that have one.

        Raises:
            LakeError: A file of the cache is damaged.
        """
        if not request_ids:
            return {}
        wanted = pa.table({"request_id": pa.array(sorted(request_ids), pa.string())})
        query = (
            "select c.* from read_parquet($files, union_by_name = true) c semi join wanted using (request_id) "
            f"where model_version = $version {_ONE_EACH}"
        )
        for _ in range(5):
            files = parquet_files(self.folder)
            if not files:
                return {}
            _require_sound(files)
            with duckdb.connect() as connection:
                connection.register("wanted", wanted)
                try:
                    result = connection.execute(query, {"files": list(map(str, files)), "version": self._model_version})
                    return {row["request_id"]: row for row in rows_of(result)}
                except duckdb.Error as error:
                    _require_sound(files, decoding=True)
                    if all(path.exists() for path in files):
                        raise LakeError(f"the response cache {self.folder} cannot be read ({str(error).splitlines()[0]})") from error
        raise LakeError(f"the response cache {self.folder} kept changing while it was read; run again")

    def add(self, rows: Iterable[Mapping[str, Any]], run_id: str) -> None:
        """Flush answers to a new file."""
        write_parquet(self.folder / new_name(run_id), to_table(list(rows), RESPONSE_CACHE))

    def merge(self, run_id: str) -> None:
        """Turn many small files into one; the small ones go once the large one is there."""
        if len(self._small_files()) <= _MERGE_ABOVE:
            return
        with self._lake.lock(f"merge-{self._model_version}"):
            files = self._small_files()
            tables = [_read(file) for file in files]
            write_parquet(self.folder / new_name(run_id), pa.concat_tables(tables))
            for file in files:
                file.unlink(missing_ok=True)

    def _small_files(self) -> list[Path]:
        return [path for path in parquet_files(self.folder) if path.exists() and path.stat().st_size < _SMALL_BYTES]


def _require_sound(files: Sequence[Path], *, decoding: bool = False) -> None:
    """Raise `LakeError` where a file is damaged; one that is gone was merged into another by another process."""
    for path, damage in damages_of(files, decoding=decoding).items():
        if Path(path).exists():
            raise LakeError(damage)


def _read(path: Path) -> pa.Table:
    require_sound(path)
    with damage_named(path):
        return pq.read_table(path, schema=RESPONSE_CACHE)


def to_row(request_id: str, response: ModelResponse, model_version: str) -> dict[str, Any]:
    """A response as a row of the cache and, with eval, model and sample, of the table `responses`."""
    return {
        "request_id": request_id,
        # A server can answer half of a character, which no file holds: what is stored is what is scored.
        "text": [storable(text) for text in response.text],
        "text_is_escaped": not all(map(is_storable, response.text)),
        "input": response.input if response.truncated_tokens_count else None,
        # A perplexity's logprobs are those of its tokens: in this table it is one choice.
        "choice_logprobs": [math.fsum(values) for values in response.token_logprobs] or list(response.logprobs),
        "choice_token_logprobs": [list(values) for values in response.token_logprobs],
        "choice_is_greedy": list(response.argmax_logits_eq_gold),
        "unconditioned_logprobs": _listed(response.unconditioned_logprobs),
        "logits": None if response.logits is None else [list(values) for values in response.logits],
        "input_token_ids": list(response.input_tokens),
        "output_token_ids": [list(tokens) for tokens in response.output_tokens],
        "prompt_tokens": len(response.input_tokens),
        "output_tokens": sum(len(tokens) for tokens in response.output_tokens),
        "truncated_tokens": response.truncated_tokens_count,
        "padded_tokens": response.padded_tokens_count,
        "finish_reason": list(response.finish_reason),
        "latency_s": response.latency_s,
        "model_version": model_version,
        "error": response.error,
    }


def _listed(values: Sequence[float] | None) -> list[float] | None:
    return None if values is None else list(values)
