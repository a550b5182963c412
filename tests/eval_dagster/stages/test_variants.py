"""Variants of an eval's prompts: rendered and asked as one eval, with the score, its error bar and the spread over them."""

import textwrap
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from running_stages import run_all
from scipy.special import stdtrit
from scipy.stats import rankdata
from starlette.testclient import TestClient

from eval_dagster.cli.leaderboard import print_leaderboard, prompt_warning, standings
from eval_dagster.cli.show import show_prompt
from eval_dagster.errors import ConfigError, DataError, UsageError
from eval_dagster.gate.judgement import judge
from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.lake.catalog.catalog import read_rows as query
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.lineage import asked_versions
from eval_dagster.pages.report.contents import collect
from eval_dagster.pages.report.page import render as render_report
from eval_dagster.pages.server.application import application
from eval_dagster.project import Project
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.results.comparison import compare_points
from eval_dagster.results.materializations import history
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.snapshot import materialize_snapshot
from eval_dagster.versions.hashes import stable_hash

TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.metrics.base import RowMetric
    from eval_dagster.records import Completion, Message, ResponseType, Role
    from eval_dagster.tasks.base import BaseTask, IDKMixin
    from eval_dagster.tasks.style import ClozeStyle, MCCompletionStyle, MCStyle

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "numbers"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(40)], "train": [{"n": n} for n in range(60, 100)]}

        def _get_initial_prompt_text(self, item):
            return "Read the number."

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])

    class Colours(Numbers):
        NAME = "Colours"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        TASK_STYLER = MCStyle()

        def _get_raw_question(self, item):
            return f"Which is number {item['n']}?"

        def _get_instruction_text(self, item):
            return BaseTask._get_instruction_text(self, item)

        def _get_ground_truth(self, item):
            return BaseTask._get_ground_truth(self, item)

        def _get_choices(self, item):
            return [f"red {item['n']}", "green", "blue"]

        def _get_correct_index(self, item):
            return 0

    class NotSure(IDKMixin, Colours):
        NAME = "Colours (not sure)"

    class Cloze(Colours):
        NAME = "Colours (cloze)"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        TASK_STYLER = ClozeStyle()

    class Stubborn(Colours):
        NAME = "Colours (stubborn)"

        def _get_ground_truth(self, item):
            return " A"

    class Questions(RowMetric[Completion]):
        NAME = "questions"

        def calculate_row(self, responses):
            return float(len(responses))

    class Letters(Colours):
        "The letter in an answer stands for the text of a choice."

        NAME = "Letters"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch, Questions]
        TASK_STYLER = MCCompletionStyle()

        def post_process_generated_completion(self, completion_text, sample):
            return self._get_choices(sample.row)["ABC".index(completion_text)]

    class Deaf(Numbers):
        NAME = "Deaf"

        def _get_messages(self, item):
            return [Message(Role.USER, f"Say {item['n']}.")]
"""
ANSWER = """
    from pathlib import Path

    # Right for all numbers under 30 by default, for all under 10 if asked politely.
    def answer(request):
        with Path(__file__).with_name("asked.log").open("a") as log:
            log.write(request.request_id + "\\n")
        if "red" in request.prompt and not request.choices:
            return next(line[0] for line in request.prompt.rpartition("Question")[2].splitlines() if "red" in line)
        if request.choices:
            return [-1.0, *[-2.0] * (len(request.choices) - 1)]
        number = int(request.prompt.rpartition("Say ")[2].split(".")[0])
        return str(number) if number < (10 if "please" in request.prompt else 30) else "?"
"""
CONFIG = """
    models:
      scripted: {{backend: scripted, function: "numbers.py:answer"}}
    evals:
      numbers: {{task: "numbers_task.py:Numbers"{settings}}}
