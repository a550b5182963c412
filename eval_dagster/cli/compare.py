"""The command `compare`: compares two models, or two states of one, on their common samples."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Annotated

import numpy as np
import typer
from rich.text import Text

from eval_dagster.cli.console import cell, errors, out, print_next, program_name
from eval_dagster.cli.options import Evals, RowFormat
from eval_dagster.cli.tables import Format, print_rows, print_screenful
from eval_dagster.errors import EvalDagsterError, LakeError, UsageError
from eval_dagster.gate.error_rates import asked_samples, n_lost
from eval_dagster.gate.proof import proof_of_pair
from eval_dagster.gate.scored_again import Rescorer
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict
from eval_dagster.results.comparison import MetricComparison, ScoreChanges, cause_words, changed_samples, compare_points
from eval_dagster.results.materializations import Materialization, MaterializationName, overall, require_even
from eval_dagster.results.trust import part_words
from eval_dagster.stages.looks import NOT_ASKED
from eval_dagster.statistics.noninferiority import NotWorse
from eval_dagster.statistics.paired import ALPHA, Comparison
from eval_dagster.statistics.verdicts import Case, Judgement, judge_suite
from eval_dagster.texts.figures import interval, number, p_value

_COLUMNS = ("eval", "metric", "a", "b", "difference", "95 % interval", "p (Holm)", "samples", "would be seen", "verdict", "what differs")
_NUMBERS = ("a", "b", "difference", "p (Holm)", "samples", "would be seen")
_OF_PROOFS = ("are_shares", "groups", "heaviest", "largest_change", "width")
_FIELDS = (
    *("eval", "metric", "a_model", "a_materialized_at", "b_model", "b_materialized_at"),
    *(field.name for field in fields(Comparison) if field.name not in _OF_PROOFS),
    *("p_adjusted", "margin", "margin_p_value", "unproven_reason", "verdict", "causes", "a_n_not_asked", "b_n_not_asked"),
)
"""The columns of the formats for programs."""
_STYLES = {Verdict.REGRESSED: "red", Verdict.IMPROVED: "green", Verdict.NOT_WORSE: "green"}
_PROMPT_END = 160
"""Characters of a prompt's end that are shown, since the question is there."""


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model, or one at a time: NAME@2026-01-31, NAME@previous.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The baseline, in the same forms.")],
    *,
    evals: Evals,
    all_metrics: Annotated[bool, typer.Option("--all-metrics", help="Compare every metric instead of the headlines.")] = False,
    alpha: Annotated[float, typer.Option(min=0.0, max=1.0, help="Level of significance of all comparisons together.")] = ALPHA,
    margin: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            help="The fall that must be refuted for 'not worse (proven)', in the metrics' unit "
            "[default: 0.03 for shares of right answers, 0.02 from 2,000 samples on, 3 % of the range of other metrics].",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Number of flipped samples to show for each eval.")] = 3,
    output: RowFormat = Format.TABLE,
) -> None:
    """Print by how much each eval differs between two points, the verdict, and samples that flipped.

    In formats other than a table, only the rows of the comparisons are printed.
    """
    project = Project.open()
    pairs, left_out = _pairs(project, a, b, evals)
    rescorer, apart = Rescorer(project), dict[str, None]()

    def alike(of_a: Materialization, of_b: Materialization, metric: str) -> tuple[Materialization, Materialization]:
        try:
            return rescorer.alike(of_a, of_b, metric)
        except EvalDagsterError as error:
            apart[f"{of_a.eval_name} · {metric}: the metric has changed, and the answers cannot be scored again: {error}"] = None
            return of_a, of_b

    def compared(*, headlines_only: bool) -> list[MetricComparison]:
        return [
            each
            for pair in pairs
            for each in compare_points(
                *pair, project.task(pair[0].eval_name).METRICS, alpha=alpha, alike=alike, headlines_only=headlines_only
            )
        ]

    shown = compared(headlines_only=not all_metrics)
    left_out += [_without_metric(pair, a, b) for pair in pairs if not any(each.a.eval_name == pair[0].eval_name for each in shown)]
    if not shown:
        offer = " (--all-metrics compares the others)" if not all_metrics and compared(headlines_only=False) else ""
        raise UsageError(f"there is nothing to compare: {'; '.join(left_out)}{offer}")
    for reason in left_out:
        errors.print(f"not compared: {reason}", style="yellow", soft_wrap=True)
    for point in {id(point): point for each in shown for point in (each.a, each.b) if _n_not_asked(point)}.values():
        row = next(row for row in overall(point).values() if row["is_headline"])
        said = part_words(row["n"] + row["n_errors"], _n_not_asked(point), row.get("estimate_note"))
        result = f"{point.eval_name} on {point.model} of {point.materialized_at:%Y-%m-%d %H:%M} UTC"
        errors.print(f"{result}: {said}", style="yellow", soft_wrap=True)
    for reason in apart:
        errors.print(f"compared by two forms of a metric: {reason}", style="yellow", soft_wrap=True)
    judged = judge_suite([Case(comparison=each.comparison, higher_is_better=each.higher_is_better) for each in shown], alpha=alpha)
    proofs = [_proof(project, each, margin) for each in shown]
    results = [
        (
            each,
            replace(judgement, verdict=Verdict.NOT_WORSE) if proof.is_proven and judgement.verdict is Verdict.NO_CHANGE_SEEN else judgement,
        )
        for each, judgement, proof in zip(shown, judged, proofs, strict=True)
    ]
    if output is not Format.TABLE:
        rows = []
        for (each, judgement), proof in zip(results, proofs, strict=True):
            points = [part for point in (each.a, each.b) for part in (point.model, point.materialized_at.isoformat())]
            figures = [getattr(each.comparison, field.name) for field in fields(Comparison) if field.name not in _OF_PROOFS]
            judged_as = [judgement.p_adjusted, proof.margin, proof.p_value, proof.reason, judgement.verdict.value, ", ".join(each.causes)]
            judged_as += [_n_not_asked(each.a), _n_not_asked(each.b)]
            rows.append([each.a.eval_name, each.metric, *points, *figures, *judged_as])
        print_rows(_FIELDS, rows, output)
        return
    cells = (_row(each, judgement) for each, judgement in results)
    print_screenful(f"a: {a}    b: {b}", _COLUMNS, cells, right=_NUMBERS, heads=("eval", "metric"), choices="--eval")
    for each in shown:
        if each.is_headline:
            _print_changes(each, samples)
    changed = _print_verdicts(results, proofs)
    levels = [f"{suite} was at the level {level:.2g}, which --alpha {level:.2g} takes here" for suite, level in _levels(project, shown)]
    gates = f"; the last judgement of {', that of '.join(levels)}" if levels else ""
    out.print(f"All of this together was tested at alpha = {alpha:g}{gates}.", soft_wrap=True)
    name = next(iter(changed[Verdict.REGRESSED]), shown[0].a.eval_name)
    print_next((f"compare {a} {b} --eval {name} --samples 50", "more of the samples that flipped"))


