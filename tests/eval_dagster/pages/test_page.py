"""The page of a suite's night, made from a lake that the stages wrote."""

import re
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from gate_results import HOSTILE, change, gate_result, incomparable, regression
from html_reading import Page
from scripted_nights import Nights

import eval_dagster.pages.report.page as page_module
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.report.contents import collect
from eval_dagster.pages.report.evidence import MOST_SHOWN
from eval_dagster.pages.report.page import render
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict
from eval_dagster.texts.figures import number
from eval_dagster.texts.visible_text import visible


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """Two nights: in the second one a model is worse at two evals, another better at one; a third model cannot be loaded."""
    found = Nights(tmp_path_factory.mktemp("nights"), with_gone=True)
    found.run(other={"sums": 0.5})
    found.run(shots=2, capitals=0.3, completion=0.5, other={"sums": 0.3})
    return found


@pytest.fixture(scope="module")
def project(nights: Nights) -> Project:
    return nights.project(shots=2)


@pytest.fixture(scope="module")
def result(project: Project) -> GateResult:
    return judge(project, "nightly", run_id="gate")


@pytest.fixture(scope="module")
def html(project: Project, result: GateResult) -> str:
    return render(collect(project, result))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


@pytest.mark.long
def test_a_row_says_why_it_was_asked_in_full(project: Project, result: GateResult) -> None:
    rows = [replace(row, whole_reason="its samples come in clusters") if row.difference is not None else row for row in result.regressions]
    assert "asked in full: its samples come in clusters" in Page(render(collect(project, replace(result, regressions=rows)))).text()


@pytest.mark.long
def test_the_verdict_comes_first(page: Page, result: GateResult) -> None:
    said = "2 of 9 results regressed: capitals on mine"
    assert page.text("header#").startswith(f"nightly ✗ {said}")
    assert said in page.text("title#")
    assert "1 improved; 3 not evaluated" in page.text("header#")
    assert len(result.with_verdict(Verdict.REGRESSED)) == 2


def test_each_verdict_has_its_evidence(page: Page, result: GateResult) -> None:
    for verdict, section in ((Verdict.REGRESSED, "regressed"), (Verdict.IMPROVED, "improved")):
        rows = result.with_verdict(verdict)
        assert rows
        assert page.text(f"section#{section}").count("95 % interval") == len(rows)
        for row in rows:
            said = page.text(f"article#result-{row.eval}-{row.model}-{row.metric}".replace("s-c", "s_2d_c").replace("-bf", "_2d_bf"))
            figures = (
                number(row.difference, "+"),
                f"{number(row.baseline_value)} → {number(row.value)}",
                f"{number(row.ci_low, '+')} to {number(row.ci_high, '+')}",
                "exact McNemar",
                f"last left its band {result.judged_at:%Y-%m-%d}",
                f"common samples {row.n_common}",
                f"detectable from {number(row.min_detectable)}",
                "prompt, model" if row.eval == "arithmetic" else "what differs model",
                f"{sum((each.eval, each.model) == (row.eval, row.model) for each in result.changes)} samples flipped",
            )
            for figure in figures:
                assert figure in said
    assert page.text("section#unjudged").count("the weights are not there") == 1
    assert page.text("section#unjudged").endswith(" 3 capitals, capitals-completion, arithmetic gone")
    assert page.text("section#comparisons").count("no change seen") == 2 + 1  # and the note below the table
    assert page.text("section#comparisons").count("not worse (proven)") == 1


def test_the_leaderboard_and_the_histories_are_those_of_the_lake(page: Page, project: Project) -> None:
    contents = collect(project, judge(project, "nightly", run_id="again"))
    assert [standing.model for standing in contents.standings["capitals"]] == ["mine-bf16", "mine", "gone"]
    best, second, none = contents.standings["capitals"]
    assert (best.rank, second.rank, none.rank, none.value) == (1, 2, None, None)
    said = page.text("section#leaderboard")
    for standing in (best, second):
        assert f"{standing.rank}. {standing.model} {number(standing.value)}" in said
    assert f"{number(best.ci_low)} to {number(best.ci_high)}, n = {best.n}" in said
    assert "gone – failed at model_outputs" in said
    fallen = next(history for history in contents.histories if (history.eval, history.model) == ("capitals", "mine"))
    assert [point.value for point in fallen.points][-1] == second.value
    labels = [str(attrs["aria-label"]) for tag, attrs in page.tags if tag == "svg"]
    assert any(label.startswith("capitals · mine: accuracy over 2 results") for label in labels)
    assert [point.is_change for point in fallen.points] == [False, True]
    (look,) = fallen.changes
    marked = [label for label in labels if "it left its band on" in label]
    assert len(marked) == 2 * 3  # where it changed, and in the history
    assert f"◆ {look.materialized_at:%Y-%m-%d %H:%M} UTC: {number(look.difference)} (model)" in page.text("section#history")