"""
POLITE = ', variants: {polite: {instruction: "Now please read."}}'


@pytest.fixture
def run(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., Project]:
    def run_it(settings: str = "", config: str = CONFIG) -> Project:
        write("numbers_task.py", TASK)
        write("numbers.py", ANSWER)
        project = open_project(config.format(settings=settings))
        _, failures = run_all(project, [("numbers", "scripted")])
        assert not failures
        publish(project.lake)
        return project

    return run_it


def rows_of(project: Project, sql: str) -> list[dict[str, Any]]:
    return query(project.lake, sql)


@pytest.mark.long
def test_each_row_is_asked_in_each_variant_and_the_score_is_their_mean(run: Callable[..., Project], asked: Callable[[], list[str]]) -> None:
    project = run(POLITE)
    prompts = rows_of(project, "select sample_id, source_id, variant, prompt from prompts")
    assert Counter(row["variant"] for row in prompts) == {"default": 40, "polite": 40}
    assert len({row["sample_id"] for row in prompts}) == 80
    for row in prompts:
        ending, words = ("~polite", "Now please read.") if row["variant"] == "polite" else ("", "Read the number.")
        assert row["sample_id"] == row["source_id"] + ending
        assert row["prompt"].startswith(words)
    assert len(asked()) == 80
    [metric] = rows_of(project, "select value, stderr, n, n_clusters from metrics where subject is null")
    assert (metric["value"], metric["n"], metric["n_clusters"]) == (0.5, 80, 40)
    # Each row's mean is 1, 1/2 or 0: 10, 20 and 10 of them, with the mean 1/2, so that the variance is (10 + 10) / 4 / 39.
    assert metric["stderr"] == pytest.approx((5 / 39 / 40) ** 0.5), "a row counts once, in all its variants"


@pytest.mark.long
def test_the_score_by_variant_and_the_effect_of_the_prompt_are_those_of_the_script(run: Callable[..., Project]) -> None:
    project = run(POLITE)
    scores = rows_of(project, "select variant, value, stderr, n from variant_scores")
    assert [(row["variant"], row["value"], row["n"]) for row in scores] == [("default", 0.75, 40), ("polite", 0.25, 40)]
    assert [row["stderr"] for row in scores] == pytest.approx([(0.75 * 0.25 / 39) ** 0.5] * 2)
    [effect] = rows_of(project, "select * from prompt_sensitivity")
    assert (effect["n_variants"], effect["n_common"], effect["spread"]) == (2, 40, 0.5)
    assert (effect["lowest_variant"], effect["highest_variant"]) == ("polite", "default")
    # Of 40 rows 20 change by 1, so that the difference of two means has the variance (1/4) / 39.
    difference, own = 0.25 / 39, 0.75 * 0.25 / 39
    assert effect["spread_low"] == pytest.approx(0.5 - stdtrit(39, 0.975) * difference**0.5)
    assert effect["spread_high"] == pytest.approx(0.5 + stdtrit(39, 0.975) * difference**0.5)
    between = 0.5**2 / 2 - difference / 2
    assert effect["deviation"] == pytest.approx(between**0.5)
    assert effect["share"] == pytest.approx(between / (between + own))
    assert (effect["n_models"], effect["rank_stability"], effect["exceeds_models"]) == (1, None, None), "there is nothing to compare with"


def rendered(project: Project) -> dict[str, list[RenderedPrompt]]:
    """The prompts of the eval by variant, in the order of the rows."""
    materialize_snapshot(project, "numbers", "test")
    found: dict[str, list[RenderedPrompt]] = {}
    for prompt in render_eval(project, "numbers", rendering_of(project, "numbers", "scripted")):
        found.setdefault(str(prompt.variant), []).append(prompt)
    return found


@pytest.fixture
def render(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., dict[str, list[RenderedPrompt]]]:
    def render_it(settings: str, task: str = "Numbers") -> dict[str, list[RenderedPrompt]]:
        write("numbers_task.py", TASK)
        write("numbers.py", ANSWER)
        return rendered(open_project(CONFIG.format(settings=settings).replace("py:Numbers", f"py:{task}")))

    return render_it


ORDERS = """, variants: {
    back: {choice_order: reversed}, next: {choice_order: rotated 1}, mixed: {choice_order: shuffled 3},
    other: {choice_order: shuffled 4}}"""


def test_the_gold_answer_follows_the_choices(render: Callable[..., dict[str, list[RenderedPrompt]]]) -> None:
    found = render(f"{ORDERS}, num_fewshot: 2", "Colours")
    assert list(found) == ["default", "back", "next", "mixed", "other"]
    orders: dict[str, set[tuple[str, ...]]] = {}
    for variant, prompts in found.items():
        orders[variant] = set()
        for prompt in prompts:
            *examples, question = prompt.request.prompt.split("Question: ")[1:]
            assert len(examples) == 2
            for text in (*examples, question):
                number, *lines, answer = text.strip().split("\n")
                gold = next(label for label, _, choice in (line.partition(". ") for line in lines) if choice.startswith("red"))
                assert sorted(line[3:] for line in lines) == sorted([f"red {number.split()[3][:-1]}", "green", "blue"])
                assert answer == ("Answer:" if text is question else f"Answer: {gold}"), "the examples have the order, too"
            assert prompt.request.choices == (" A", " B", " C")
            assert prompt.gold_indices == (["A", "B", "C"].index(gold),)
            orders[variant].add(tuple(line.split()[1] for line in lines))
    assert orders["default"] == {("red", "green", "blue")}
    assert orders["back"] == {("blue", "green", "red")}
    assert orders["next"] == {("green", "blue", "red")}
    assert len(orders["mixed"]) > 3
    mixed, other = ([prompt.request.prompt for prompt in found[name]] for name in ("mixed", "other"))
    assert mixed != other, "the seed decides"
    assert [each.request.prompt for each in render(ORDERS, "Colours")["mixed"]] == [
        each.request.prompt for each in render(f"{ORDERS}, limit: 40, seed: 8", "Colours")["mixed"]
    ], "no other setting does"


def test_not_to_know_stays_the_last_choice_and_its_rule_is_told(render: Callable[..., dict[str, list[RenderedPrompt]]]) -> None:
    found = render(', variants: {back: {choice_order: reversed, instruction: "Choose!"}}', "NotSure")
    assert all("A. blue\nB. green\nC. red" in prompt.request.prompt for prompt in found["back"])
    assert all("D. I don't know." in prompt.request.prompt for prompts in found.values() for prompt in prompts)
    assert {prompt.gold_indices for prompt in found["back"]} == {(2,)}
    assert all(prompt.request.prompt.startswith("Choose!\n\nA wrong answer loses") for prompt in found["back"])


def test_a_template_reads_the_question_its_parts_and_the_row(render: Callable[..., dict[str, list[RenderedPrompt]]]) -> None:
    found = render(
        """, num_fewshot: 1, variants: {
        quoted: {template: 'He said "{{ text }}" ({{ row.n }})'},
        parts: {template: "{{ question }} {% for choice in choices %}({{ labels[loop.index0] }}) {{ choice }} {% endfor %}"},
        turned: {template: "{{ choices | join('/') }}", choice_order: reversed}}""",
        "Colours",
    )
    first = {variant: prompts[0].request.prompt.rpartition("\n\n")[2] for variant, prompts in found.items()}
    assert first["quoted"].startswith('He said "Question: Which is number 0?\nA. red 0\nB. green\nC. blue\n" (0)')
    assert first["parts"].startswith("Which is number 0? (A) red 0 (B) green (C) blue")
    assert first["turned"].startswith("blue/green/red 0")
    assert all(prompts[0].request.prompt.count("Which is") == 2 for name, prompts in found.items() if name != "turned"), "examples, too"


def test_another_seed_draws_other_examples_alone(render: Callable[..., dict[str, list[RenderedPrompt]]]) -> None:
    found = render(", num_fewshot: 3, variants: {others: {fewshot_seed: 9}}")
    ids = {variant: {prompt.fewshot_ids for prompt in prompts} for variant, prompts in found.items()}
    assert [len(each) for each in ids.values()] == [1, 1], "all rows share a set"
    assert ids["default"] != ids["others"]
    assert [each.request.prompt for each in render(", num_fewshot: 3, seed: 9")["None"]] == [
        each.request.prompt for each in found["others"]
    ]
    assert {each.request.generation.seed for each in found["others"] if each.request.generation} == {0}


@pytest.mark.parametrize(
    ("settings", "task", "message"),
    [
        (
            ", variants: {a: {choice_order: reversed}}",
            "Numbers",
            r"variants\.a: choice_order is 'reversed', and the task Numbers has no hooks",
        ),
        (", variants: {a: {choice_order: reversed}}", "Cloze", r"variants\.a: choice_order .* scores each choice by itself"),
        (", variants: {a: {fewshot_seed: 1}}", "Numbers", r"variants\.a: fewshot_seed is 1, and the eval has no examples"),
        (
            ", num_fewshot: 1, fewshot_strategy: first, variants: {a: {fewshot_seed: 1}}",
            "Numbers",
            r"variants\.a: fewshot_seed is 1, and the examples are the first of their split",
        ),
    ],
)
def test_a_variant_that_does_not_apply_is_refused_before_anything_runs(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], settings: str, task: str, message: str
) -> None:
    write("numbers_task.py", TASK)
    write("numbers.py", ANSWER)
    project = open_project(CONFIG.format(settings=settings).replace("py:Numbers", f"py:{task}"))
    with pytest.raises(UsageError, match=f"eval numbers: {message}.*expected"):
        project.check(["numbers"], [])
    materialize_snapshot(project, "numbers", "test")
    with pytest.raises(UsageError, match=f"eval numbers: {message}"):
        rendering_of(project, "numbers", "scripted")


@pytest.mark.parametrize(
    ("variant", "task", "message"),
    [
        ('{instruction: "Listen!"}', "Deaf", r"variants\.a changes none of its 40 prompts: Deaf has no part"),
        ("{choice_order: reversed}", "Stubborn", r"the gold answer of Colours \(stubborn\) is still ' A'.*follows `_get_correct_index`"),
        ('{template: "{{ nothing }}"}', "Numbers", r"'nothing' is undefined"),
    ],
)
def test_a_variant_without_an_effect_or_with_a_wrong_answer_fails_the_eval(
    render: Callable[..., dict[str, list[RenderedPrompt]]], variant: str, task: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        render(f", variants: {{a: {variant}}}", task)


def test_wrong_variants_in_the_file_are_named(open_project: Callable[..., Project]) -> None:
    for variants, message in (
        ("{default: {instruction: x}}", "the variant 'default' is the task's own prompt"),
        ("{a: {}}", "the variant 'a' sets nothing; expected one of instruction, template, choice_order, fewshot_seed"),
        ('{a: {template: "{{ text"}}', "which Jinja cannot read"),
        ("{a: {choice_order: sorted}}", r"variants\.a\.choice_order: found 'sorted'; expected 'reversed', 'rotated N'"),
        ("{a: {wording: x}}", r"variants\.a\.wording: found an unknown key"),
        ('{"a b": {instruction: x}}', r"evals\.numbers\.variants"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_project(CONFIG.format(settings=f", variants: {variants}"))


@pytest.mark.long
def test_answers_are_scored_by_the_task_as_it_asked(run: Callable[..., Project]) -> None:
    config = CONFIG.replace("py:Numbers", "py:Letters")
    for limit in (1, 5):  # the prompts of a single row follow each other in the file
        project = run(f", limit: {limit}, variants: {{back: {{choice_order: reversed}}}}", config)
        rows = rows_of(project, "select metric, variant, value, n from variant_scores order by all")
        found = [(row["metric"], row["variant"], row["value"], row["n"]) for row in rows]
        assert found == [(metric, name, 1.0, limit) for metric in ("exact_match", "questions") for name in ("back", "default")]
    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    [sample] = [row["sample_id"] for row in rows_of(project, "select distinct sample_id from scores where variant = 'back' limit 1")]
    assert "variant back" in client.get("/sample", params={"eval": "numbers", "model": "scripted", "sample": sample}).text


MORE = ', variants: {polite: {instruction: "Now please read."}, loud: {instruction: "READ!"}}'


@pytest.mark.long
def test_only_what_is_new_is_asked(run: Callable[..., Project], asked: Callable[[], list[str]]) -> None:
    def version(project: Project) -> str:
        return project.lake.require("prompts", "rendered_prompts", "numbers", "scripted").info.version

    before = version(run(""))
    assert len(asked()) == 40
    with_two = version(run(POLITE))
    assert (len(asked()), with_two != before) == (40, True), "the task's own prompts are known"
    run(POLITE)
    assert asked() == []
    project = run(MORE)
    assert len(asked()) == 40
    assert [row["variant"] for row in rows_of(project, "select variant from variant_scores")] == ["default", "loud", "polite"]
    assert version(run(POLITE)) == with_two
    assert version(run("")) == before
    assert asked() == [], "to remove variants asks nothing"


@pytest.mark.long
def test_without_variants_prompts_and_versions_are_as_before(open_project: Callable[..., Project]) -> None:
    project = open_project("""
        models:
          scripted: {backend: scripted, answers: {"Paris": "x"}, default: "7"}
        evals:
          capitals: {task: capitals, num_fewshot: 1, limit: 5}
          arithmetic: {task: arithmetic, limit: 5, seed: 3, num_fewshot: 2}
    """)
    _, failures = run_all(project, [("capitals", "scripted"), ("arithmetic", "scripted")])
    assert not failures
    found = {}
    for name in ("capitals", "arithmetic"):
        prompts = project.lake.require("prompts", "rendered_prompts", name, "scripted")
        rows = read_rows(prompts.path)
        assert {row["variant"] for row in rows} == {None}
        assert {row["sample_id"] for row in rows} == {row["source_id"] for row in rows}
        settings = project.eval(name).model_dump(mode="json", exclude={"dataset", "variants", "roles", "estimate", "subjects", "limit"})
        assert prompts.info.made_of["settings"] == stable_hash({**settings, "num_fewshot": project.num_fewshot(name)})
        found[name] = (prompts.info.version, *asked_versions(prompts.path))
    # As by the release before variants.
    assert found == {
        "capitals": ("56f79f71bcf4984b", "ea6516e923af814d", "614f976b87a6b184"),
        "arithmetic": ("b08d7efa78373b16", "e7c285dafc7f3559", "0116b1768f14b481"),
    }
    publish(project.lake)
    for relation in ("variant_scores", "prompt_sensitivity"):
        assert rows_of(project, f"select * from {relation}") == []
    assert "variants" not in str(rows_of(project, "select * from metrics limit 1"))


@pytest.mark.long
def test_results_with_other_variants_are_compared_on_the_prompts_that_both_have(run: Callable[..., Project]) -> None:
    run("")
    run(POLITE)
    project = run(MORE)
    first, second, third = history(project.lake, "numbers", "scripted")
    metrics = project.task("numbers").METRICS
    [found] = compare_points(second, first, metrics)
    assert found.causes == ("prompt",), "the rows are the same"
    assert (found.comparison.n_common, found.comparison.n_only_a, found.comparison.n_only_b) == (40, 40, 0)
    assert (found.comparison.value_a, found.comparison.value_b) == (0.75, 0.75), "the task's own prompt has its own score in both"
    [found] = compare_points(third, second, metrics)
    assert found.causes == ("prompt",)
    assert (found.comparison.n_common, found.comparison.n_clusters, found.comparison.n_only_a) == (80, 40, 40)


LEADERS = """
    models:
      scripted: {{backend: scripted, function: "numbers.py:answer"}}
      other: {{backend: scripted, function: "numbers.py:other"}}
      third: {{backend: scripted, function: "numbers.py:third"}}
    evals:
      numbers: {{task: "numbers_task.py:Numbers"{settings}}}
    suites:
      all: {{evals: [numbers], models: [scripted, other, third]}}
