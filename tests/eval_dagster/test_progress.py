import io
import re
import time
from collections.abc import Iterator

import pytest

from eval_dagster.progress.bars import RichReporter
from eval_dagster.progress.reporting import (
    CombinedReporter,
    LogReporter,
    Reporter,
    SilentReporter,
    Work,
    current_reporter,
    following,
    use_reporter,
)
from eval_dagster.texts.terminal import PlainConsole


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that `time.monotonic` gives, in a list so that a test can move it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_log_reporter_writes_a_line_every_few_seconds_and_a_closing_one(lines: list[str], clock: list[float]) -> None:
    with LogReporter(lines.append, every_s=5).track("model_outputs smol", total=400, unit="requests") as advance:
        for _ in range(16):
            clock[0] += 1
            advance(25)
    assert lines == [
        "model_outputs smol: 125/400 requests (31%), 25/s, 0:11 left",
        "model_outputs smol: 250/400 requests (62%), 25/s, 0:06 left",
        "model_outputs smol: 375/400 requests (94%), 25/s, 0:01 left",
        "model_outputs smol: 400 requests in 16.0 s (25/s)",
    ]


def test_log_reporter_tells_long_times_in_hours_and_high_rates_plainly(lines: list[str], clock: list[float]) -> None:
    with LogReporter(lines.append, every_s=5).track("score", total=10_000_000, unit="samples") as advance:
        clock[0] += 10
        advance(12_345)
        clock[0] += 10
        advance(10_000_000 - 12_345)
    assert lines == ["score: 12345/10000000 samples (0%), 1,234/s, 2:14:50 left", "score: 10000000 samples in 20.0 s (500,000/s)"]


def test_work_that_fails_is_said_to_have_stopped_and_the_error_travels_on(lines: list[str], clock: list[float]) -> None:
    def work() -> None:
        with LogReporter(lines.append).track("score", total=10, unit="samples") as advance:
            clock[0] += 2
            advance(4)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        work()
    assert lines == ["score: stopped after 4/10 samples in 2.0 s (2/s)"]


def test_tokens_a_second_stand_beside_the_units(lines: list[str], clock: list[float]) -> None:
    computed = [0]
    with LogReporter(lines.append, every_s=5).track("model", total=4, unit="requests", work=lambda: Work(tokens=computed[0])) as advance:
        clock[0] += 10
        advance(0)
        computed[0] = 12_000
        clock[0] += 10
        advance(2)
        clock[0] += 4
        advance(2)
    assert lines == [
        "model: 0/4 requests (0%), 0:10 so far",
        "model: 2/4 requests (50%), 0.1/s, 600 tokens/s, 0:20 left",
        "model: 4 requests in 24.0 s (0.167/s, 500 tokens/s)",
    ]


def test_the_cost_and_the_state_of_a_server_stand_at_the_end(lines: list[str], clock: list[float]) -> None:
    work = Work(tokens=0, cost=0.0123, cost_estimated=2, state="the server asks to wait 12 s")
    with LogReporter(lines.append, every_s=5).track("model", total=2, unit="requests", work=lambda: work) as advance:
        clock[0] += 10
        advance()
    assert lines[0] == "model: 1/2 requests (50%), 0.1/s, $0.0123 (2 calls estimated), the server asks to wait 12 s, 0:10 left"


def test_lines_come_while_nothing_gets_done(lines: list[str]) -> None:
    started = time.monotonic()
    tokens = iter(range(500, 100_000, 500))
    with LogReporter(lines.append, every_s=0.1).track("model", total=2, unit="requests", work=lambda: Work(tokens=next(tokens))):
        time.sleep(1)
        running = list(lines)
    assert 3 <= len(running) <= (time.monotonic() - started) / 0.1, "not more often than asked for"
    for line in running:
        assert re.fullmatch(r"model: 0/2 requests \(0%\), [\d,]+ tokens/s, 0:0\d so far", line)
    assert len(lines) == len(running) + 1
    time.sleep(0.3)
    assert len(lines) == len(running) + 1, "the work is over"


@pytest.mark.parametrize("terminal", [True, False])
def test_work_with_nothing_to_do_is_not_reported(lines: list[str], terminal: bool) -> None:
    output = io.StringIO()
    console = PlainConsole(file=output, force_terminal=terminal)
    reporter = CombinedReporter(LogReporter(lines.append), RichReporter(console))
    with reporter.track("score", total=0, unit="samples") as advance:
        advance(0)
    assert lines == []
    assert output.getvalue() == ""


def test_rich_reporter_draws_bars_that_stay(lines: list[str]) -> None:
    output = io.StringIO()
    reporter = RichReporter(PlainConsole(file=output, force_terminal=True, width=120))
    with reporter.track("suite [nightly]", total=2, unit="evals") as outer:
        with reporter.track("score mmlu", total=3, unit="samples") as inner:
            inner()
            inner(2)
        outer(2)
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    assert "suite [nightly]" in screen
    assert "2/2" in screen
    assert "3/3" in screen
    with reporter.track("a second time", total=1, unit="evals") as again:
        again()
    assert "a second time" in output.getvalue()


