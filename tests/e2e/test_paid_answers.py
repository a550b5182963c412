"""A run that asks a server is interrupted: the answers under way, which are paid for, arrive first."""

import signal
import time
from pathlib import Path

import pytest
from servers.stub import stub_server
from workplaces import Workplace, wait_until

pytestmark = pytest.mark.e2e

CONFIG = """
    models:
      served: {{backend: openai, base_url: {url}, model: stub, canaries: 0, concurrency: 8}}
    evals:
      sums: {{task: arithmetic, limit: 12}}
"""
NEEDED = 36


@pytest.mark.long
@pytest.mark.timeout(200)
def test_sigterm_lets_the_answers_under_way_arrive(tmp_path: Path) -> None:
    with stub_server(tmp_path, slots=8, base_s=0.2, mean_tokens=8) as stub:
        place = Workplace(tmp_path, CONFIG.format(url=stub.base_url))
        process = place.start()
        wait_until(lambda: len(stub.counts().received) >= 12, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130, place.output()
        counts = stub.counts()
        assert counts.received == counts.answered
        asked = len(counts.received)
        assert 12 <= asked < NEEDED, "no request is begun after the signal"
        assert len(place.flushed()) == asked, "a paid answer was lost"
        assert "waits for the answers that are under way" in place.output()
        stub.change(slots=0)
        assert place.start().wait(timeout=120) == 0, place.output()
        assert set(stub.counts().received.values()) == {1}
        assert len(stub.counts().received) == NEEDED


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_second_signal_leaves_them(tmp_path: Path) -> None:
    with stub_server(tmp_path, slots=8, base_s=30) as stub:
        place = Workplace(tmp_path, CONFIG.format(url=stub.base_url))
        process = place.start()
        wait_until(lambda: len(stub.counts().received) >= 8, process)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "waits for the answers" in place.output(), process)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(timeout=60) == 130, place.output()
        assert time.monotonic() - began < 20
