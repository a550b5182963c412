"""When requests are sent: order, pauses, rates and cancelled tasks, in simulated time."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest
from simulated_server import SimulatedServer, evaluate, run_simulated

from eval_dagster.models.served.pace.pacing import Pace, PaceSettings


def in_pace(settings: PaceSettings, main: Callable[[Pace], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Pace(settings, seed=0) as pace:
            await main(pace)

    run_simulated(run)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_that_waits_is_sent_first() -> None:
    async def main(pace: Pace) -> None:
        sent: list[int] = []

        async def one(number: int) -> None:
            await pace.wait(10)
            sent.append(number)
            await asyncio.sleep(random.Random(number).random())
            pace.answered(10)

        await asyncio.gather(*(one(number) for number in range(50)))
        assert sent == list(range(50))

    in_pace(PaceSettings(fixed=3), main)


def test_a_place_is_freed_by_each_end_of_a_request() -> None:
    async def main(pace: Pace) -> None:
        for end in (lambda: pace.answered(1), pace.failed, lambda: pace.pushed_back(None)):
            await pace.wait(1)
            assert pace.under_way == 1
            end()
            assert pace.under_way == 0

    in_pace(PaceSettings(fixed=1), main)


def test_a_person_sees_what_is_under_way_and_how_long_a_pause_lasts() -> None:
    async def main(pace: Pace) -> None:
        await pace.wait(1)
        await pace.wait(1)
        assert pace.state() == "2 at once"
        pace.pushed_back(20.0)
        assert pace.state().startswith("the server asks to wait 2")

    in_pace(PaceSettings(fixed=4), main)


def test_a_request_that_ends_twice_is_refused() -> None:
    async def main(pace: Pace) -> None:
        await pace.wait(1)
        pace.answered(1)
        with pytest.raises(AssertionError, match="has an end already"):
            pace.failed()

    in_pace(PaceSettings(), main)


def test_a_task_may_end_a_request_that_another_one_waited_for() -> None:
    async def main(pace: Pace) -> None:
        async def end(seconds: float) -> None:
            await asyncio.sleep(seconds)
            pace.answered(1)

        async with asyncio.TaskGroup() as group:
            for seconds in (3.0, 1.0, 2.0):
                await pace.wait(1)
                group.create_task(end(seconds))
        assert pace.under_way == 0

    in_pace(PaceSettings(), main)


def test_cancelled_requests_hold_no_place() -> None:
    async def main(pace: Pace) -> None:
        await pace.wait(1)
        waiting = [asyncio.create_task(pace.wait(1)) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        await settle()
        pace.answered(1)  # gives the place to the second
        waiting[1].cancel()  # before its task goes on
        await settle()
        assert [task.cancelled() for task in waiting] == [True, True, False]
        assert waiting[2].done()
        assert pace.under_way == 1

    in_pace(PaceSettings(fixed=1), main)


def test_nothing_is_sent_before_retry_after_and_then_one_by_one() -> None:
    server = SimulatedServer(64, closed=(30.0, 30.2))
    evaluate(PaceSettings(fixed=64), server, 1500, retry_after_s=20.0)
    rejected_at = min(sent for sent in server.sent if sent >= 30.0) + 0.05
    after = sorted(sent for sent in server.sent if sent > rejected_at)
    assert rejected_at + 20 <= after[0] <= rejected_at + 26
    for first in after:
        if first < after[0] + 1.5:
            assert sum(first <= sent < first + 0.25 for sent in after) <= 64 / 8 + 1


@pytest.mark.parametrize("seed", range(3))
def test_one_long_retry_after_does_not_freeze_the_others(seed: int) -> None:
    undisturbed = evaluate(PaceSettings(), SimulatedServer(64), 1500, seed=seed)
    found = evaluate(PaceSettings(), SimulatedServer(64, closed=(50.0, 50.5)), 1500, seed=seed, retry_after_s=86_400.0)
    assert found.server.rejected > 0
    assert found.seconds < undisturbed.seconds + 60 + 5 + 15


def test_pauses_grow_while_a_server_rejects_everything() -> None:
    server = SimulatedServer(64, closed=(0.0, 600.0))
    found = evaluate(PaceSettings(), server, 300)
    assert found.seconds < 720
    assert server.rejected < 40
    assert found.level >= 32


@pytest.mark.parametrize(("every", "level"), [(10, 64), (2, 32)])
def test_broken_connections_lower_the_level_where_they_are_many(every: int, level: int) -> None:
    async def main(pace: Pace) -> None:
        for number in range(1, 41):
            await pace.wait(1)
            if number % every:
                pace.answered(1)
            else:
                pace.broke_off()
            if pace.level < 64:
                break
        assert pace.level == level

    in_pace(PaceSettings(start=64, most=64), main)


def test_pauses_of_processes_differ() -> None:
    async def pause(seed: int) -> float:
        async with Pace(PaceSettings(), seed=seed) as pace:
            await pace.wait(1)
            began = now()
            pace.pushed_back(10.0)
            await pace.wait(1)
            pace.failed()
            return now() - began

    pauses = [run_simulated(lambda seed=seed: pause(seed)) for seed in range(20)]
    assert 10 <= min(pauses) < max(pauses) <= 15
    assert max(pauses) - min(pauses) > 2


@pytest.mark.parametrize(
    ("settings", "minutes"),
    [(PaceSettings(requests_per_minute=120), 500 / 120), (PaceSettings(tokens_per_minute=12_000), 500 * 100 / 12_000)],
)
def test_rates_limit_what_is_sent(settings: PaceSettings, minutes: float) -> None:
    async def main(pace: Pace) -> None:
        async def one() -> None:
            await asyncio.sleep(1)
            pace.answered(100)

        async with asyncio.TaskGroup() as group:
            for _ in range(500):
                await pace.wait(300)
                group.create_task(one())
        assert minutes - 0.2 < now() / 60 < minutes * 1.06

    in_pace(settings, main)


def test_the_level_does_not_move_while_a_rate_is_what_limits() -> None:
    assert evaluate(PaceSettings(requests_per_minute=60), SimulatedServer(64), 200).level == 8


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_request_costs_little(is_queued: bool) -> None:
    """Both calls together: 60 µs of CPU would be 12 % of a core at 2,000 requests a second."""
    count = 5_000

    async def one(pace: Pace) -> None:
        for _ in range(count // 100):
            await pace.wait(100)
            if is_queued:
                await asyncio.sleep(0)
            pace.answered(100)

    async def main() -> float:
        settings = PaceSettings(fixed=50 if is_queued else None, requests_per_minute=10**9, tokens_per_minute=10**12)
        async with Pace(settings) as pace:
            began = time.process_time()
            await asyncio.gather(*(one(pace) for _ in range(100)))
            return (time.process_time() - began) / count

    assert asyncio.run(main()) < 120e-6


def test_a_server_that_rejects_a_third_of_the_requests_is_not_left_alone() -> None:
    async def main(pace: Pace) -> None:
        chance, ended = random.Random(0), [0]

        async def one() -> None:
            while True:
                await pace.wait(10)
                await asyncio.sleep(0.1)
                if chance.random() < 1 / 3:
                    pace.pushed_back(1.0)
                    await asyncio.sleep(1.0)
                else:
                    pace.answered(10)
                    ended[0] += 1
                    return

        await asyncio.gather(*(one() for _ in range(40)))
        assert ended == [40]
        assert now() < 15

    in_pace(PaceSettings(), main)