def test_flipped_samples_stand_side_by_side(page: Page, result: GateResult) -> None:
    flipped = [each for each in result.changes if (each.eval, each.model) == ("capitals", "mine")]
    said = page.text("article#flips-capitals-mine-accuracy")
    worse = [each for each in flipped if each.value == 0.0]
    assert len(flipped) > MOST_SHOWN
    assert f"accuracy: {len(flipped)} flipped {MOST_SHOWN} of {len(flipped)} are shown: {len(worse)} worse" in said
    assert said.count("now it answers") == MOST_SHOWN
    first = worse[0]
    assert f"asked {' '.join(str(first.prompt).split())} correct {first.gold[0].strip()}" in said
    assert f"baseline answered {str(first.baseline_answer).strip()} now it answers {str(first.answer).strip()}" in said


def test_rows_that_are_gone_have_not_flipped(project: Project, result: GateResult) -> None:
    gone = change(sample_id="gone1", value=None, answer=None)
    lost = replace(result, changes=[*result.changes, gone])
    said = Page(render(collect(project, replace(lost, changes=[gone])))).text("article#flips-capitals-mine-accuracy")
    assert "0 flipped, 1 with a score in the baseline alone" in said
    assert "1.000 → – no score now" in said
    assert "now it answers (no answer)" in said
    card = Page(render(collect(project, lost))).text("article#result-capitals-mine-accuracy")
    flipped = [each for each in result.changes if (each.eval, each.model) == ("capitals", "mine")]
    assert f"{len(flipped)} samples flipped" in card
    assert "; 1 with a score in the baseline alone" in card


def test_what_a_model_wrote_is_text(page: Page, html: str) -> None:
    """The scripted sums are answered with a script."""
    said = page.text("details#flips-arithmetic-mine_2d_bf16-exact_number")
    assert "<script>alert(1)</script>" in said
    assert "<script" not in html
    assert not [tag for tag, _ in page.tags if tag in ("script", "iframe", "object", "link", "img", "form")]


def test_hostile_texts_everywhere_are_text(project: Project) -> None:
    everywhere = change(prompt=HOSTILE, gold=(HOSTILE, ""), answer=HOSTILE * 200, baseline_answer=None, sample_id=HOSTILE, subject=HOSTILE)
    rows = (regression(cause=HOSTILE, baseline=HOSTILE), incomparable(reason=HOSTILE, metric=HOSTILE))
    hostile = replace(gate_result(*rows, changes=(everywhere,)), warnings=(HOSTILE,))
    found = Page(render(collect(project, hostile)))
    assert not [tag for tag, _ in found.tags if tag == "script"]
    said = found.text()
    assert said.count('<script>alert("1")</script>&\\x00\\x0b]]>') > 5
    assert "Other problems a|b" in said
    assert "baseline answered (not kept)" in said
    assert f"({200 * len(visible(HOSTILE)) - 6000:,} characters are left out)" in said
    assert not [value for _, attrs in found.tags for name, value in attrs.items() if name.startswith("on")]


def test_nothing_is_loaded(page: Page) -> None:
    """The page is complete: what it refers to is in it."""
    assert page.targets
    for target in page.targets:
        assert target.startswith("#"), target
        assert target[1:] in page.ids, target
    assert len(page.ids) == len(set(page.ids))
    policy = next(attrs for tag, attrs in page.tags if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'")


def test_it_can_be_read_without_eyes(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) > 10
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in pictures)
    assert ("html", {"lang": "en"}) in page.tags
    assert any(attrs.get("name") == "viewport" for tag, attrs in page.tags if tag == "meta")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_differ_enough_to_be_read(scheme: str) -> None:
    """WCAG 2.1, 1.4.3: 4.5 to 1 for texts."""
    style = Path(page_module.__file__).with_name("templates").joinpath("style.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media (prefers-color-scheme: dark)", 1))
    colours = light if scheme == "light" else light | dark
    assert len(dark) >= len(light) - 1
    texts, grounds = ("ink", "muted", "line", "bad", "good", "warning"), ("page", "card", "soft")
    own = [(name, f"{name}-soft") for name in ("bad", "good", "warning", "unknown")] + [("ink", f"{name}-soft") for name in ("bad", "good")]
    for text, ground in [*product(texts, grounds), *own]:
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def _contrast(a: str, b: str) -> float:
    dark, light = sorted(_luminance(colour) for colour in (a, b))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_versions_say_what_differs_from_the_baseline(page: Page, project: Project, result: GateResult) -> None:
    said = page.text("section#versions")
    assert "arithmetic · mine-bf16: prompts, model differ from the baseline" in said
    assert "capitals · mine: model differs from the baseline" in said
    contents = collect(project, result)
    model = next(version for version in contents.versions["capitals", "mine"] if version.what == "model")
    assert model.baseline is not None
    assert f"model {model.now} {model.baseline}" in said
    assert "dataset rows" in said
    assert all(name in said for name in ("duckdb", "scipy", "metric accuracy", "mine.py:answer"))


