"""Interrupts a run that asks a server when the answers under way have arrived, since they are paid for."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from eval_dagster.models.base import EndingModel, Model
from eval_dagster.progress.reporting import Reporter

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def late_interruption(loaded: Model, reporter: Reporter) -> Iterator[None]:
    """Within the block, the first SIGINT or SIGTERM ends the model's work as `EndingModel` does, and takes effect after the block.

    A second signal takes effect at once. A model that computes in this process is interrupted at once, as are blocks in other threads
    than the main one, which receive no signals.
    """
    if not isinstance(loaded, EndingModel) or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
    received: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, _frame: FrameType | None) -> None:
        restore()
        received.append(number)
        loaded.end()
        # In a thread of its own, because the interrupted code may hold the lock of the reporter.
        note = "interrupted: waits for the answers that are under way; interrupt again to leave them"
        threading.Thread(target=reporter.note, args=(note,), daemon=True).start()

    for number in _SIGNALS:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])
