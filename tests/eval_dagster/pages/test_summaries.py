"""What CI systems and pull requests are told."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from gate_results import EACH, FIRST, HOSTILE, IMPROVED, UNCHANGED, change, gate_result, incomparable, regression

from eval_dagster.cli.gate import print_gate
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.wording import Tone, clearest_fall, tone, verdict_line
from eval_dagster.pages.report.summaries import junit_xml, markdown
from eval_dagster.records.judgements import Verdict
from eval_dagster.texts.visible_text import markdown_text


def parsed(result: GateResult) -> ElementTree.Element:
    """The suite's element of the XML."""
    root = ElementTree.fromstring(junit_xml(result).encode())
    assert root.tag == "testsuites"
    (suite,) = root
    assert {name: root.get(name) for name in ("tests", "failures", "errors")} == {
        name: suite.get(name) for name in ("tests", "failures", "errors")
    }
    return suite


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, without their rules; a pipe that is escaped is no border."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("|---", "| ---"))]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_a_regression_is_a_failure_with_its_evidence() -> None:
    suite = parsed(EACH)
    assert suite.attrib | {"timestamp": ""} == {
        "name": "nightly",
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
        "time": "0",
        "timestamp": "",
    }
    assert suite.get("timestamp") == "2026-01-31T02:30:00"
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    failure = cases["nightly.capitals", "mine · accuracy"].find("failure")
    assert failure is not None
    assert failure.get("message") == "accuracy -0.120 (model, prompt)"
    for part in ("0.810 → 0.690", "-0.160 to -0.080", "p < 0.0001", "400 common samples", "0.056", "model, prompt"):
        assert part in str(failure.text)
    gap = cases["nightly.sums", "gone"].find("failure")
    assert gap is not None
    assert (gap.get("type"), gap.get("message")) == ("not comparable", "not comparable: the model gone cannot be loaded")
    properties = {each.get("name"): each.get("value") for each in cases["nightly.capitals", "mine · accuracy"].iter("property")}
    assert (properties["difference"], properties["p_adjusted"], properties["n_common"]) == ("-0.12", "4e-05", "400")
    assert "noise_floor" not in properties


def test_what_is_only_said_fails_no_build() -> None:
    suite = parsed(gate_result(regression(), severity="warn"))
    assert (suite.get("failures"), suite.get("tests")) == ("0", "1")
    (said,) = suite.iter("system-out")
    assert str(said.text).startswith("regressed: 0.810 → 0.690")


def test_hostile_texts_leave_the_xml_valid() -> None:
    suite = parsed(gate_result(incomparable(reason=HOSTILE), regression(metric="a<b&\x1f", cause="mo\ufffedel")))
    gap, failure = suite.iter("failure")
    assert 'not comparable: a|b\n<script>alert("1")</script>&\\x00\\x0b]]>' in str(gap.get("message"))
    assert failure.get("message") == r"a<b&\x1f -0.120 (mo\ufffedel)"


def test_what_was_not_judged_fails_a_build_unless_it_is_allowed() -> None:
    """As a failure of its own case; if nothing was judged, of a case of the suite."""
    gap = incomparable(verdict=Verdict.NOT_EVALUATED)

    def ends(result: GateResult) -> list[str]:
        return [child.tag for case in parsed(result).iter("testcase") for child in case if child.tag != "properties"]

    assert ends(gate_result(UNCHANGED, gap)) == ["system-out", "failure"]
    assert ends(gate_result(UNCHANGED, gap, severity="warn")) == ["system-out", "skipped"]
    assert ends(replace(gate_result(UNCHANGED, gap), require=("capitals",))) == ["system-out", "skipped"]
    assert ends(replace(gate_result(UNCHANGED, gap), require=("sums",))) == ["system-out", "failure"]
    assert ends(gate_result(incomparable(verdict=Verdict.ACCEPTED_GAP))) == ["skipped", "failure"]
    assert ends(gate_result()) == ["failure"]
    assert ends(gate_result(FIRST)) == ["skipped"]


