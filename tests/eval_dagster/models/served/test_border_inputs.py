"""Border inputs: an exact test against the noise of earlier nights, no epoch by mistake, and the odd servers that have none."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from border_nights import Noise, late, nights_of, rare
from scipy.special import expit
from scipy.stats import binom
from servers.stub import Stub

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_info, read_table, write_parquet
from eval_dagster.lake.records import records_of
from eval_dagster.lake.tables.events import EndpointStateRow
from eval_dagster.models.served import borders, looking
from eval_dagster.models.served.border_looks import BorderLooker
from eval_dagster.models.served.borders import LEVEL, QUIET_NIGHTS, TEMPERATURE, Borders, is_at_border, probability
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.handle import ServedHandle

# ---- the test


def test_the_p_value_is_that_of_all_counts() -> None:
    """By adding up the probabilities of all counts of two inputs that are as surprising, with the noise that is always allowed for."""
    nights = [[3, 2, 4, 1, 3], [5, 4, 5, 5, 4]]
    gaps = np.round(np.arange(-0.4, 0.405, 0.01), 2)
    moves = np.round(np.arange(-1.2, 1.205, 0.01), 2)
    weights = np.exp(-(((moves - gaps[:, None]) / borders.LEAST_NOISE) ** 2) / 2)
    share = expit(moves / TEMPERATURE)
    binomial = np.array([binom.pmf(drawn, 5, share) for drawn in range(6)])
    chances = weights / weights.sum(axis=1, keepdims=True) @ (0.99 * binomial + 0.01 / 6).T
    expected = []
    for each in nights:
        posterior = np.prod([chances[:, drawn] for drawn in each], axis=0)
        expected.append(posterior / posterior.sum() @ chances)
    surprise = np.rint(-10 * np.log(expected))
    seen = surprise[0, 0] + surprise[1, 1]
    pairs = itertools.product(range(6), range(6))
    total = sum(expected[0][a] * expected[1][b] for a, b in pairs if surprise[0, a] + surprise[1, b] >= seen)
    assert 0 < total < 0.1
    assert probability(nights, [0, 1], 5, 0.0) == pytest.approx(total)


def test_each_token_of_a_border_input_is_drawn_twice() -> None:
    assert is_at_border(["a"] * 11 + ["b"] * 2)
    assert not is_at_border(["a"] * 12 + ["b"])
    assert not is_at_border(["a"] * 9 + ["b"] * 2 + ["c"] * 2)


def known(nights: int, noise: float = 0.0) -> tuple[Borders, dict[str, list[str]]]:
    """Twenty border inputs with so many nights, with noise of gaps, and draws as of another night."""
    rng, names = np.random.default_rng(0), [f"{index} (border input)" for index in range(20)]
    gaps = rng.uniform(-0.05, 0.05, 20)
    found = Borders().after({name: ["a"] * 8 + ["b"] * 5 for name in names}, 150, "2026-01-01", None)

    def night() -> dict[str, list[str]]:
        shares = expit((gaps + rng.normal(0, noise, 20)) / TEMPERATURE)
        return {name: ["a" if value < share else "b" for value in rng.random(5)] for name, share in zip(names, shares, strict=True)}

    for number in range(nights):
        found = found.after(night(), 0, f"2026-01-{number + 2:02}", None)
    return found, night()


def test_texts_decide_until_five_nights_are_known() -> None:
    for nights, decides in ((QUIET_NIGHTS - 1, False), (QUIET_NIGHTS, True)):
        found, draws = known(nights)
        verdict = found.judge(draws)
        assert (verdict.p_value is not None, "texts decide" in verdict.said) == (decides, not decides)
    assert found.after(draws, 0, "2026-01-06", None).counts == found.counts, "a second look of a day is no night"


def test_texts_decide_where_nights_are_noisy() -> None:
    """The draws would be far beyond what chance alone gives."""
    found, draws = known(8, noise=0.3)
    verdict = found.judge(draws)
    assert verdict.p_value is None
    assert "more than the 0.05 that they can use: texts decide" in verdict.said


def test_a_change_has_to_be_found_again_on_another_day() -> None:
    found, _ = known(8)
    moved = {name: ["ab"[index % 2]] * 15 for index, name in enumerate(found.tokens)}
    other = {name: ["ba"[index % 3 == 0]] * 15 for index, name in enumerate(found.tokens)}
    p_value = found.judge(moved).p_value
    assert p_value is not None
    assert p_value < LEVEL
    assert not found.confirms(moved, "2026-01-10", p_value)
    after = found.after(moved, 0, "2026-01-10", p_value)
    assert after.counts == found.counts, "it is not noise yet"
    assert not after.confirms(moved, "2026-01-10", p_value)
    assert after.confirms(moved, "2026-01-11", p_value)
    assert not after.confirms(other, "2026-01-11", p_value), "another difference is noise"
    quiet = after.after({name: drawn[:5] for name, drawn in moved.items()}, 0, "2026-01-11", 0.5)
    assert [len(each) for each in quiet.counts.values()] == [10] * 20, "both nights are noise"
    assert not quiet.suspected


# ---- looks


Look = Callable[..., list[EndpointStateRow]]


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    running.change(logprobs="none", gaps="first")
    running.reset()
    yield running
    running.change(logprobs="lists", gaps="")


@pytest.fixture
def look(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """The rows of a look on another day, the last one first."""
    days = count()

    def look(**keys: Any) -> list[EndpointStateRow]:
        at, seconds = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=next(days)), count()

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return at + timedelta(seconds=next(seconds))

        monkeypatch.setattr(looking, "datetime", Clock)
        section = {"backend": "openai", "base_url": stub.base_url, "model": "stub", "concurrency": 8, "border_canaries": True, **keys}
        ServedHandle("served", OpenAIModel.model_validate(section), home=tmp_path).look(list, "run")
        rows: Any = sorted(records_of(Lake(tmp_path), "endpoint_states"), key=lambda row: row["looked_at"], reverse=True)
        return [row for row in rows if row["looked_at"] >= at]

    return look


def asked_at(stub: Stub, temperature: float) -> int:
    return sum(request["body"]["temperature"] == temperature for request in stub.requests())


@pytest.mark.long
def test_a_small_change_begins_an_epoch_on_the_next_day(look: Look, stub: Stub, tmp_path: Path) -> None:
    """Texts do not see it. Where the file of the epoch is lost, the rows say the same."""
    rows = [look()[0] for _ in range(7)]
    assert {row["outcome"] for row in rows} == {"first", "same"}
    assert rows[0]["n_searched"] is not None
    assert 20 < rows[0]["n_searched"] <= 150
    assert [row["n_calls"] for row in rows[1:]] == [141] * 6
    assert [row["p_border"] is None for row in rows] == [True] * 6 + [False]
    stub.change(gaps="second")
    shutil.rmtree(tmp_path / "endpoints" / "epochs")
    second, first = look()
    assert (first["outcome"], second["outcome"], second["epoch"], second["n_calls"]) == ("same", "suspected", 0, 240)
    assert "an epoch begins if the next day's look finds it again" in second["message"]
    shutil.rmtree(tmp_path / "endpoints" / "epochs")
    second, first = look()
    assert (second["outcome"], second["epoch"], second["epoch_rose"]) == ("different", 1, True)
    again = look()[0]
    assert (again["outcome"], again["epoch"], again["p_border"]) == ("same", 1, None)
    assert again["n_searched"], "inputs are searched anew"


@pytest.mark.long
def test_a_night_that_was_odd_for_once_begins_no_epoch(look: Look, stub: Stub) -> None:
    for _ in range(7):
        look()
    stub.change(gaps="second")
    assert look()[0]["outcome"] == "suspected"
    stub.change(gaps="first")
    assert (look()[0]["outcome"], look()[0]["outcome"]) == ("same", "same")


def test_nothing_is_drawn_unless_it_is_asked_for(look: Look, stub: Stub) -> None:
    assert look(border_canaries=False)[0]["n_calls"] == 41
    stub.change(logprobs="lists")
    [row] = look(generation={"temperature": 0.5})
    assert "log-probabilities show more" in row["message"]
    assert asked_at(stub, TEMPERATURE) == 0


def test_border_inputs_need_looks() -> None:
    section = {"backend": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "stub", "border_canaries": True, "canaries": 0}
    with pytest.raises(ValueError, match="expected `canaries` above 0 beside it"):
        OpenAIModel.model_validate(section)


def test_rows_of_an_earlier_release_have_no_border_inputs(look: Look, tmp_path: Path) -> None:
    look(border_canaries=False)
    [file] = (tmp_path / "lake" / "endpoint_states").glob("*.parquet")
    found = read_info(file)
    write_parquet(file, read_table(file).drop_columns(["p_border", "n_searched"]), found)
    shutil.rmtree(tmp_path / "endpoints" / "epochs")
    [row] = look()
    assert (row["outcome"], bool(row["n_searched"])) == ("same", True)


def test_seeds_of_draws_differ(look: Look, stub: Stub) -> None:
    look()
    seeds = [request["body"]["seed"] for request in stub.requests() if request["body"]["temperature"] == TEMPERATURE]
    assert len(set(seeds)) == len(seeds) > 50


@pytest.mark.long
def test_a_server_without_a_temperature_is_not_searched_for_ever(look: Look, stub: Stub) -> None:
    keys = {"extra_body": {"temperature": 0}}
    assert [look(**keys)[0]["n_searched"] for _ in range(2)] == [150, 0]
    stub.reset()
    [row] = look(**keys)
    assert "none of 150 prompts is a border input, as on a server that ignores the temperature: texts decide" in row["message"]
    assert row["n_calls"] == 41
    stub.change(gaps="")
    [row] = look()  # the stub draws any word above temperature 0
    assert "10 of 10 prompts gave several tokens, as of a server that does not draw at the temperature 0.05: texts decide" in row["message"]
    assert row["n_calls"] == 41 + 30


@pytest.mark.parametrize("said", ["max_tokens must be at least 16", "the answer is empty, which shows nothing about the model"])
def test_a_server_that_refuses_one_token_is_asked_for_few(said: str) -> None:
    sent = list[Call]()

    def refuse(calls: Sequence[Call]) -> list[BadAnswerError]:
        sent.extend(calls)
        return [BadAnswerError(said) for _ in calls]

    config = OpenAIModel(backend="openai", base_url="http://127.0.0.1:1/v1", model="stub", border_canaries=True)
    found = BorderLooker(config, refuse).look(Borders(), None, may_search=True)
    assert f"no draw of one token was answered (ServerError: {said}): texts decide" in found.said[0]
    assert (len(sent), found.n_searched, found.draws) == (30, 0, {})


def test_a_search_that_is_killed_begins_again(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(BorderLooker, "_search", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            look()
    assert records_of(Lake(tmp_path), "endpoint_states") == []
    assert look()[0]["n_searched"]


# ---- simulated nights


@pytest.mark.parametrize("noise", [0, 0.08])
def test_some_servers_begin_no_epoch(noise: float) -> None:
    """The table in docs/how-to/served-models.md, with fewer servers."""
    found = [nights_of(seed, noise, nights=15) for seed in range(3)]
    assert [each.epochs for each in found] == [()] * 3
    assert all(each.judged > 5 for each in found) is (noise == 0)


@pytest.mark.long
def test_some_servers_that_change_begin_an_epoch_on_the_next_night() -> None:
    assert sum(nights_of(seed, 0, moved=0.3, at=12, nights=14).epochs == (13,) for seed in range(4)) >= 3


@pytest.mark.long
@pytest.mark.parametrize("noise", [0, 0.01, 0.03, 0.08, 0.2])
def test_thirty_nights_begin_an_epoch_in_at_most_one_of_a_hundred_runs(noise: float) -> None:
    """The table in docs/how-to/served-models.md: at most one run of 100, and a second look in at most 3 % of nights."""
    found = [nights_of(seed, noise) for seed in range(100)]
    assert sum(bool(each.epochs) for each in found) <= 1
    assert sum(each.second_looks for each in found) <= 0.03 * max(1, sum(each.judged for each in found))


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "at", "moved", "least", "most"),
    [
        (0, 7, 0.05, 0, 0.2),
        (0, 7, 0.3, 0.8, 1),
        (0, 17, 0.1, 0.65, 0.95),
        (0, 17, 0.3, 0.95, 1),
        (0.03, 17, 0.3, 0.5, 0.9),
        (0.08, 17, 0.3, 0, 0),
    ],
)
def test_how_often_a_change_begins_an_epoch_on_the_next_night(noise: float, at: int, moved: float, least: float, most: float) -> None:
    """The table in docs/how-to/served-models.md."""
    found = [nights_of(1000 + seed, noise, moved=moved, at=at, nights=at + 2).epochs == (at + 1,) for seed in range(50)]
    assert least <= sum(found) / len(found) <= most


@pytest.mark.long
@pytest.mark.parametrize(("kind", "noise"), [(rare, 0.03), (rare, 0.1), (late, 0.03), (late, 0.1)])
def test_noise_that_comes_late_or_rarely_begins_few_epochs(kind: Noise, noise: float) -> None:
    assert sum(bool(nights_of(seed, noise, kind=kind).epochs) for seed in range(100)) <= 2
