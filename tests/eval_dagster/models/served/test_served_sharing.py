"""Processes that share an endpoint."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_server import SimulatedServer, answer_all, evaluate, lengths, run_simulated

from eval_dagster.models.served.pace import pacing
from eval_dagster.models.served.pace.pacing import Pace, PaceSettings, SharedEndpoint, SharedState

PROCESS = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from eval_dagster.models.served.pace.pacing import SharedEndpoint, SharedState

endpoint = SharedEndpoint(Path(sys.argv[1]))
endpoint.join()
for line in sys.stdin:
    share = endpoint.exchange(SharedState(**json.loads(line)))
    print(json.dumps({"holders": share.holders, "leads": share.leads, "level": share.state.level}), flush=True)
endpoint.leave()
"""


class OtherProcess:
    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", PROCESS, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def exchange(self, **state: float) -> dict[str, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(state) + "\n")
        self.process.stdin.flush()
        answer: dict[str, int] = json.loads(self.process.stdout.readline())
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def holders(folder: Path) -> int:
    return len(list(folder.glob("*.holder")))


@pytest.mark.long
def test_processes_share_a_level_and_a_killed_one_frees_its_part(tmp_path: Path) -> None:
    first, second = OtherProcess(tmp_path), None
    try:
        assert first.exchange(level=64) == {"holders": 1, "leads": True, "level": 64}
        second = OtherProcess(tmp_path)
        assert second.exchange(level=8) == {"holders": 2, "leads": False, "level": 64}
        assert first.exchange(level=128) == {"holders": 2, "leads": True, "level": 128}
        assert second.exchange(level=64, pushed_back_at=time.time()) == {"holders": 2, "leads": False, "level": 64}
        assert first.exchange(level=128)["level"] == 64
        first.kill()
        assert holders(tmp_path) == 2
        assert second.exchange(level=70, pushed_back_at=time.time()) == {"holders": 1, "leads": True, "level": 70}
        assert holders(tmp_path) == 1
        second.end()
        assert holders(tmp_path) == 0
    finally:
        for process in filter(None, (first, second)):
            process.kill()


def test_a_damaged_file_of_the_level_is_replaced(tmp_path: Path) -> None:
    for text in ("", "{", '{"level": 3, "other": 1}', "[]"):
        (tmp_path / "level.json").write_text(text)
        endpoint = SharedEndpoint(tmp_path)
        assert endpoint.join() is None
        assert endpoint.exchange(SharedState(level=16)).state.level == 16
        endpoint.leave()
        assert json.loads((tmp_path / "level.json").read_text())["level"] == 16


@pytest.mark.parametrize(("kept", "age_s", "level"), [(200, 3600, 100), (200, 0, 200), (10, 3600, 8), (3, 3600, 3), (5000, 3600, 1024)])
def test_a_run_begins_near_the_level_of_the_last_one(tmp_path: Path, kept: int, age_s: float, level: int) -> None:
    endpoint = SharedEndpoint(tmp_path)
    endpoint.join()
    endpoint.exchange(SharedState(level=kept, seen_at=time.time() - age_s))
    endpoint.leave()

    async def main() -> int:
        async with Pace(PaceSettings(), tmp_path) as pace:
            return pace.level

    assert asyncio.run(main()) == level
    assert json.loads((tmp_path / "level.json").read_text())["level"] == level


def test_paces_share_level_rate_pushback_and_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_EXCHANGE_S", 0.01)

    async def sent(pace: Pace) -> int:
        """Requests that are sent while none is answered."""
        tasks = [asyncio.create_task(pace.wait(1)) for _ in range(64)]
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return sum(not task.cancelled() for task in tasks)

    async def main() -> None:
        settings = PaceSettings(start=40, longest_pause_s=0.5)
        async with Pace(settings, tmp_path, seed=0) as first, Pace(settings, tmp_path, seed=0) as second:
            await asyncio.sleep(0.1)
            assert (await sent(first), await sent(second)) == (20, 20)
        async with Pace(settings, tmp_path, seed=0) as first, Pace(settings, tmp_path, seed=0) as second:
            await second.wait(1)
            second.pushed_back(30.0)
            await asyncio.sleep(0.1)
            assert first.level == 20
            began = time.monotonic()
            await first.wait(1)
            assert 0.2 < time.monotonic() - began < 5
            first.failed()

    asyncio.run(main())