"""
OTHERS = """

    def _number(request):
        return int(request.prompt.rpartition("Say ")[2].split(".")[0])

    # Right for all numbers under 14 by default, for all under 24 if asked politely.
    def other(request):
        return str(_number(request)) if _number(request) < (24 if "please" in request.prompt else 14) else "?"

    def third(request):
        return str(_number(request)) if _number(request) < 12 else "?"
"""


@pytest.fixture
def lead(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., Project]:
    def run_it(settings: str, *models: str) -> Project:
        write("numbers_task.py", TASK)
        write("numbers.py", textwrap.dedent(ANSWER) + textwrap.dedent(OTHERS))
        project = open_project(LEADERS.format(settings=settings))
        _, failures = run_all(project, [("numbers", model) for model in models])
        assert not failures
        publish(project.lake)
        return project

    return run_it


@pytest.mark.long
def test_models_that_the_prompt_ranks_differently_have_no_stable_ranks(
    lead: Callable[..., Project], capsys: pytest.CaptureFixture[str]
) -> None:
    project = lead(POLITE, "scripted", "other", "third")
    rows = {row["model"]: row for row in rows_of(project, "select * from prompt_sensitivity")}
    values = {model: [30 / 40, 10 / 40] if model == "scripted" else [14 / 40, 24 / 40] for model in ("scripted", "other")}
    values["third"] = [12 / 40, 12 / 40]
    friedman, _ = scipy.stats.friedmanchisquare(*values.values())
    assert [row["rank_stability"] for row in rows.values()] == pytest.approx([friedman / (2 * 2)] * 3)
    assert rows["third"]["rank_stability"] < 0.3, "first and last change places"
    assert {row["n_models"] for row in rows.values()} == {3}
    assert rows["scripted"]["best_difference"] == pytest.approx(40 / 80 - 38 / 80)
    assert {model: row["exceeds_models"] for model, row in rows.items()} == {"scripted": True, "other": True, "third": False}
    print_leaderboard(project.lake)
    words = "⚠ numbers: the prompt changes the score of scripted by up to 0.500, more than the two best models differ by (0.025)"
    text = capsys.readouterr().out
    assert words in " ".join(text.split())
    assert "0.500 apart" in text
    report = render_report(collect(project, judge(project, "all", run_id="gate")))
    assert report.count("up to 0.500 between variants of the prompt, more than the two best models differ by") == 1
    assert "up to 0.000 between variants of the prompt" in report


@pytest.mark.long
def test_models_that_the_prompt_ranks_alike_have_stable_ranks(lead: Callable[..., Project], capsys: pytest.CaptureFixture[str]) -> None:
    project = lead(', variants: {loud: {instruction: "READ!"}}', "scripted", "other", "third")
    rows = rows_of(project, "select * from prompt_sensitivity")
    assert [(row["rank_stability"], row["spread"], row["exceeds_models"]) for row in rows] == [(1.0, 0.0, False)] * 3
    print_leaderboard(project.lake)
    assert "the prompt changes" not in capsys.readouterr().out


@pytest.mark.long
def test_equal_scores_share_their_place(lead: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    project = lead(MORE, "scripted", "other")
    write("numbers.py", textwrap.dedent(ANSWER) + textwrap.dedent(OTHERS).replace("else 14", "else 30"))
    run_all(project, [("numbers", "other")])
    publish(project.lake)
    # By default and loud both have 30 of 40; politely one has 10 and the other 24. Kendall's W with ties, by its definition:
    places = np.array([rankdata(each) for each in ([30, 30], [30, 30], [10, 24])])
    squares = ((places.sum(axis=0) - places.sum() / 2) ** 2).sum()
    expected = 12 * squares / (3**2 * (2**3 - 2) - 3 * 2 * (2**3 - 2))
    found = [row["rank_stability"] for row in rows_of(project, "select * from prompt_sensitivity")]
    assert found == pytest.approx([expected] * 2)
    assert 0 < expected < 1


@pytest.mark.long
def test_a_spread_that_may_be_chance_is_not_taken_for_more_than_the_models(lead: Callable[..., Project]) -> None:
    project = lead(POLITE + ", limit: 11", "scripted", "third")  # one row of eleven differs between the variants, none between the models
    rows = {row["model"]: row for row in rows_of(project, "select * from prompt_sensitivity")}
    row = rows["scripted"]
    assert (row["spread"], row["best_difference"]) == pytest.approx((1 / 11, 0.5 / 11))
    assert (row["spread_low"], row["exceeds_models"]) == (0.0, None)
    words = prompt_warning([each for each in standings(project.lake) if each.eval == "numbers"])
    assert words is not None
    assert "may be chance" in words


@pytest.mark.long
def test_a_result_in_other_variants_has_no_rank(lead: Callable[..., Project]) -> None:
    lead("", "third")
    project = lead(POLITE, "scripted", "other")
    board = {row["model"]: (row["rank"], row["differs"]) for row in rows_of(project, "select * from leaderboard")}
    assert board == {"scripted": (1, None), "other": (2, None), "third": (None, "prompts")}


@pytest.mark.long
def test_the_beginning_that_variants_share_is_computed_once(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], tiny_model: Path
) -> None:
    write("numbers_task.py", TASK)
    project = open_project(f"""
        models:
          tiny: {{backend: transformers, source: {{folder: {tiny_model}}}, device: cpu}}
        evals:
          numbers: {{task: "numbers_task.py:Colours", limit: 1, num_fewshot: 4, variants: {{ending: {{instruction: "Read the numbers."}}}}}}
    """)
    _, failures = run_all(project, [("numbers", "tiny")])
    assert not failures
    counts = project.lake.require("responses", "model_outputs", "numbers", "tiny").info.counts
    assert (counts["requests_computed"], counts["run_requests"]) == (2, 2), "one call has both variants"
    first, second = read_rows(project.lake.require("responses", "model_outputs", "numbers", "tiny").path, ["input_token_ids"])
    pairs = zip(first["input_token_ids"], second["input_token_ids"], strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert shared > 5
    apart = len(first["input_token_ids"]) + len(second["input_token_ids"])
    assert counts["run_tokens_computed"] <= apart - shared + 6, "the last token of a prompt and the tokens of choices are scored besides"


def test_show_prints_the_variants_of_a_row(
    open_project: Callable[..., Project],
    write: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("numbers_task.py", TASK)
    write("numbers.py", ANSWER)
    open_project(CONFIG.format(settings=POLITE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    show_prompt("numbers", sample="3")
    shown = capsys.readouterr().out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("variant")] == ["default", "polite"]
    assert shown.index("Read the number.") < shown.index("Now please read.")
    assert shown.count("Say 3.") == 2 * 2, "in each prompt, and in the line of its end"