def _print_verdicts(results: Sequence[tuple[MetricComparison, Judgement]], proofs: Sequence[NotWorse]) -> dict[Verdict, list[str]]:
    """Print the evals of each verdict, with what was not proven. Returns those that changed, or are proven."""
    changed = {
        verdict: list(dict.fromkeys(each.a.eval_name for each, judgement in results if judgement.verdict is verdict)) for verdict in _STYLES
    }
    out.print()
    for verdict, names in changed.items():
        if names:
            out.print(f"a {verdict}: {', '.join(names)}", style=_STYLES[verdict])
    if changed[Verdict.NOT_WORSE]:
        of_proofs = [proof for (_, judgement), proof in zip(results, proofs, strict=True) if judgement.verdict is Verdict.NOT_WORSE]
        margins = sorted({proof.margin for proof in of_proofs if proof.margin is not None})
        out.print(f"Proven is, at 5 % each, that no score fell by its margin: {', '.join(f'{each:g}' for each in margins)}.")
    unseen = list(dict.fromkeys(each.a.eval_name for each, judgement in results if judgement.verdict is Verdict.NO_CHANGE_SEEN))
    if unseen and not (changed[Verdict.REGRESSED] or changed[Verdict.IMPROVED]):
        where = f" in {', '.join(unseen)}" if changed[Verdict.NOT_WORSE] else ""
        out.print(f"No change seen{where}; differences below 'would be seen' could have gone unnoticed.")
    for (each, judgement), proof in zip(results, proofs, strict=True):
        if proof.reason is not None and judgement.verdict is Verdict.NO_CHANGE_SEEN:
            out.print(f"Not proven: {each.a.eval_name} · {each.metric}: {proof.reason}", soft_wrap=True)
    return changed


def _proof(project: Project, each: MetricComparison, margin: float | None) -> NotWorse:
    """The test that a is not worse than b."""
    name = each.metric.partition("/")[0]
    return proof_of_pair(
        each.comparison,
        margin=margin,
        is_share=any(name == metric.NAME and metric.IS_PROPORTION for metric in project.task(each.a.eval_name).METRICS),
        higher_is_better=each.higher_is_better,
        n_samples=len(asked_samples(each.a, each.metric)[0]) + _n_not_asked(each.a),
        n_lost=n_lost(each.a, each.b, each.metric),
        is_part=bool(_n_not_asked(each.a) or _n_not_asked(each.b)),
    )


def _n_not_asked(point: Materialization) -> int:
    return int(point.metrics.info.counts.get(NOT_ASKED, 0))