def test_a_bar_shows_percent_and_tokens_a_second_while_nothing_gets_done() -> None:
    output = io.StringIO()
    computed = [0]
    reporter = RichReporter(PlainConsole(file=output, force_terminal=True, width=140))
    with reporter.track("model_outputs smol", total=200, unit="requests", work=lambda: Work(tokens=computed[0])) as advance:
        advance(50)
        for _ in range(8):
            time.sleep(0.1)
            computed[0] += 100_000
    screen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    assert "50/200" in screen
    assert "25%" in screen
    assert len(set(re.findall(r"[\d,]+ tokens/s", screen))) > 2, "the figure moves"


def test_rich_reporter_writes_plain_lines_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    with RichReporter(PlainConsole(file=output, force_terminal=False, width=20)).track("score [mmlu]", total=3, unit="samples") as advance:
        advance(3)
    assert re.fullmatch(r"score \[mmlu\]: 3 samples in 0\.\d s \([\d.,]+/s\)\n", output.getvalue())


def test_combined_reporter_tells_all(lines: list[str]) -> None:
    others: list[str] = []
    with CombinedReporter(LogReporter(lines.append), LogReporter(others.append)).track("score", total=2, unit="samples") as advance:
        advance()
        advance()
    assert len(lines) == len(others) == 1
    assert lines[0].startswith("score: 2 samples in ")


def test_the_current_reporter_is_silent_until_one_is_chosen_and_afterwards_again() -> None:
    chosen: Reporter = LogReporter(print)
    assert isinstance(current_reporter(), SilentReporter)
    with use_reporter(chosen):
        assert current_reporter() is chosen
        with use_reporter(SilentReporter()):
            assert current_reporter() is not chosen
        assert current_reporter() is chosen
    assert isinstance(current_reporter(), SilentReporter)
    with current_reporter().track("score", total=2, unit="samples") as advance:
        advance()


def test_the_innermost_work_alone_writes_lines_on_the_way(lines: list[str], clock: list[float]) -> None:
    reporter = LogReporter(lines.append, every_s=5)
    with reporter.track("stage", total=2, unit="evals") as outer:
        with reporter.track("eval one", total=100, unit="samples") as inner:
            for _ in range(2):
                clock[0] += 6
                inner(25)
                outer(0)
        outer()
        clock[0] += 6
        outer(0)
    assert [line.partition(",")[0].partition(" in ")[0] for line in lines] == [
        "eval one: 25/100 samples (25%)",
        "eval one: 50/100 samples (50%)",
        "eval one: 50/100 samples",
        "stage: 1/2 evals (50%)",
        "stage: 1/2 evals (50%)",
        "stage: 1/2 evals",
    ]


def test_pieces_of_work_beside_each_other_all_write_lines(lines: list[str], clock: list[float]) -> None:
    reporter = LogReporter(lines.append, every_s=5)
    with reporter.track("eval one", total=9, unit="requests") as one, reporter.track("eval two", total=9, unit="requests") as two:
        clock[0] += 6
        one()
        two()
        assert [line.partition(":")[0] for line in lines] == ["eval one", "eval two"]


def test_rows_are_followed_if_they_are_many(lines: list[str], clock: list[float]) -> None:
    def slow(count: int) -> Iterator[int]:
        for number in range(count):
            clock[0] += 0.02
            yield number

    with use_reporter(LogReporter(lines.append, every_s=5)):
        assert list(following(slow(99), "few", total=99, unit="samples", least=100)) == list(range(99))
        assert lines == []
        assert list(following(slow(510), "many", total=510, unit="samples", least=100)) == list(range(510))
    assert lines == ["many: 260/510 samples (51%), 50/s, 0:05 left", "many: 510 samples in 10.2 s (50/s)"]


def test_rows_that_take_long_are_reported_one_by_one(lines: list[str], clock: list[float]) -> None:
    def slow() -> Iterator[int]:
        for number in range(4):
            clock[0] += 6
            yield number

    with use_reporter(LogReporter(lines.append, every_s=5)):
        list(following(slow(), "episodes", total=4, unit="episodes", least=0))
    assert [line.partition(" ep")[0] for line in lines] == ["episodes: 1/4", "episodes: 2/4", "episodes: 3/4", "episodes: 4"]


def test_rows_that_end_in_an_error_say_how_far_they_came(lines: list[str], clock: list[float]) -> None:
    def broken() -> Iterator[int]:
        yield from range(250)
        raise ValueError("row 250 is broken")

    with use_reporter(LogReporter(lines.append)), pytest.raises(ValueError, match="row 250"):
        list(following(broken(), "rows", total=1000, unit="samples", least=100))
    assert lines == ["rows: stopped after 200/1000 samples in 0.0 s"]
