"""The workers of a run that is killed ask the model no more: nobody would get the answers."""

import signal
import textwrap
import time
from pathlib import Path

import pytest
from workplaces import Workplace

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CONFIG = """
    models:
      slow: {backend: scripted, function: "answer.py:answer", workers: {count: 2, cpus: 0.5}}
    evals:
      sums: {task: arithmetic}
"""
ANSWER = """
    import time
    from pathlib import Path

    LOG = Path("FOLDER/asked.log")

    def answer(request):
        with LOG.open("a") as log:
            log.write(f"{time.time()}\\n")
        time.sleep(0.3)
        return " 7"
"""


@pytest.mark.timeout(300)
def test_they_ask_no_more(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'eval_dagster[ray]'")
    place = Workplace(tmp_path, CONFIG)
    (tmp_path / "answer.py").write_text(textwrap.dedent(ANSWER).replace("FOLDER", str(tmp_path)))
    process = place.start()
    deadline = time.monotonic() + 200
    while len(place.asked()) < 10:
        assert process.poll() is None, place.output()
        assert time.monotonic() < deadline, place.output()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed_at = time.time()
    time.sleep(8)
    late = [asked for asked in map(float, place.asked()) if asked > killed_at]
    assert len(late) <= 2, "more than one request of each worker was asked after the kill"