@pytest.mark.long
def test_costs_are_those_of_the_runs_asked_for(nights: Nights, project: Project, result: GateResult) -> None:
    costs = {run: collect(project, result, run_ids=[run]).costs for run in ("night-1", "night-2", "none")}
    assert [(cost.requests_computed, cost.requests_cached) for cost in costs["night-1"]] == [(180, 0)] * 6
    assert costs["none"] == []
    nights.run(shots=2, capitals=0.3, completion=0.5, other={"sums": 0.3}, run_id="cached", same_night=True)
    again = collect(project, result, run_ids=["cached"]).costs
    assert [(cost.requests_computed, cost.requests_cached, cost.model_seconds) for cost in again] == [(0, 180, 0.0)] * 6
    assert collect(project, result).costs == again
    said = Page(render(collect(project, result))).text("header#")
    assert "0 requests computed 1,080 from the cache" in said


@pytest.mark.long
def test_a_first_night_and_no_night_at_all(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.write_models()
    project = nights.project()
    nothing = Page(render(collect(project, judge(project, "nightly", run_id="gate"))))
    assert "Incomplete: 6 of 6 results not evaluated (" in nothing.text("header#")
    assert "there is no result yet" in nothing.text("header#")
    assert "no result yet" in nothing.text("section#leaderboard")
    assert "section#history" not in [f"{tag}#{attrs.get('id')}" for tag, attrs in nothing.tags]
    nights.run()
    first = Page(render(collect(project, judge(project, "nightly", run_id="gate"))))
    said = first.text("header#")
    assert "First results: nothing to compare with yet; later results are compared with these 6" in said
    assert "earlier result" not in first.text("main#"), "one sentence says it, and not a row a result"
    sections = [f"{attrs.get('id')}" for tag, attrs in first.tags if tag == "section"]
    assert sections[0] == "leaderboard"
    assert said.index("Leaderboard") < said.index("History"), "the links stand in the order of the sections"
    assert "6 first results" in said
    assert "not comparable" not in said
    assert "mine 0." in first.text("section#leaderboard")
    assert "no earlier result" not in first.text("section#leaderboard"), "the score is as good as any"
    assert "differ from the baseline" not in first.text("section#versions")
    assert all(target[1:] in first.ids for target in first.targets)


@pytest.mark.long
def test_a_history_has_the_change_points_of_all_suites_wherever_it_is_shown(tmp_path: Path) -> None:
    """Another suite judges the same history, at another level."""
    nights = Nights(tmp_path)
    for share in (0.18, 0.4, 0.18):
        nights.run(capitals=share)
    project = nights.project()
    result = judge(project, "nightly", run_id="gate")
    own = [look for look in result.looks if (look.eval, look.model) == ("capitals", "mine")]
    assert [look.is_change_point for look in own] == [True, True]
    strict = replace(result, looks=[replace(look, is_change_point=look is own[0]) for look in own])
    write_result(project.lake, replace(result, suite="other"))
    write_result(project.lake, strict)
    publish(project.lake)
    key = "eval = 'capitals' and model = 'mine'"
    relation = read_rows(project.lake, f"select distinct materialized_at as time from change_points where {key} order by time")
    marked = read_rows(project.lake, f"select materialized_at as time from score_history where {key} and is_change_point order by time")
    (history,) = [each for each in collect(project, strict).histories if (each.eval, each.model) == ("capitals", "mine")]
    assert [look.materialized_at for look in history.changes] == [row["time"] for row in relation] == [row["time"] for row in marked]
    assert [point.at for point in history.points if point.is_change] == [row["time"] for row in relation]


@pytest.mark.long
def test_what_is_damaged_keeps_nothing_else_from_being_shown(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.run()
    project = nights.project()
    project.lake.require("metrics", "task_metrics", "capitals", "mine").path.write_bytes(b"no parquet")
    found = Page(render(collect(project, judge(project, "nightly", run_id="gate"))))
    assert "is damaged" in found.text("section#unjudged")
    assert "capitals · mine-bf16" in found.text("section#history")
    assert "capitals · mine " not in found.text("section#history")


def test_bars_show_who_is_better(html: str, project: Project, result: GateResult) -> None:
    """The further right a mark stands, the higher is the score, on one scale for all models of an eval."""
    contents = collect(project, result)
    section = html.partition('id="leaderboard"')[2].partition("</section>")[0]
    marks = {}
    for attrs, mark in re.findall(r'aria-label="([^"]+)">(.*?)</svg>', section, re.DOTALL):
        found = re.search(r'<rect x="([\d.]+)" y="3"', mark)
        if found:
            marks[attrs] = float(found[1])
    scores = {float(label.partition(",")[0]): place for label, place in marks.items()}
    assert {float(number(row.value)) for rows in contents.standings.values() for row in rows if row.value is not None} == set(scores)
    for (low, low_place), (high, high_place) in combinations(sorted(scores.items()), 2):
        assert high_place - low_place == pytest.approx(99 * (high - low), abs=0.2)