def test_a_pause_that_no_process_can_have_asked_for_is_ignored(tmp_path: Path) -> None:
    endpoint = SharedEndpoint(tmp_path)
    endpoint.join()
    endpoint.exchange(SharedState(level=8, paused_until=time.time() + 86_400))
    endpoint.leave()

    async def main() -> None:
        async with Pace(PaceSettings(), tmp_path) as pace:
            await asyncio.wait_for(pace.wait(1), 5)

    asyncio.run(main())


def test_a_disk_that_is_full_ends_the_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_EXCHANGE_S", 0.01)

    async def main() -> None:
        async with Pace(PaceSettings(), tmp_path) as pace:
            (tmp_path / "lock").unlink()
            (tmp_path / "lock").mkdir()
            await asyncio.sleep(0.1)
            await pace.wait(1)

    with pytest.raises(IsADirectoryError):
        asyncio.run(main())


@pytest.fixture
def simulated_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges take 0.8 s, and the clock of the machine is the simulated one."""

    async def to_thread(function: Any, *arguments: Any) -> Any:
        result = function(*arguments)
        await asyncio.sleep(0.8)
        return result

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(pacing, "time", SimpleNamespace(time=lambda: 1e9 + asyncio.get_running_loop().time(), time_ns=time.time_ns))


@pytest.mark.long
@pytest.mark.usefixtures("simulated_clock")
@pytest.mark.parametrize("bound", [None, 24])
def test_two_processes_together_are_as_fast_as_the_best_fixed_level(tmp_path: Path, bound: int | None) -> None:
    async def run(server: SimulatedServer, answers: list[int], ends: list[float]) -> None:
        async with Pace(PaceSettings(), tmp_path, seed=0) as pace:
            await answer_all(pace, server, answers)
        ends.append(asyncio.get_running_loop().time())

    async def main() -> list[float]:
        server, ends = SimulatedServer(64, bound=bound), list[float]()
        await asyncio.gather(run(server, lengths(1500, 0)[::2], ends), run(server, lengths(1500, 0)[1::2], ends))
        return ends

    first, second = run_simulated(main)
    best = evaluate(PaceSettings(fixed=bound or 64), SimulatedServer(64), 1500).seconds
    assert best / second > 0.85
    assert first / second > 0.7  # both advance


@pytest.mark.usefixtures("simulated_clock")
def test_an_exchange_leaves_the_level_that_was_found_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with Pace(PaceSettings(), tmp_path, seed=0) as pace:
            work = asyncio.create_task(answer_all(pace, SimulatedServer(64), lengths(500, 0)))
            levels = [pace.level]
            async with asyncio.timeout(60):
                while pace.level < 64:
                    await asyncio.sleep(0.01)
                    levels.append(pace.level)
            assert levels == sorted(levels)
            await work

    run_simulated(main)


@pytest.mark.usefixtures("simulated_clock")
def test_a_process_has_the_whole_level_when_the_other_one_ends(tmp_path: Path) -> None:
    async def main() -> None:
        server = SimulatedServer(64)
        async with Pace(PaceSettings(), tmp_path, seed=0) as first:
            work = asyncio.create_task(answer_all(first, server, lengths(3000, 0)))
            await asyncio.sleep(100)
            level = first.level
            async with Pace(PaceSettings(), tmp_path, seed=1) as second:
                await asyncio.sleep(30)
                assert first.under_way <= first.level // 2
                assert second.level == first.level
            await asyncio.sleep(10)
            assert first.under_way >= 0.7 * level
            await work

    run_simulated(main)
