"""A gate's result for CI systems: JUnit XML, and Markdown as GitHub shows it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from xml.etree import ElementTree

from eval_dagster.gate.records import GateResult, minute
from eval_dagster.gate.wording import (
    FIGURE_COLUMNS,
    NOT_JUDGED,
    Tone,
    aggregate_evidence,
    aggregate_remarks,
    asked_in_full,
    cause_text,
    clearest_fall,
    evidence,
    figures,
    level,
    proof_text,
    title,
    tone,
    unjudged,
    verdict_line,
)
from eval_dagster.pages.report.evidence import flips_of
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import COMPARED, Regression, Verdict
from eval_dagster.texts.figures import number
from eval_dagster.texts.visible_text import markdown_text, visible

_MARKS = {Tone.BAD: "❌", Tone.WARNING: "⚠️", Tone.GOOD: "✅", Tone.UNKNOWN: "❔"}
_ORDER = (
    *(Verdict.REGRESSED, Verdict.ERRORS, Verdict.NOT_EVALUATED, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP),
    *(Verdict.IMPROVED, Verdict.FIRST_RESULT, Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE),
)
_COLUMNS = ("eval", "model", "metric", *FIGURE_COLUMNS, "flipped")
_RIGHT = frozenset(_COLUMNS[3:])
_WORDS = ("proof", "what differs")
_FIGURES = (
    *("value", "baseline_value", "stored_baseline_value", "difference", "stderr", "ci_low", "ci_high", "p_value", "p_adjusted"),
    *("n_common", "n_only_value", "n_only_baseline", "n_new", "n_gone", "min_detectable", "noise_floor", "n_errors", "n_evaluable"),
    *("anchor_value", "drift", "drift_p_value", "drift_p_adjusted", "margin", "margin_p_value", "margin_level"),
    *("drift_e_value", "drift_e_limit"),
    *("n_not_asked", "look"),
    *("fall_level", "n_fresh", "fresh_difference", "fresh_stderr", "fresh_p_value", "fresh_level"),
)
_AGGREGATE_FIGURES = (
    *("value", "baseline_value", "difference", "stderr", "ci_low", "ci_high", "p_value", "p_adjusted", "n_common", "min_detectable"),
    *("anchor_value", "drift", "drift_p_value", "drift_p_adjusted"),
)


def junit_xml(result: GateResult, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """The result as JUnit XML: one test suite, and in it one test case for each eval, model and metric, and for each aggregate and model.

    A regression, too many errors, and a gap that keeps the suite from passing are failures if the suite's severity is `error`; otherwise
    they are output of the case, or skipped cases. Other results that were not compared are skipped cases with the reason. If nothing was
    judged, a further case says so. The figures are properties of the case, unrounded. `links` are addresses by what they show, which become
    properties of the suite.
    """
    cases = [*(_case(row, result) for row in result.regressions), *(_aggregate_case(row, result) for row in result.aggregates)]
    if not (result.is_green or result.red or result.missing or result.red_aggregates or result.missing_aggregates):
        case = ElementTree.Element("testcase", classname=visible(result.suite), name="the suite as a whole", time="0")
        if result.severity == "error":
            ElementTree.SubElement(case, "failure", message=visible(verdict_line(result)), type=result.outcome.value)
        else:
            ElementTree.SubElement(case, "system-out").text = visible(verdict_line(result))
        cases.append(case)
    counts = Counter(child.tag for case in cases for child in case)
    totals = {name: str(count) for name, count in (("tests", len(cases)), ("failures", counts["failure"]), ("errors", 0))}
    root = ElementTree.Element("testsuites", {"name": "eval_dagster", **totals})
    timestamp = result.judged_at.replace(tzinfo=None).isoformat(timespec="seconds")
    facts = {"name": visible(result.suite), **totals, "skipped": str(counts["skipped"]), "time": "0", "timestamp": timestamp}
    suite = ElementTree.SubElement(root, "testsuite", facts)
    _add_properties(
        suite,
        {
            "verdict": verdict_line(result),
            "outcome": result.outcome.value,
            "alpha": result.alpha,
            "level": result.level,
            "severity": result.severity,
            "run_id": result.run_id,
            **links,
        },
    )
    suite.extend(cases)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def markdown(result: GateResult, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """The result as GitHub-flavoured Markdown: the verdict, a table for each verdict, and reasons why results were not judged.

    `links` are addresses by what they show.
    """
    flips = {(each.eval, each.model, each.metric or None): each for each in flips_of(result)}
    lines = [f"## {_MARKS[tone(result)]} {markdown_text(result.suite)}: {markdown_text(verdict_line(result))}", ""]
    if fall := clearest_fall(result):
        lines += [f"Fall: {markdown_text(fall)}", ""]
    for verdict in _ORDER:
        rows, aggregates = result.with_verdict(verdict), [row for row in result.aggregates if row.verdict is verdict]
        if not (rows or aggregates):
            continue
        lines += [f"### {verdict.value.capitalize()}: {len(rows) + len(aggregates)}", ""]
        if verdict not in COMPARED:
            lines += [
                f"- **{markdown_text(each.models)}** ({markdown_text(each.what)}): {markdown_text(each.reason)}" for each in unjudged(rows)
            ]
            lines += [
                f"- **{markdown_text(each.model)}** (aggregate {markdown_text(each.aggregate)}): {markdown_text(each.reason or '')}"
                for each in aggregates
            ]
        else:
            lines += ["| " + " | ".join((*_COLUMNS, *_WORDS)) + " |"]
            lines += ["|" + "|".join("---:" if name in _RIGHT else "---" for name in (*_COLUMNS, *_WORDS)) + "|"]
            for row in rows:
                changed = flips.get((row.eval, row.model, row.metric))
                flipped = "0" if changed is None else "; ".join(filter(None, [str(changed.total), changed.beside]))
                cells = (
                    row.eval,
                    row.model,
                    row.metric or "–",
                    *figures(row),
                    flipped,
                    proof_text(row) or "–",
                    cause_text(row.cause) or "–",
                )
                lines.append("| " + " | ".join(markdown_text(cell) for cell in cells) + " |")
            for each in aggregates:
                cells = (each.aggregate, each.model, each.definition, *figures(each), "–", "–", "–")
                lines.append("| " + " | ".join(markdown_text(cell) for cell in cells) + " |")
            words = [(title(row), "; ".join(row.remarks)) for row in rows]
            words += [(f"{each.aggregate} · {each.model}", aggregate_remarks(each)) for each in aggregates]
            reasons = [f"- {markdown_text(name)}: {markdown_text(said)}" for name, said in words if said]
            lines += ["", *reasons] if reasons else []
        lines.append("")
    if whole := asked_in_full(result.regressions):
        lines += [*(f"- {markdown_text(line)}" for line in whole), ""]
    lines.append(f"Judged {minute(result.judged_at)} {level(result)}. Results are compared on the samples that both have.")
    if links:
        lines += ["", " · ".join(f"[{markdown_text(name)}](<{link}>)" for name, link in links.items())]
    return "\n".join(lines) + "\n"


def unjudged_junit(suite: str, reasons: Sequence[str]) -> str:
    """JUnit XML of a suite that could not be judged: one test case, which fails."""
    totals = {"tests": "1", "failures": "1", "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "eval_dagster", **totals})
    of_suite = ElementTree.SubElement(root, "testsuite", {"name": visible(suite), **totals, "skipped": "0", "time": "0"})
    case = ElementTree.SubElement(of_suite, "testcase", classname=visible(suite), name="the suite as a whole", time="0")
    said = visible("\n".join([NOT_JUDGED, *reasons]))
    ElementTree.SubElement(case, "failure", message=NOT_JUDGED, type="not judged").text = said
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def unjudged_markdown(suite: str, reasons: Sequence[str]) -> str:
    """Markdown of a suite that could not be judged."""
    lines = [f"## {_MARKS[Tone.BAD]} {markdown_text(suite)}: {NOT_JUDGED}", "", *(f"- {markdown_text(reason)}" for reason in reasons)]
    return "\n".join(lines) + "\n"


def _aggregate_case(row: AggregateRegression, result: GateResult) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=visible(f"{row.suite}.{row.aggregate}"), name=visible(f"{row.model} · {row.definition}"), time="0"
    )
    facts = {"verdict": row.verdict.value, "test": row.test, **{figure: getattr(row, figure) for figure in _AGGREGATE_FIGURES}}
    _add_properties(case, {name: value for name, value in facts.items() if value is not None})
    said = visible(aggregate_evidence(row))
    if result.severity == "error" and (row.is_red or row in result.missing_aggregates):
        message = row.reason or f"{row.aggregate} {number(row.difference, '+')}"
        ElementTree.SubElement(case, "failure", message=visible(f"{row.verdict.value}: {message}"), type=row.verdict.value).text = said
    elif row.verdict not in COMPARED:
        ElementTree.SubElement(case, "skipped", message=visible(f"{row.verdict.value}: {row.reason or 'no reason is known'}"))
    else:
        ElementTree.SubElement(case, "system-out").text = f"{row.verdict.value}: {said}"
    return case


def _case(row: Regression, result: GateResult) -> ElementTree.Element:
    name = " · ".join(part for part in (row.model, row.metric) if part)
    case = ElementTree.Element("testcase", classname=visible(f"{row.suite}.{row.eval}"), name=visible(name), time="0")
    figures = {figure: getattr(row, figure) for figure in _FIGURES}
    facts = {"verdict": row.verdict.value, "baseline": row.baseline, "anchor": row.anchor, "test": row.test, "cause": row.cause, **figures}
    facts |= {"confirmation": row.confirmation}
    _add_properties(case, {name: value for name, value in facts.items() if value is not None})
    said = visible(evidence(row))
    if row in result.missing and result.severity == "error":
        message = f"{row.verdict.value}: {row.reason or 'no reason is known'}"
        ElementTree.SubElement(case, "failure", message=visible(message), type=row.verdict.value).text = said
    elif row.is_red and result.severity == "error":
        cause = cause_text(row.cause)
        message = row.reason or f"{row.metric} {number(row.difference, '+')}" + (f" ({cause})" if cause else "")
        message += f"; {row.stopped}" if row.stopped else ""
        ElementTree.SubElement(case, "failure", message=visible(message), type=row.verdict.value).text = said
    elif row.verdict not in COMPARED:
        ElementTree.SubElement(case, "skipped", message=visible(f"{row.verdict.value}: {row.reason or 'no reason is known'}"))
    else:
        ElementTree.SubElement(case, "system-out").text = f"{row.verdict.value}: {said}"
    return case


def _add_properties(parent: ElementTree.Element, values: Mapping[str, object]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=visible(str(value)))