def test_markdown_has_a_table_of_each_verdict() -> None:
    text = markdown(EACH)
    first, *_ = text.splitlines()
    assert first == ("## ❌ nightly: 1 of 4 results regressed: capitals on mine (accuracy -0.120); 1 improved; 1 not comparable")
    rows = cells(text)
    head = rows[0]
    regressed = dict(zip(head, rows[1], strict=True))
    assert regressed == {
        "eval": "capitals",
        "model": "mine",
        "metric": "accuracy",
        "baseline": "0.810",
        "now": "0.690",
        "difference": "-0.120",
        "95 % interval": "-0.160 to -0.080",
        "p (Holm)": "&lt; 0.0001",
        "samples": "400",
        "flipped": "2",
        "proof": "–",
        "what differs": "model, prompt",
    }
    assert [row[0] for row in rows if row != head] == ["capitals", "sums", "capitals"]
    assert "- **gone** (sums): the model gone cannot be loaded" in text


def test_what_only_one_of_the_two_scores_has_not_flipped() -> None:
    gone = (change(sample_id=name, value=None, answer=None) for name in ("gone1", "gone2"))
    new = change(sample_id="new", value=1.0, baseline_value=None, baseline_answer=None)
    head, row = cells(markdown(gate_result(regression(), changes=(change(), *gone, new))))
    assert dict(zip(head, row, strict=True))["flipped"] == "1; 2 with a score in the baseline alone, 1 with a score now alone"


def test_the_clearest_fall_of_a_green_suite_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    fell = regression(
        verdict=Verdict.NO_CHANGE_SEEN, value=0.7, baseline_value=1.0, difference=-0.3, ci_low=-0.497, ci_high=-0.048, n_common=20
    )
    fell = replace(fell, p_value=0.02, p_adjusted=0.04, min_detectable=0.412)
    less = replace(UNCHANGED, p_value=0.6)
    said = (
        "capitals · mine · accuracy 1.000 → 0.700 (-0.300, 95 % interval -0.497 to -0.048), the clearest fall of 2: no change seen, since "
        "p = 0.04 is above the level 0.0033; on 20 samples a fall of 0.412 is found in 8 of 10 cases"
    )
    result = replace(gate_result(less, fell), level=0.00333)
    assert f"Fall: {markdown_text(said)}" in markdown(result)
    print_gate(result)
    assert said in " ".join(capsys.readouterr().out.split())
    better = replace(fell, difference=0.3)
    assert clearest_fall(replace(result, regressions=[better])) is None
    assert clearest_fall(replace(result, regressions=[replace(better, higher_is_better=False)])) is not None
    assert clearest_fall(replace(result, regressions=[replace(fell, reason="not confirmed")])) is None


def test_hostile_texts_break_no_table_and_start_no_tag() -> None:
    text = markdown(gate_result(incomparable(reason=HOSTILE), regression(metric="x|y\n# z")))
    (_, row) = cells(text)
    assert row[2] == r"x\|y \# z"
    assert "<script" not in text
    assert r"\`code\` \_under\_" in text
    assert "\x00" not in text


