"""The level that is found, by its throughput against the best fixed one on a simulated server."""

import pytest
from simulated_server import SimulatedServer, evaluate

from eval_dagster.models.served.pace.concurrency import ConcurrencyLevel
from eval_dagster.models.served.pace.pacing import PaceSettings

SHARE = 0.85
SERVERS = {"64 slots": ((64, 0.02, 0.0003), 1500), "256 slots": ((256, 0.02, 0.0001), 4000), "4 slots": ((4, 0.02, 0.004), 300)}


def seconds_of_best(name: str, seed: int, at_once: int | None = None) -> float:
    """Of as many requests under way as the server has slots or accepts: fewer leave slots empty, more only wait."""
    numbers, count = SERVERS[name]
    return evaluate(PaceSettings(fixed=at_once or numbers[0]), SimulatedServer(*numbers), count, seed=seed).seconds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SERVERS)
def test_throughput_is_near_that_of_the_best_fixed_level(name: str, seed: int) -> None:
    numbers, count = SERVERS[name]
    found = evaluate(PaceSettings(), SimulatedServer(*numbers), count, seed=seed)
    assert seconds_of_best(name, seed) / found.seconds > SHARE


@pytest.mark.parametrize("retry_after_s", [None, 5.0])
@pytest.mark.parametrize(("name", "bound"), [("64 slots", 24), ("256 slots", 200), ("4 slots", 3)])
def test_throughput_is_near_the_best_where_a_server_rejects_more_than_a_bound(name: str, bound: int, retry_after_s: float | None) -> None:
    numbers, count = SERVERS[name]
    found = evaluate(PaceSettings(), SimulatedServer(*numbers, bound=bound), count, retry_after_s=retry_after_s)
    assert seconds_of_best(name, 0, bound) / found.seconds > SHARE
    assert 0 < found.server.rejected < bound + 20
    assert bound * 0.75 <= found.level <= bound * 1.25


def test_a_server_gets_no_long_queue() -> None:
    server = SimulatedServer(64)
    evaluate(PaceSettings(), server, 3000)
    assert server.most_under_way <= 2 * 64


def test_the_level_is_found_where_tokens_hardly_predict_times() -> None:
    numbers, count = SERVERS["64 slots"]
    found = evaluate(PaceSettings(), SimulatedServer(*numbers), count, work=lambda length: 800 + length)
    assert seconds_of_best("64 slots", 0) / found.seconds > 0.8


def test_the_level_rises_again_where_a_server_accepts_more_than_before() -> None:
    class Growing(SimulatedServer):
        async def answer(self, length: int) -> None:
            self.bound = None if len(self.sent) > 600 else 10
            await super().answer(length)

    assert evaluate(PaceSettings(), Growing(64), 6000).level >= 48


def test_the_level_keeps_within_its_limits() -> None:
    server = SimulatedServer(64)
    evaluate(PaceSettings(most=20), server, 500)
    assert server.most_under_way == 20


def test_a_fixed_level_stays_after_pushback() -> None:
    found = evaluate(PaceSettings(fixed=16), SimulatedServer(64, bound=12), 300)
    assert found.level == 16
    assert found.server.rejected > 4


def test_the_level_halves_once_for_requests_that_were_under_way_together() -> None:
    level = ConcurrencyLevel(start=64)
    assert [level.pushed_back(1.0, 64 - sent) for sent in range(24)] == [True] + [False] * 23
    assert (level.level, level.ceiling) == (32, 40)
    for _ in range(40):
        level.failed()
    assert level.pushed_back(5.0, 32)
    assert level.level == 16


def test_the_level_rises_by_one_an_answer_up_to_what_was_accepted() -> None:
    level = ConcurrencyLevel(start=64)
    for sent in range(24):
        level.pushed_back(1.0, 64 - sent)
    levels = []
    for number in range(12):
        level.answered(2.0 + number, 0.0, 100, 40 - number)
        levels.append(level.level)
    assert levels == [33, 34, 35, 36, 37, 38, 39, 40, 40, 40, 40, 40]


def test_answers_show_nothing_where_few_requests_are_under_way() -> None:
    level = ConcurrencyLevel(start=8)
    for number in range(100):
        level.answered(number + 1.0, float(number), 100, 5)
    assert level.level == 8
    for number in range(100, 104):
        level.answered(number + 1.0, float(number), 100, 8)
    assert level.level == 16


def test_a_process_that_does_not_lead_follows() -> None:
    level = ConcurrencyLevel(start=8)
    level.leads = False
    level.shared_among(0.0, 3)
    for number in range(100):
        level.answered(number + 1.0, float(number), 100, 2)
    assert (level.level, level.share) == (8, 2)
    level.follow(100.0, 100, None)
    assert (level.level, level.share) == (100, 33)
