"""Watches a server for a change of the model behind a name: one process at a time looks, and records what it saw."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.base import Known, Look
from eval_dagster.models.served.looking import Looker, Seen
from eval_dagster.models.served.model import ServedModel
from eval_dagster.models.served.watch.epochs import Epoch, EpochFile, minute
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.stores.locks import locked


class Watch:
    """Looks at one server, which is asked for one model in one way."""

    def __init__(self, name: str, config: OpenAIModel, home: Path, endpoint: str) -> None:
        """`name` is the model's in evals.yaml; `endpoint` identifies what is asked, and how."""
        self._name = name
        self._config = config
        self._lock = home / "endpoints" / "epochs" / f"{endpoint}.lock"
        self._file = EpochFile(self._lock.with_suffix(".json"), endpoint, home)
        self._epoch: Epoch | None = None

    @property
    def epoch(self) -> Epoch:
        """The epoch of the last look that this process knows."""
        if self._epoch is None:
            self._epoch = self._file.read()
        return self._epoch

    def last_facts(self) -> Mapping[str, Any] | None:
        """The server's declaration at the newest recorded look; None before the first."""
        return self._file.last_facts()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process looks, and take the epoch that it left. Two processes that see one change begin one epoch."""
        with current_reporter().track(f"canaries of {self._name}", total=1, unit="looks") as advance, locked(self._lock):
            self._epoch = self._file.read_newest()
            yield
            advance()

    def look(self, model: ServedModel, config: OpenAIModel, known: Sequence[Known], facts: Mapping[str, Any], run_id: str) -> Look:
        """Look once, and again if the first look found a change. If the second one finds it too, an epoch begins.

        Raises:
            StoppedError: No request can succeed. Nothing is recorded.
        """
        looker = Looker(model, config, known)
        rounds = [looker.look(self.epoch)]
        if rounds[0].change.is_significant:
            rounds.append(looker.look(self.epoch))
        is_changed = all(seen.change.is_significant for seen in rounds)
        before, last = self.epoch, rounds[-1]
        if is_changed and config.pin is None:
            after = before.next(last.answers(), last.at)
        else:
            after = before.after(last.answers(), last.at, is_allowed=last.is_allowed)
        message = self._message(last, before, is_changed=is_changed)
        self._file.write(
            after,
            [self._row(seen, before, facts, run_id, "a second look follows") for seen in rounds[:-1]]
            + [self._row(last, after, facts, run_id, message) | {"epoch_rose": after.number > before.number}],
            run_id,
        )
        self._epoch = after
        return Look(
            warnings=(message,) if is_changed or not last.answers() else (),
            notes={"endpoint": f"epoch {after.number}: {message}"},
            cost=math.fsum(seen.cost or 0.0 for seen in rounds),
        )

    def difference(self, model: ServedModel, config: OpenAIModel) -> str | None:
        """How the answers of another server of the model differ from the epoch's; None if they do not. Nothing is recorded."""
        looker = Looker(model, config, ())
        rounds = [looker.look(self.epoch)]
        if rounds[0].change.is_significant:
            rounds.append(looker.look(self.epoch))
        return f"its answers differ: {rounds[-1].described()}" if all(seen.change.is_significant for seen in rounds) else None

    def _row(self, seen: Seen, epoch: Epoch, facts: Mapping[str, Any], run_id: str, message: str) -> dict[str, Any]:
        return {
            "model": self._name,
            "base_url": self._config.base_url,
            "name": self._config.model,
            "run_id": run_id,
            **seen.row(),
            "message": message,
            "epoch": epoch.number,
            "epoch_began_at": epoch.began_at or seen.at,
            "epoch_rose": False,
            "facts": json.dumps(facts, sort_keys=True),
        }

    def _message(self, seen: Seen, before: Epoch, *, is_changed: bool) -> str:
        where = f"{self._config.model} at {self._config.base_url}"
        if not seen.answers():
            return (
                f"no canary was answered, so that a change of {where} is not noticed (`canaries: 0` switches them off): {seen.described()}"
            )
        if not is_changed:
            return seen.described()
        since = f" since {minute(before.began_at)} UTC" if before.began_at else ""
        changed = f"the answers of {where} changed{since} ({seen.described()})"
        if self._config.pin is None:
            return f"{changed}: another model is behind the name. All requests of {self._name} are asked anew, in epoch {before.number + 1}"
        return f"{changed}. Earlier answers of {self._name} stay valid because `pin` is set; change `pin` if it is another model"
