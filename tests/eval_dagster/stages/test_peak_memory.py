"""The most memory that a block takes."""

import time

from eval_dagster.stages.peak_memory import ON_CPU, PeakMemory

MEBIBYTE = 2**20


def test_memory_that_is_given_back_before_the_end_is_seen() -> None:
    with PeakMemory() as memory:
        held = bytearray(200 * MEBIBYTE)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.2)
        del held
        time.sleep(0.1)
    assert 190 * MEBIBYTE < memory.bytes < 400 * MEBIBYTE
    assert memory.measured == ON_CPU


def test_what_was_there_before_does_not_count() -> None:
    held = bytearray(b"x") * (200 * MEBIBYTE)
    with PeakMemory() as memory:
        time.sleep(0.15)
    assert 0 <= memory.bytes < 50 * MEBIBYTE
    assert held
