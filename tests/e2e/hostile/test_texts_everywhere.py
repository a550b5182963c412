"""Any text at all, from a dataset and from a model, through each place that stores or shows it."""

import json
import re
import tempfile
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import duckdb
import pytest
from hostile_project import write_project
from hostile_texts import DANGEROUS, HALVES, STORABLE
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eval_dagster.gate.records import GateResult
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.notifications.messages import failure_notice, regression_notice
from eval_dagster.pages.report.contents import Contents
from eval_dagster.pages.report.evidence import flips_of
from eval_dagster.pages.report.histories import History
from eval_dagster.pages.report.page import render
from eval_dagster.pages.report.plots import ScorePoint, history_svg
from eval_dagster.pages.report.summaries import junit_xml, markdown
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import ChangedSample, Regression, Verdict
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult
from eval_dagster.texts.visible_text import is_storable, json_text, message_text, storable

JUDGED_AT = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)
POINT = ScorePoint(at=JUDGED_AT, value=0.5, ci_low=0.4, ci_high=0.6)
TEXTS = st.text(st.characters(codec=None), max_size=40) | st.sampled_from([*STORABLE, *HALVES])
SLOW = settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
ANSWERS = """
    import json
    from pathlib import Path

    TEXTS = json.loads(Path(__file__).with_name("answers.json").read_text())

    def echo(request):
        return TEXTS[len(request.prompt) % len(TEXTS)]

    def other(request):
        return ""
"""


def through_the_stages(texts: list[str], answers: list[str]) -> None:
    """Evaluate rows of these texts by a model that answers these; all that is kept is what was put in, or says what was wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_project(folder, texts)
        (folder / "answer.py").write_text(textwrap.dedent(ANSWERS))
        (folder / "answers.json").write_text(json.dumps(answers))
        project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
        stages = set(STAGES) - {"task_metrics"}
        outcomes = list(evaluate(project, [("words", "echo")], stages=stages, run_id="fuzz", reporter=SilentReporter()))
        failures = [each.message for each in outcomes if isinstance(each, StageFailure)]
        assert not failures, failures
        rows = {each.stage: read_rows(each.file.path) for each in outcomes if isinstance(each, StageResult)}
        asked = [text or "nothing" for text in texts]
        for text, prompt, response in zip(asked, rows["rendered_prompts"], rows["model_outputs"], strict=True):
            assert prompt["gold"] == [storable(text)]
            assert (prompt["error"] is None) == is_storable(text)
            assert prompt["error"] == response["error"]
            if response["error"] is None:
                answer = answers[len(prompt["prompt"]) % len(answers)]
                assert response["text"] == [storable(answer)]
                assert response["text_is_escaped"] is not is_storable(answer)
        scored = [row for row in rows["sample_scores"] if row["metric"] == "exact_match"]
        assert [row["error"] is None for row in scored] == [is_storable(text) for text in asked]
        with duckdb.connect(str(folder / "home" / "evals.duckdb"), read_only=True) as catalog:
            kept = catalog.execute("select row->>'text' from samples order by row_index").fetchall()
        for text, (found,) in zip(asked, kept, strict=True):
            assert found == text if is_storable(text) else json.loads(json.loads(found)["text;json"]) == text


@pytest.mark.long
@SLOW
@given(st.lists(TEXTS, min_size=1, max_size=30), st.lists(TEXTS, min_size=1, max_size=10))
@example([*STORABLE, *HALVES], [*HALVES, *STORABLE])
def test_what_is_kept_is_what_was_put_in(texts: list[str], answers: list[str]) -> None:
    through_the_stages(texts, answers)


@pytest.mark.long
@pytest.mark.timeout(1500)
@LONG
@given(st.lists(TEXTS, min_size=1, max_size=30), st.lists(TEXTS, min_size=1, max_size=10))
def test_what_is_kept_is_what_was_put_in_whatever_it_is(texts: list[str], answers: list[str]) -> None:
    through_the_stages(texts, answers)


def judged(text: str) -> GateResult:
    """A gate's result with a text wherever others write one."""
    fallen = Regression(
        suite="nightly",
        eval="words",
        model="echo",
        metric=text,
        value=0.5,
        baseline=text,
        baseline_value=0.7,
        difference=-0.2,
        stderr=0.1,
        ci_low=-0.3,
        ci_high=-0.1,
        p_value=0.001,
        p_adjusted=0.01,
        test=text,
        n_common=9,
        n_only_value=0,
        n_only_baseline=0,
        min_detectable=0.1,
        higher_is_better=True,
        verdict=Verdict.REGRESSED,
        cause=text,
        reason=text,
    )
    unknown = replace(fallen, eval="other", verdict=Verdict.NOT_COMPARABLE, difference=None, reason=text or "?")
    flipped = ChangedSample(
        eval="words",
        model="echo",
        metric=text,
        sample_id="1",
        subject=text,
        value=0.0,
        baseline_value=1.0,
        prompt=text,
        gold=(text,),
        answer=text,
        baseline_answer=text,
    )
    return GateResult(
        suite="nightly",
        judged_at=JUDGED_AT,
        run_id="1",
        alpha=0.05,
        level=0.01,
        severity="error",
        regressions=(fallen, unknown),
        changes=(flipped,),
        warnings=(text,),
    )


@settings(max_examples=150)
@given(TEXTS)
def test_a_judgement_of_any_text_is_told_in_every_form(text: str) -> None:
    result = judged(text)
    xml = junit_xml(result)
    assert ElementTree.fromstring(xml.encode()).tag == "testsuites"
    told = markdown(result)
    rows = [line for line in told.splitlines() if line.startswith("|")]
    bars = [line.replace("\\\\", "").replace("\\|", "").count("|") for line in rows]
    assert len(set(bars)) == 1, "a text made a cell of its own"
    notice = "\n".join(map(message_text, regression_notice(result, can_be_accepted=True)))
    failure = "\n".join(map(message_text, failure_notice("nightly", [text])))
    for each in (xml, told, notice, failure, json_text({"a": text})):
        assert not DANGEROUS.search(each)
        assert is_storable(each)
    assert "<script" not in told
    assert "<!channel" not in notice + failure


@pytest.mark.parametrize("text", ["\x1b[31m\x00\u202e<b>$x^2$ \\alpha", HALVES[0]])
def test_a_picture_of_any_names_is_a_picture(text: str) -> None:
    points = [POINT] * 2
    for is_file in (False, True):
        svg = history_svg(points, title=text, metric=text, is_file=is_file)
        assert not DANGEROUS.search(svg)
        assert "<b>" not in svg
        ElementTree.fromstring(svg)


@pytest.mark.long
@pytest.mark.parametrize("text", [*STORABLE, *HALVES])
def test_the_page_of_a_report_shows_any_text_as_text(text: str) -> None:
    result = judged(text)
    history = History(eval="words", model="echo", metric=text, points=[POINT] * 2, changes=[], mlflow_run=None, is_headline=True)
    parts: dict[str, Any] = {"standings": {}, "accepted": [], "costs": [], "versions": {}, "libraries": {text: text}}
    page = render(Contents(result=result, histories=[history], flips=flips_of(result), settings={"eval words": {text: text}}, **parts))
    assert not DANGEROUS.search(page)
    assert is_storable(page)
    tags = re.findall(r"<\s*(script|img|iframe|object|link|form|base)\b", page)
    assert not tags