@pytest.mark.parametrize(
    ("result", "expected", "line"),
    [
        (EACH, Tone.BAD, "1 of 4 results regressed: capitals on mine (accuracy -0.120); 1 improved; 1 not comparable"),
        (gate_result(UNCHANGED), Tone.GOOD, "No regression seen in 1 comparison"),
        (gate_result(UNCHANGED, IMPROVED), Tone.GOOD, "No regression seen in 2 comparisons; 1 improved"),
        (
            gate_result(UNCHANGED, incomparable()),
            Tone.BAD,
            "Incomplete: 1 of 2 results not comparable (sums on gone: the model gone cannot be loaded); no regression seen in 1 comparison",
        ),
        (
            gate_result(UNCHANGED, incomparable(verdict=Verdict.NOT_EVALUATED), severity="warn"),
            Tone.WARNING,
            "Incomplete: 1 of 2 results not evaluated (sums on gone: the model gone cannot be loaded); no regression seen in 1 comparison",
        ),
        (
            replace(gate_result(UNCHANGED, incomparable()), require=0.5),
            Tone.WARNING,
            "No regression seen in 1 comparison; 1 not comparable, which `require` allows",
        ),
        (
            gate_result(UNCHANGED, incomparable(verdict=Verdict.ACCEPTED_GAP), FIRST),
            Tone.WARNING,
            "No regression seen in 1 comparison; 1 first result; 1 accepted gap",
        ),
        (gate_result(incomparable(verdict=Verdict.ACCEPTED_GAP)), Tone.BAD, "Incomplete: nothing was judged; 1 accepted gap"),
        (gate_result(FIRST), Tone.UNKNOWN, "First results: nothing to compare with yet; later results are compared with this one"),
        (
            gate_result(FIRST, incomparable(verdict=Verdict.ACCEPTED_GAP)),
            Tone.UNKNOWN,
            "Nothing to compare with yet; 1 first result; 1 accepted gap",
        ),
        (gate_result(regression(), severity="warn"), Tone.WARNING, "1 of 1 results regressed: capitals on mine (accuracy -0.120)"),
        (
            gate_result(regression(n_common=5, n_only_baseline=35)),
            Tone.BAD,
            "1 of 1 results regressed: capitals on mine (accuracy -0.120); "
            "fewer than half of the baseline's samples in capitals on mine (5 of 40)",
        ),
        (gate_result(replace(UNCHANGED, n_common=20, n_only_baseline=20)), Tone.GOOD, "No regression seen in 1 comparison"),
        (gate_result(), Tone.BAD, "Incomplete: the suite has no results to judge"),
        (
            gate_result(incomparable(), incomparable(eval="more"), incomparable(reason="other")),
            Tone.BAD,
            "Incomplete: 3 of 3 results not comparable (sums, more on gone: the model gone cannot be loaded; sums on gone: other); "
            "nothing was compared",
        ),
    ],
)
def test_the_verdict_in_one_line(result: GateResult, expected: Tone, line: str) -> None:
    assert (tone(result), verdict_line(result)) == (expected, line)
    assert line in markdown(result).replace("\\", "")


def test_many_regressions_are_counted_rather_than_listed() -> None:
    rows = [regression(eval=f"eval-{number}") for number in range(5)]
    assert verdict_line(gate_result(*rows)).endswith("eval-2 on mine (accuracy -0.120) and 2 more")
    result = gate_result(*rows)
    assert len(cells(markdown(result))) == 6
    assert parsed(replace(result, severity="warn")).get("failures") == "0"
    assert parsed(result).get("failures") == "5"


def test_both_link_the_pages_that_can_be_reached() -> None:
    links = {"Results": "https://evals.example/night?suite=nightly&at=2026", "Run in Dagster": "https://dagster.example/runs/run-1"}
    root = ElementTree.fromstring(junit_xml(EACH, links))
    properties = {each.get("name"): each.get("value") for each in root.findall("testsuite/properties/property")}
    assert links.items() <= properties.items()
    assert markdown(EACH, links).endswith(
        "\n\n[Results](<https://evals.example/night?suite=nightly&at=2026>) · [Run in Dagster](<https://dagster.example/runs/run-1>)\n"
    )
    assert "](<" not in markdown(EACH)


def test_models_that_failed_alike_in_different_minutes_are_one_reason() -> None:
    said = "failed at dataset_snapshot on 2026-01-31 02:{:02} UTC: no such library"
    rows = [incomparable(model=f"m{at}", verdict=Verdict.NOT_EVALUATED, reason=said.format(at)) for at in (29, 30)]
    assert f"2 of 2 results not evaluated (sums on m29, m30: {said.format(29)})" in verdict_line(gate_result(*rows))
    other = replace(rows[1], reason=said.format(30).replace("library", "file"))
    assert f"(sums on m29: {said.format(29)}; sums on m30: {other.reason})" in verdict_line(gate_result(rows[0], other))


def test_what_is_unchanged_and_what_was_asked_in_full_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "its samples come in clusters"
    result = gate_result(replace(UNCHANGED, is_unchanged=True), replace(UNCHANGED, eval="other", whole_reason=reason), IMPROVED)
    assert verdict_line(result) == "No regression seen in 3 comparisons; 1 with the answers of its baseline; 1 improved"
    twice = gate_result(*[replace(UNCHANGED, eval=name, is_unchanged=True) for name in "ab"])
    assert verdict_line(twice).endswith("; 2 with the answers of their baselines")
    line = f"1 result asked in full: {reason}"
    assert f"- {line}" in markdown(result).splitlines()
    assert any(f"asked in full: {reason}" in str(out.text) for out in parsed(result).iter("system-out"))
    print_gate(result)
    assert line in " ".join(capsys.readouterr().out.split())
