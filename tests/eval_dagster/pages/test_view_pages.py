"""The pages of `eval-dagster view`, asked as a browser asks them, over a home that was evaluated on several nights."""

import html
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hostile_texts import DANGEROUS, HALVES, STORABLE
from scripted_nights import SUITE, Nights
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eval_dagster.cli.app import app
from eval_dagster.errors import QueryError
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.results import result_at, write_result
from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.pages.server import charts
from eval_dagster.pages.server.application import application
from eval_dagster.pages.server.nights import Watched, compared_with
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.stages.partition import STAGES
from eval_dagster.texts.visible_text import visible


class Site:
    """The pages of a home."""

    def __init__(self, nights: Nights) -> None:
        self.nights = nights
        self.lake: Lake = nights.project(shots=2).lake
        self.reader = CatalogReader(self.lake)
        self.client = TestClient(application(self.reader), base_url="http://127.0.0.1:4000")

    def get(self, address: str, status: int = 200) -> str:
        answer = self.client.get(address)
        assert answer.status_code == status, answer.text
        return answer.text

    def links(self, text: str, path: str) -> list[str]:
        """The links of a page to another one, in its order."""
        return [each for found in re.findall(r'href="([^"]*)"', text) if (each := html.unescape(found)).split("?")[0] == path]

    def sample_ids(self, address: str) -> list[str]:
        """The samples of a list, over all its parts."""
        found: list[str] = []
        for number in range(1, 100):
            text = self.get(f"{address}&page={number}")
            part = [re.search(r"sample=([^&]+)", each)[1] for each in self.links(text.partition('id="findings"')[0], "/sample")]  # type: ignore[index]
            found += part
            if f">part {number} of" not in text or 'rel="next"' not in text:
                return found
        raise AssertionError(f"{address} has no end")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    nights = Nights(tmp_path_factory.mktemp("view"))
    nights.run(other={"sums": 0.5})
    nights.run(other={"sums": 0.5})
    nights.run(shots=2, capitals=0.5, other={"sums": 0.3})
    project = nights.project(shots=2)
    write_result(project.lake, judge(project, SUITE, run_id="gate"))
    publish(project.lake)
    site = Site(nights)
    yield site
    site.reader.close()


def rows(site: Site, query: str) -> list[dict[str, object]]:
    return read_rows(site.lake, query)