def _pairs(project: Project, a: str, b: str, evals: Sequence[str]) -> tuple[list[tuple[Materialization, Materialization]], list[str]]:
    """The two points of each common eval, and the reasons why other evals are left out."""
    names = [MaterializationName.parse(text, list(project.config.models)) for text in (a, b)]
    for name in names:
        project.model(name.model)
    chosen = list(evals) or list(project.config.evals)
    for eval_name in chosen:
        project.eval(eval_name)
    project.lake.pull()
    if not project.lake.has("metrics"):
        raise UsageError(f"there is nothing to compare yet: nothing has been evaluated here; run `{program_name()} run` first")
    points = {text: [name.find(project.lake, each) for each in chosen] for text, name in zip((a, b), names, strict=True)}
    both = [(of_a, of_b) for of_a, of_b in zip(points[a], points[b], strict=True) if of_a is not None and of_b is not None]
    if not both:
        lacks = " and ".join(text for text, found in points.items() if not any(found)) or "one of the two"
        raise UsageError(
            f"there is nothing to compare: {lacks} has no results of {', '.join(chosen)}; "
            f"expected evals that both have, made by `{program_name()} run` (`{program_name()} sql score_history` lists what there is)"
        )
    left_out = [
        f"{eval_name}: {b if of_b is None else a} has no result"
        for eval_name, of_a, of_b in zip(chosen, points[a], points[b], strict=True)
        if (of_a is None) != (of_b is None)
    ]
    even = []
    for pair in both:
        try:
            for point in pair:
                require_even(point)
            even.append(pair)
        except LakeError as error:
            left_out.append(str(error))
    return even, left_out


def _levels(project: Project, shown: Sequence[MetricComparison]) -> Iterator[tuple[str, float]]:
    """The suites that judge these evals on these models, each with the level of its last judgement."""
    for name, suite in project.config.suites.items():
        if any(each.a.eval_name in suite.evals and each.a.model in suite.models for each in shown):
            with suppress(LakeError):
                file = project.lake.current("regressions", name)
                if file is not None and file.info.counts["level"]:
                    yield name, file.info.counts["level"]


def _without_metric(pair: tuple[Materialization, Materialization], a: str, b: str) -> str:
    """The reason why a common eval is not compared."""
    of_a, of_b = overall(pair[0]), overall(pair[1])
    name = pair[0].eval_name
    common = sorted(set(of_a) & set(of_b))
    if not common:
        return f"{name}: no metric is common: {a} has {', '.join(of_a) or 'none'}, {b} has {', '.join(of_b) or 'none'}"
    headline = next((metric for metric, row in of_a.items() if row["is_headline"]), None)
    return f"{name}: {b} has no {headline or 'headline metric'}, the headline of {a}; both have {', '.join(common)}"


def _row(each: MetricComparison, judgement: Judgement) -> list[object]:
    known = each.comparison
    return [
        each.a.eval_name,
        each.metric,
        number(known.value_a),
        number(known.value_b),
        number(known.difference, "+"),
        interval(known.ci_low, known.ci_high, "+"),
        p_value(judgement.p_adjusted),
        known.n_common,
        number(known.min_detectable),
        judgement.verdict.value,
        cause_words(", ".join(each.causes)) or "nothing",
    ]


def _print_changes(each: MetricComparison, most: int) -> None:
    changes = ScoreChanges.of(each.a, each.b, each.metric) if most else ()
    if not changes:
        return
    advantages = changes.differences * (1 if each.higher_is_better else -1)
    better, worse = int((advantages > 0).sum()), int((advantages < 0).sum())
    alone = len(changes) - better - worse
    of_ties = f" ({changes.ties} of them by a tie of choices)" if changes.ties else ""
    counts = f"{worse} worse in a, {better} better{of_ties}" + (f", {alone} with a score in only one of the two" if alone else "")
    out.print(f"\n{each.a.eval_name} · {each.metric}: {counts}", style="bold")
    first = changes.at(np.argsort(advantages, kind="stable")[:most])
    for change, sample in zip(first, changed_samples(each.a, each.b, each.metric, first), strict=True):
        prompt = "" if sample.prompt is None else sample.prompt.strip()
        tied = [name for name, is_tie in (("b", change.baseline_is_tie), ("a", change.is_tie)) if is_tie]
        tie = f"  ({' and '.join(tied)}: several choices are equally good, one of them is shown)" if tied else ""
        values = f"  {number(change.baseline_value)} → {number(change.value)}{tie}"
        out.print(Text.assemble((f"  {cell(sample.title)} · {cell(sample.subject)}", "dim"), values))
        out.print(f"    asked  …{cell(prompt[-_PROMPT_END:])}", soft_wrap=True)
        for what, text in (("gold", " | ".join(sample.gold)), ("a", sample.answer), ("b", sample.baseline_answer)):
            out.print(f"    {what.ljust(5)}  {cell(text)}", soft_wrap=True)
