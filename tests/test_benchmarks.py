"""What the benchmarks count and compare is right, whatever they measure."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import history
from benchmarks.agreement import compare_choices
from benchmarks.fairness import judge
from benchmarks.other_gates import (
    ALPHA,
    MARGIN,
    OURS,
    RESULTS,
    STATES,
    is_proven_by_one,
    is_proven_by_states,
    is_red,
    our_verdicts,
    shares,
    simulate,
    table,
)
from benchmarks.token_tree import count_nodes, count_scored, inputs_of
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.noninferiority import not_worse
from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.verdicts import Case, judge_suite


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_the_tree_has_a_node_for_each_distinct_prefix(sequences: list[list[int]]) -> None:
    prefixes = {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert count_nodes(sequences) == len(prefixes)


def test_the_last_token_of_a_choice_is_predicted_only(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = {"kind": "choices", "items": [{"context": "Is it? ", "continuations": ["No", "Yes"]}]}
    first, second = inputs_of(asked, [], tokenizer)
    assert [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in (first, second)] == ["Is it? N", "Is it? Ye"]
    assert first[0] == tokenizer.bos_token_id
    # " No" and " Yes": after the question mark and after the space there is one position for both.
    assert count_scored(asked, [], tokenizer) == 2 + 1 + 2


def test_a_text_is_predicted_from_its_first_token_on(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = {"kind": "perplexity", "items": [{"context": "abc"}]}
    [[prefix, *tokens]] = inputs_of(asked, [], tokenizer)
    assert prefix == tokenizer.bos_token_id
    assert tokenizer.decode(tokens) == "ab"
    assert count_scored(asked, [], tokenizer) == 3


def test_the_last_token_of_a_generated_text_is_read_by_nobody(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = {"kind": "text", "items": [{"context": "abc"}]}
    answers = [{"output_tokens": tokenizer.encode("xyz", add_special_tokens=False)}]
    [tokens] = inputs_of(asked, answers, tokenizer)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "abcxy"
    assert count_scored(asked, answers, tokenizer) == 3


def test_choices_agree_by_their_log_probabilities_and_by_the_best_of_them() -> None:
    items = [{"gold": [0]}, {"gold": [1]}]
    ours = [[-1.0, -2.0], [-3.0, -2.0]]
    assert compare_choices(items, ours, [[-1.0009, -2.0], [-3.0, -2.0009]]).is_equal
    assert not compare_choices(items, ours, [[-1.002, -2.0], [-3.0, -2.0]]).is_equal
    tie = compare_choices(items, ours, ours).summary
    assert tie == "log-probabilities to 0e+00, accuracy 1.000 and 1.000"
    close = [[-1.0, -1.0005], [-3.0, -2.0]]
    other = [[-1.0005, -1.0], [-3.0, -2.0]]
    assert not compare_choices(items, close, other).is_equal


def test_a_side_that_waits_for_starved_threads_misses_its_fair_share() -> None:
    def judged(ours: float, theirs: float) -> tuple[dict[str, str], list[str]]:
        seconds = {("ours", 0): 5.0, ("ours", 2): ours, ("lm-eval", 0): 30.0, ("lm-eval", 2): theirs}
        return judge(seconds, threads=2, neighbours=2)

    # Two threads beside two neighbours have half of two cores: 10 s is all that is theirs, 12.5 s is 0.8 of it.
    assert judged(12.0, 75.0)[1] == []
    assert judged(13.0, 110.0)[1] == ["fair share"]
    assert judged(12.0, 60.0)[1] == ["as far ahead as alone"]
    assert judged(17.2, 110.0)[0]["this engine, beside 2"] == "17.2 s, 0.58 of the fair share (goal 0.8)"


def test_the_page_shows_what_a_history_is_worth() -> None:
    results = json.loads(history.RESULTS.read_text("utf-8"))
    text = (Path(__file__).parents[1] / "docs" / "how-to" / "estimate.md").read_text("utf-8")
    assert history.table(results) in text
    assert history.table_by_variant(results) in text
    cells = results["cells"]["variant"]
    assert all(each["factor"] >= 2.5 for each in cells[1:])
    assert all(0.93 <= each["coverage"] <= 0.985 for each in cells)


def test_what_a_history_is_worth_is_measured_again() -> None:
    results = json.loads(history.RESULTS.read_text("utf-8"))
    variants, strangers = history.stored()
    cases = history.cases_of(variants, strangers)
    known = results["cells"]["variant"][1]
    found = history.cell(cases["variant"], known["asked"], 6)
    assert found["factor"] == pytest.approx(known["factor"], rel=0.35)
    assert found["printed"] == pytest.approx(known["printed"], rel=0.2)
    alone = history.cell(cases["simulated"], known["asked"], 40)
    assert alone["dropped"] > 0.5
    assert 0.5 < alone["factor"] < 1.6


def test_the_page_shows_the_verdicts_of_other_packages() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    text = (Path(__file__).parents[1] / "docs" / "explanation" / "gate.md").read_text("utf-8")
    assert table(results) in text
    assert f"Of {results['nights']} simulated nights a cell" in " ".join(text.split())


def test_the_verdicts_of_the_gate_beside_them_are_made_again() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    known = results["cells"][6]
    counts, pairs = simulate((known["samples"], known["flips"], known["fall"]), results["nights"])
    for name in OURS:
        found = shares(list(our_verdicts(name, counts, pairs)))
        assert found == pytest.approx(known[name], abs=0.03), "another processor may round a draw differently"


def test_a_simulated_proof_by_states_is_that_of_their_scores() -> None:
    right, seen = np.tile(np.arange(STATES + 1), 2), set()
    for counts in (night[0] for flips in (0.0005, 0.02, 0.1) for night in simulate((300, flips, 0.02), 20)[0]):
        tonight = np.repeat(np.repeat([0.0, 1.0], STATES + 1), counts)
        found = compare_means(tonight, np.repeat(right / STATES, counts), bounds=(0, 1))
        is_proven = not_worse(found, margin=MARGIN, higher_is_better=True).is_proven
        assert is_proven_by_states(counts) == is_proven
        seen.add((is_proven, found.are_shares))
    assert {is_proven for is_proven, _ in seen} == {are_shares for _, are_shares in seen} == {True, False}


def test_simulated_suites_are_judged_as_the_gate_judges_them() -> None:
    seen = set()
    for pairs in simulate((300, 0.02, 0.05), 12)[1]:
        rows = [
            (np.repeat([1.0, 0.0, 1.0], [up, down, n - up - down]), np.repeat([0.0, 1.0, 1.0], [up, down, n - up - down]))
            for n, up, down in pairs
        ]
        found = [compare_means(now, before, bounds=(0, 1)) for now, before in rows]
        judged = judge_suite([Case(comparison=each, higher_is_better=True) for each in found], alpha=2 * ALPHA / 30)
        assert is_red(pairs) == any(each.verdict is Verdict.REGRESSED for each in judged)
        seen.add(is_red(pairs))
        assert list(map(is_proven_by_one, pairs)) == [not_worse(each, margin=MARGIN, higher_is_better=True).is_proven for each in found]
    assert seen == {True, False}