def shown(text: str) -> str:
    """The text of a page without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.mark.long
def test_the_leaderboard_has_every_score_with_its_interval(site: Site) -> None:
    text = site.get("/leaderboard")
    known = rows(site, "select * from leaderboard")
    assert len(known) == 6
    for row in known:
        assert f"{row['value']:.3f}" in text
        assert f"{row['ci_low']:.3f} to {row['ci_high']:.3f}" in text
    assert text.count('class="dot"') == text.count('class="mark"') == 6
    only = site.get("/leaderboard?eval=arith&model=bf16")
    assert len(site.links(only, "/samples")) == 1
    assert site.get("/?eval=arith&model=bf16") == only, "the address that the leaderboard had"
    assert "There is no result of this name" in site.get("/leaderboard?eval=nothing-like-it")


def test_the_evals_of_a_page_share_an_axis(site: Site) -> None:
    """A whisker is where its interval is on the axis from 0 to 1, whose ticks are named."""
    text = site.get("/leaderboard")
    known = rows(site, "select * from leaderboard order by eval, rank")
    whiskers = re.findall(r'class="whisker" x1="([\d.]+)%" x2="([\d.]+)%" y1="8" y2="8"', text)
    expected = [[2 + 96 * float(row[name]) for name in ("ci_low", "ci_high")] for row in known]  # type: ignore[arg-type]
    assert [[float(each) for each in pair] for pair in whiskers] == [pytest.approx(each, abs=0.01) for each in expected]
    axes = re.findall(r'<svg class="axis".*?</svg>', text, re.DOTALL)
    assert len(axes) == 3
    ticks = {tuple(re.findall(r'<text x="([\d.]+)%"[^>]*>([\d.]+)</text>', axis)) for axis in axes}
    assert ticks == {(("2.0", "0.0"), ("21.2", "0.2"), ("40.4", "0.4"), ("59.6", "0.6"), ("78.8", "0.8"), ("98.0", "1.0"))}


@pytest.mark.parametrize(
    ("values", "ends", "texts"),
    [
        ([0.42, 0.47], (0.42, 0.47), ["0.42", "0.43", "0.44", "0.45", "0.46", "0.47"]),
        ([-0.3, 0.2], (-0.3, 0.2), ["-0.3", "-0.2", "-0.1", "0.0", "0.1", "0.2"]),
        ([3, None, 671], (0, 800), ["0", "200", "400", "600", "800"]),
        ([12.0], (11.4, 12.6), ["11.4", "11.6", "11.8", "12.0", "12.2", "12.4", "12.6"]),
        ([float("inf"), 1.0, 2.0], (1, 2), ["1.0", "1.2", "1.4", "1.6", "1.8", "2.0"]),
    ],
)
def test_an_axis_ends_at_round_values(values: list[float | None], ends: tuple[float, float], texts: list[str]) -> None:
    axis = charts.Scale.axis(values)
    assert (axis.low, axis.high) == pytest.approx(ends)
    assert [tick.text for tick in axis.ticks()] == texts


def test_the_matrix_leads_to_each_result(site: Site) -> None:
    text = site.get("/matrix")
    links = site.links(text, "/samples")
    assert len(links) == 6
    assert all(site.get(link) for link in links)


def test_a_history_marks_where_the_score_left_its_band(site: Site) -> None:
    changes = rows(site, "select eval, model, count(*) as n from change_points group by all")
    assert changes, "the nights have no change point"
    for row in rows(
        site, "select eval, model, metric, count(*) as n from metrics_history where is_headline and subject is null group by all"
    ):
        text = site.get(f"/history?eval={row['eval']}&model={row['model']}")
        expected = sum(each["n"] for each in changes if (each["eval"], each["model"]) == (row["eval"], row["model"]))  # type: ignore[misc]
        assert text.count('class="diamond"') == expected
        assert text.count('class="mark"') == row["n"] - expected  # type: ignore[operator]
    assert "has no metric" in site.get("/history?eval=capitals&model=mine&metric=none", 404)


def test_the_table_of_two_models_counts_and_leads_to_the_samples(site: Site) -> None:
    text = site.get("/compare?eval=arithmetic&a=mine&b=mine-bf16")
    pairs = rows(
        site,
        "select a.value as a, b.value as b, list(a.sample_id) as ids from scores a join scores b using (eval, metric, sample_id) "
        "where a.eval = 'arithmetic' and a.model = 'mine' and b.model = 'mine-bf16' and metric = 'exact_number' group by all",
    )
    assert len(pairs) == 4
    links = [each for each in site.links(text, "/samples") if "before_low" in each]
    found = {re.search(r"low=([\d.]+)&high=[\d.]+&before_low=([\d.]+)", each).groups(): each for each in links}  # type: ignore[union-attr]
    for row in pairs:
        assert sorted(site.sample_ids(found[str(row["a"]), str(row["b"])])) == sorted(row["ids"])  # type: ignore[call-overload]
    difference = rows(site, "select * from paired_difference('mine', 'mine-bf16') where eval = 'arithmetic' and metric = 'exact_number'")[0]
    assert f"{difference['difference']:+.3f} difference a − b" in shown(text)


@pytest.mark.parametrize(("eval_name", "said"), [("capitals", "▼ mine is worse than mine-bf16"), ("arithmetic", "= no difference seen")])
def test_two_models_are_compared_by_the_test_of_the_command(site: Site, monkeypatch: pytest.MonkeyPatch, eval_name: str, said: str) -> None:
    """Difference, interval, p-value and verdict are those of `eval-dagster compare`."""
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(site.nights.folder / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(site.nights.folder / "home"))
    printed = (
        CliRunner().invoke(app, ["compare", "mine", "mine-bf16", "--eval", eval_name, "--format", "json"], catch_exceptions=False).stdout
    )
    [row] = json.loads(printed)
    text = shown(site.get(f"/compare?eval={eval_name}&a=mine&b=mine-bf16&metric={row['metric']}"))
    assert said in text
    assert said.startswith("▼") == (row["verdict"] == "regressed")
    assert f"difference {row['difference']:+.3f}; 95 % interval {row['ci_low']:+.3f} to {row['ci_high']:+.3f}" in text
    assert f"by {row['test']}" in text
    assert f"{row['n_common']} common samples" in text
    assert ("not worse (proven) than" in text) == (row["verdict"] == "not worse (proven)")
    assert row["unproven_reason"] is None or row["unproven_reason"] in text
    assert f"a difference of {row['min_detectable']:.3f} would have been seen" in text


def test_another_eval_can_be_chosen_in_the_form_of_two_models(site: Site) -> None:
    text = site.get("/compare?eval=capitals&a=mine&b=of-another-eval&metric=exact_number")
    assert "difference a − b" in text
    assert '<option value="mine-bf16" selected>' in text


def test_the_agreement_of_metrics_is_their_correlation(site: Site) -> None:
    text = shown(site.get("/agreement?eval=capitals&model=mine"))
    known = rows(
        site,
        "select corr(a.value, b.value) as c, avg((a.value = b.value)::integer) as e "
        "from scores a join scores b using (eval, model, sample_id) "
        "where eval = 'capitals' and model = 'mine' and a.metric = 'accuracy' and b.metric = 'accuracy_norm'",
    )[0]
    assert f"accuracy_norm accuracy 1 {known['c']:.3f} {100 * known['e']:.0f} % equal" in text  # type: ignore[operator]


def test_from_a_red_night_to_the_flipped_samples_with_both_answers(site: Site) -> None:
    """Two links from the list of nights: the night, then the samples that got worse."""
    nights = site.get("/nights")
    assert "✗ regressed" in shown(nights)
    night = site.get(site.links(nights, "/night")[0])
    worse = next(each for each in site.links(night, "/samples") if "show=worse" in each and "eval=capitals&model=mine&" in each)
    known = rows(site, "select * from sample_changes where eval = 'capitals' and model = 'mine' and value < baseline_value")
    assert len(known) > 5
    assert sorted(site.sample_ids(worse)) == sorted(str(row["sample_id"]) for row in known)
    text = shown(site.get(worse))
    first = next(row for row in known if str(row["sample_id"]) in text)
    assert f"{str(first['answer']).strip()} {str(first['baseline_answer']).strip()}" in text


def test_an_implied_result_before_is_not_part_of_the_form(site: Site) -> None:
    text = site.get("/samples?eval=capitals&model=mine")
    assert "Before: mine of" in shown(text)
    assert 'name="against"' not in text
    assert "against=" not in site.links(text, "/sample")[0]
    assert 'name="against" value="mine-bf16"' in site.get("/samples?eval=capitals&model=mine&against=mine-bf16")


def test_a_night_compares_drift_with_its_anchor() -> None:
    row = Regression(
        suite=SUITE,
        eval="capitals",
        model="mine",
        verdict=Verdict.REGRESSED,
        baseline="mine@2026-01-02",
        baseline_materialized_at=datetime(2026, 1, 2, tzinfo=UTC),
        anchor="older@2026-01-01",
        anchor_materialized_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert compared_with(replace(row, against="anchor")) == ("older", row.anchor_materialized_at)
    assert compared_with(replace(row, against="baseline")) == ("mine", row.baseline_materialized_at)


def test_the_first_page_has_last_night_with_its_evidence(site: Site) -> None:
    """Outcome in words, the difference with its interval, the cause, the history with its band, and the samples one link away."""
    text = site.get("/")
    [row] = rows(
        site, "select * from regressions where verdict = 'regressed' and eval = 'capitals' and model = 'mine' and metric = 'accuracy'"
    )
    said = shown(text)
    assert f"✗ {SUITE}" not in said, "one suite alone needs no list"
    for part in ("✗ regressed", "▼ 1 regressed", "capitals · mine · accuracy", f"{row['difference']:+.3f}", f"what differs {row['cause']}"):
        assert part in said
    assert f"95 % interval {row['ci_low']:+.3f} to {row['ci_high']:+.3f}" in said
    assert f"common samples {row['n_common']}" in said
    assert "it left its band on" in text, "the picture"
    known = rows(site, "select sample_id from sample_changes where eval = 'capitals' and model = 'mine' and metric = 'accuracy'")
    assert f"{len(known)} samples flipped" in said
    [worse] = [each for each in site.links(text, "/samples") if "show=worse" in each and "eval=capitals&model=mine&" in each]
    assert len(site.sample_ids(worse)) == sum(
        each["n"]
        for each in rows(
            site, "select count(*) as n from sample_changes where eval = 'capitals' and model = 'mine' and value < baseline_value"
        )
    )  # type: ignore[misc]
    assert said.index("✗ regressed") < said.index("Leaderboard arithmetic")


def test_a_suite_that_was_never_judged_says_so(site: Site) -> None:
    """In words and in a tone of its own, after what is red and before what passed."""
    client = TestClient(application(site.reader, suites=["weekly", SUITE]), base_url="http://127.0.0.1:4000")
    text = client.get("/").text
    assert 'class="verdict unjudged"' in text
    assert shown(text).index("✗ regressed 1") < shown(text).index("weekly ○ not judged")
    assert f"✗ {SUITE}: regressed" in shown(text)
    assert "○ weekly: not judged" in shown(text)
    alone = TestClient(application(site.reader, suites=[]), base_url="http://127.0.0.1:4000").get("/").text
    assert "not judged" not in alone


@pytest.mark.long
def test_a_verdict_from_before_something_broke_is_not_green(site: Site, tmp_path: Path) -> None:
    shutil.copytree(site.lake.home, tmp_path / "home")
    lake = Lake(tmp_path / "home")
    [last] = rows(site, f"select max(judged_at) as at from regressions_history where suite = '{SUITE}'")
    red = result_at(lake, SUITE, last["at"])  # type: ignore[arg-type]
    assert red is not None
    at = datetime(2030, 1, 31, 2, 10, tzinfo=UTC)
    write_result(lake, replace(red, judged_at=at, regressions=[row for row in red.regressions if not row.is_red]))
    publish(lake)
    reader = CatalogReader(lake)
    well = shown(TestClient(application(reader)).get("/").text)
    assert "✓ passed" in well
    broken = TestClient(application(reader, watch=lambda: Watched(problem="evals.yaml cannot be read"))).get("/").text
    reader.close()
    assert "✗ the next night cannot start" in shown(broken)
    assert "○ passed on 2030-01-31 02:10 UTC, not since" in shown(broken)
    assert "✓ passed" not in shown(broken)
    assert 'class="line good"' not in broken


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("", "true"),
        ("&show=wrong", "value < 0.5"),
        ("&show=right", "value >= 0.5"),
        ("&subject=africa", "subject = 'africa'"),
        ("&low=1&high=1", "value = 1"),
        ("&show=errors", "error is not null"),
        ("&text=of+Libya", "sample_id in (select sample_id from prompts where prompt like '%of Libya%')"),
        ("&text=%27%20or%201%3D1%20--", "false"),
        ("&subject=%27%20or%201%3D1%20--", "false"),
        ("&sort=lowest", "true"),
    ],
)
def test_filters_give_what_a_query_gives(site: Site, query: str, where: str) -> None:
    known = rows(site, f"select sample_id from scores where eval = 'capitals' and model = 'mine' and metric = 'accuracy' and {where}")
    found = site.sample_ids(f"/samples?eval=capitals&model=mine&metric=accuracy{query}")
    assert sorted(found) == sorted(str(row["sample_id"]) for row in known)


def test_a_sample_has_prompt_answers_and_history(site: Site) -> None:
    link = site.links(site.get("/samples?eval=capitals&model=mine&show=worse"), "/sample")[0]
    text = site.get(link)
    sample = re.search(r"sample=([^&]+)", link)[1]  # type: ignore[index]
    row = rows(site, f"select * from sample_results where eval = 'capitals' and model = 'mine' and sample_id = '{sample}'")[0]
    assert str(row["prompt"]) in html.unescape(text)
    for choice in row["choices"]:  # type: ignore[attr-defined]
        assert html.escape(choice.strip(), quote=True).replace("&#x27;", "&#39;") in text
    past = shown(text).partition("History")[2]
    values = rows(
        site,
        f"select value from scores_history where eval = 'capitals' and model = 'mine' and sample_id = '{sample}' "
        "and metric = 'accuracy' order by materialized_at desc",
    )
    assert re.findall(r"\d\d:\d\d (\d\.\d{3})", past) == [f"{each['value']:.3f}" for each in values]
    assert len(values) == 3
    assert "mine-bf16" in shown(text).partition("Other models")[2]


def test_each_night_has_its_own_samples(site: Site) -> None:
    """The links of a history lead to the answers of that night."""
    history = site.get("/history?eval=capitals&model=mine")
    table = site.links(history[history.index("<table") :], "/samples")
    found = [
        sum(
            "0.000" in part for part in re.findall(r'<td role="cell" class="n" data-label="score">.*?</td>', site.get(each + "&show=wrong"))
        )
        for each in table
    ]
    known = rows(
        site,
        "select count(*) filter (value = 0) as n from scores_history where eval = 'capitals' and model = 'mine' and metric = 'accuracy' "
        "group by materialized_at order by materialized_at desc",
    )
    assert found == [min(50, row["n"]) for row in known]  # type: ignore[type-var]
    assert found[0] != found[-1]


def test_the_page_of_a_result_is_the_one_of_that_time(site: Site) -> None:
    for row in rows(site, "select distinct materialized_at from metrics_history where eval = 'capitals' and model = 'mine'"):
        at = row["materialized_at"].isoformat()  # type: ignore[attr-defined]
        answer = site.client.get(f"/results/capitals/mine/{at.replace('+', '%2B')}")
        assert answer.status_code == 200
        assert row["materialized_at"].strftime("%Y-%m-%dT%H:%M:%S.%f") in answer.text[:400]  # type: ignore[attr-defined]
        assert "'unsafe-inline'" not in answer.headers["content-security-policy"].partition("script-src")[2].partition(";")[0]


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/samples", 400, "the address has no 'eval'"),
        ("/samples?eval=capitals&model=nobody", 404, "there is no result of capitals on nobody"),
        ("/samples?eval=capitals&model=mine&at=yesterday", 400, "expected a time"),
        ("/samples?eval=capitals&model=mine&page=0", 400, "expected a whole number"),
        ("/samples?eval=capitals&model=mine&page=" + "9" * 5000, 400, "expected a whole number"),
        ("/samples?eval=capitals&model=mine&show=magic", 400, "expected one of wrong, right"),
        ("/samples?eval=capitals&model=mine&low=much", 400, "expected a number"),
        ("/samples?eval=capitals&model=mine&low=nan", 400, "expected a number"),
        ("/samples?eval=capitals&model=mine&metric=magic", 404, "has no metric"),
        ("/sample?eval=capitals&model=mine&sample=0", 404, "has no sample"),
        ("/results/capitals/mine/yesterday", 400, "expected a time"),
        ("/samples?eval=capitals&model=mine&at=0001-01-01T00:00:00%2B23:59", 400, "expected a time"),
        ("/results/capitals/mine/2026-01-01T00:00:00", 404, "there is no result of 2026-01-01T00:00:00+00:00"),
        ("/results/..%2F..%2Fetc/passwd/2026-01-01", 404, "no such page"),
        ("/nothing", 404, "there is no such page"),
    ],
)
def test_wrong_addresses_are_explained(site: Site, address: str, status: int, message: str) -> None:
    assert message in shown(site.get(address, status))


def test_pages_allow_no_script(site: Site) -> None:
    answer = site.client.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "script-src" not in policy
    assert "<script" not in answer.text
    assert site.client.post("/").status_code == 405


@pytest.mark.long
def test_hostile_texts_are_shown_as_texts(tmp_path: Path) -> None:
    """Answers of a model, with a line of a megabyte among them: nothing is markup, and nothing invisible gets through."""
    answers = [*STORABLE, *HALVES, "<u>" + "x" * 1_000_000]
    (tmp_path / "model.py").write_text(f"LEFT = {answers!r}\n\ndef answer(request):\n    return LEFT.pop() if LEFT else 'done'\n")
    (tmp_path / "evals.yaml").write_text(
        'models:\n  one: {backend: scripted, function: "model.py:answer"}\nevals:\n  sums: {task: arithmetic, limit: 60}\n'
    )
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    list(evaluate(project, [("sums", "one")], stages=set(STAGES), run_id="r", reporter=SilentReporter()))
    reader = CatalogReader(project.lake)
    client = TestClient(application(reader), base_url="http://127.0.0.1:4000")
    found = ""
    for number in (1, 2, 3, 4):
        part = client.get(f"/samples?eval=sums&model=one&page={number}").text
        addresses = [html.unescape(each) for each in re.findall(r'href="(/sample\?[^"]*)"', part)]
        for text in (part, *(client.get(each).text for each in addresses)):
            assert not DANGEROUS.search(text)
            assert not re.search(r"<(script|img|u|failure)\b", text)
            found += html.unescape(text)
    reader.close()
    stored = {row["text"][0] for row in read_rows(project.lake, "select text from responses")}
    assert len(stored) > 30
    for answer in stored:
        assert visible(answer)[:1000] in found


def test_without_a_result_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evals.yaml").write_text('models:\n  one: {backend: scripted, default: "7"}\nevals:\n  sums: {task: arithmetic}\n')
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    with pytest.raises(QueryError, match=r"there is nothing to query yet: .*; run `eval-dagster run` first"):
        CliRunner().invoke(app, ["view"], catch_exceptions=False, standalone_mode=False)


@pytest.mark.long
def test_a_page_shows_what_a_run_published_meanwhile(site: Site) -> None:
    """Within a page the state stays; the next page has the new one."""
    query = "select count(distinct materialized_at) as n from metrics_history"
    before = rows(site, query)[0]["n"]
    with site.reader.state() as state:
        site.nights.run(shots=2, capitals=0.2, other={"sums": 0.3})
        publish(site.lake)
        assert state.rows(query)[0]["n"] == before
    with site.reader.state() as state:
        assert state.rows(query)[0]["n"] > before  # type: ignore[operator]
    assert len(re.findall('class="mark"|class="diamond"', site.get("/history?eval=capitals&model=mine"))) == 4


@pytest.mark.long
def test_a_result_is_shown_alone_where_the_scores_before_are_gone(site: Site) -> None:
    site.nights.run(shots=2, capitals=0.3, other={"sums": 0.3})
    publish(site.lake)
    sorted((site.lake.root / "scores" / "eval=capitals" / "model=mine").glob("*.parquet"))[-2].unlink()
    text = site.get("/samples?eval=capitals&model=mine")
    assert "Nothing is compared: the scores of capitals|mine of" in shown(text)
    assert "Nothing is compared" in shown(site.get(site.links(text, "/sample")[0]))


@pytest.mark.long
def test_a_damaged_file_is_named(site: Site, tmp_path: Path) -> None:
    site.nights.run(shots=2, capitals=0.25, other={"sums": 0.3})
    publish(site.lake)
    path = sorted((site.lake.root / "scores" / "eval=capitals" / "model=mine").glob("*.parquet"))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(content)
    text = shown(site.get("/samples?eval=capitals&model=mine", 500))
    assert path.name in text
    assert "eval-dagster verify" in text
    assert site.get("/")
