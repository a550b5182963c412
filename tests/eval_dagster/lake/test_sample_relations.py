"""The relations that show single samples, on evaluations of tasks whose texts mislead: formats, equal choices, several prompts a row."""

import textwrap
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from eval_dagster.lake.catalog import catalog
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.metrics.loglikelihood import ExpectedCalibrationError
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Loglikelihood
from eval_dagster.stages.partition import STAGES, StageFailure

TASK = '''
    from dataclasses import replace

    from eval_dagster.metrics.base import LoglikelihoodMetric
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask


    class Lost(LoglikelihoodMetric):
        """Log-probability that the correct choice lacks: lower is better."""

        NAME = "lost"
        HIGHER_IS_BETTER = False

        def calculate(self, response):
            return -response.loglikelihoods[response.gold_indices[0]]


    class Pets(BaseTask[str]):
        NAME = "Pets"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood, Lost]
        SUBJECTS = ["all"]
        SPACE = " "

        def _load_dataset(self, subject):
            sounds = {"dog": "barks", "cat": "meows", "cow": "moos"}
            return {"test": [{"pet": pet, "sound": sound, "sounds": [*sounds.values(), "moos"]} for pet, sound in sounds.items()]}

        def _get_instruction_text(self, item):
            return f"WORDS {item['pet']}?\\nAnswer:"

        def _get_possible_completions(self, item):
            return [self.SPACE + sound for sound in item["sounds"]]

        def _get_ground_truth(self, item):
            return self.SPACE + item["sound"]


    class WithoutSpace(Pets):
        SPACE = ""


    class Twice(Pets):
        """Two questions about each row, with the choices in another order."""

        def _create_samples(self, item, index, subject):
            [first] = super()._create_samples(item, index, subject)
            turned = replace(first, possible_completions=first.possible_completions[::-1])
            return [first, turned]
'''
ANSWERS = """
    SOUNDS = {{"dog": "barks", "cat": "meows", "cow": "moos"}}

    def answer(request):
        {raising}
        pet = next(pet for pet in SOUNDS if pet in request.prompt)
        right = [choice.strip() == SOUNDS[pet] for choice in request.choices]
        wrong = pet in {wrong}
        return [-0.5 if each != wrong else -2.0 for each in right]
"""
CONFIG = """
    models:
      good: {backend: scripted, function: "good.py:answer", prompt_format: llama3}
      weak: {backend: scripted, function: "weak.py:answer"}
    evals:
      pets: {task: "pets.py:Pets"}
      spaceless: {task: "pets.py:WithoutSpace"}
      twice: {task: "pets.py:Twice"}
"""
EVALS = ("pets", "spaceless", "twice")


def _run(folder: Path, *, evals: tuple[str, ...], words: str = "What says the", raising: str = "pass", fails: bool = False) -> Project:
    """Evaluate two models, the second of which is wrong about cats and cows."""
    unloadable = "raise OSError('the weights are gone')"
    files = {
        "pets.py": TASK.replace("WORDS", words),
        "good.py": unloadable if fails else ANSWERS.format(wrong=(), raising=raising),
        "weak.py": unloadable if fails else ANSWERS.format(wrong=("cat", "cow"), raising=raising),
        "evals.yaml": CONFIG,
    }
    for file, text in files.items():
        (folder / file).write_text(textwrap.dedent(text))
    project = Project.open(tasks={}, config_path=folder / "evals.yaml", home=folder / "home")
    partitions = [(eval_name, model) for eval_name in evals for model in project.config.models]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    failures = [each for each in outcomes if isinstance(each, StageFailure)]
    assert bool(failures) == fails, failures
    return project


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return _run(tmp_path_factory.mktemp("samples"), evals=EVALS).lake


@pytest.mark.long
@pytest.mark.parametrize("eval_name", EVALS)
def test_a_correct_answer_is_no_confident_error_however_choices_are_written(lake: Lake, eval_name: str) -> None:
    shown = read_rows(lake, f"select * from confident_errors where eval = '{eval_name}'")
    wrong = read_rows(lake, f"select sample_id from scores where eval = '{eval_name}' and metric = 'accuracy' and value = 0")
    assert sorted(row["sample_id"] for row in shown) == sorted(row["sample_id"] for row in wrong)
    assert len(shown) == (4 if eval_name == "twice" else 2)
    assert {row["model"] for row in shown} == {"weak"}
    assert all(row["answer"].strip() != row["gold"][0].strip() for row in shown)


@pytest.mark.long
def test_either_of_two_equal_choices_is_the_gold_one(lake: Lake) -> None:
    """`moos` is the third choice and the fourth; the second question of a row has it as its first and its second."""
    rows = read_rows(
        lake, "select gold_index from prompts where eval = 'twice' and model = 'good' and prompt like '%cow%' order by sample_id"
    )
    assert [row["gold_index"] for row in rows] == [[2, 3], [0, 1]]
    assert read_rows(lake, "select * from confident_errors where model = 'good'") == []


@pytest.mark.long
@pytest.mark.parametrize("eval_name", EVALS)
def test_disagreements_pair_each_prompt_with_itself_whichever_direction_is_better(lake: Lake, eval_name: str) -> None:
    shown = read_rows(lake, f"select * from disagreements where eval = '{eval_name}'")
    assert len(shown) == (8 if eval_name == "twice" else 4), "one a prompt and metric"
    for row in shown:
        assert (row["better_model"], row["worse_model"]) == ("good", "weak")
        assert row["better_answer"].strip() == row["gold"][0].strip() != row["worse_answer"].strip()
        assert (row["better_value"] < row["worse_value"]) == (row["metric"] == "lost")


def test_the_results_of_samples_stand_together(lake: Lake) -> None:
    rows = read_rows(lake, "select * from sample_results where eval = 'twice' and metric = 'accuracy'")
    assert len({(row["model"], row["sample_id"]) for row in rows}) == len(rows) == 2 * 3 * 2, "models, rows of the dataset, prompts of each"
    for row in rows:
        assert row["error"] is None
        assert row["answer"] in row["choices"]
        assert row["score"] == float(row["answer"].strip() == row["gold"][0].strip())
        assert (row["choices"][0].strip() == "moos") == (row["sample_id"] != row["source_id"]), (
            "the choices of this prompt, not of the other"
        )


def test_the_calibration_is_that_of_the_metric(lake: Lake) -> None:
    """Bins, accuracies and the error, computed from the log-probabilities by the code of the metric."""
    answers = read_rows(
        lake,
        "select p.eval, p.model, p.choices, p.gold_index, r.choice_logprobs from prompts p "
        "join responses r using (eval, model, sample_id, request_id)",
    )
    shown = read_rows(lake, "select * from calibration")
    assert {(row["eval"], row["model"]) for row in shown} == {(name, model) for name in EVALS for model in ("good", "weak")}
    for row in shown:
        of_model = [each for each in answers if (each["eval"], each["model"]) == (row["eval"], row["model"])]
        metric = ExpectedCalibrationError()
        statistics = [
            metric.calculate(
                Loglikelihood(loglikelihoods=each["choice_logprobs"], choices=each["choices"], gold_indices=each["gold_index"])
            )
            for each in of_model
        ]
        sums = np.array([[each[name] for name in ExpectedCalibrationError.STATISTICS] for each in statistics]).sum(axis=0)
        assert row["expected_calibration_error"] == pytest.approx(float(ExpectedCalibrationError.aggregate(sums)))
        assert row["n"] * (row["accuracy"] - row["confidence"]) == pytest.approx(sums[row["bin"]])
        assert row["confidence_low"] < row["confidence"] <= row["confidence_high"]
        assert (row["ci_low"], row["ci_high"]) == pytest.approx(proportion_confint(row["accuracy"] * row["n"], row["n"], method="wilson"))


def test_the_chosen_samples_of_an_estimate_have_no_calibration() -> None:
    database = duckdb.connect()
    for model in ("all", "plain", "history"):
        estimate = "null" if model == "all" else f"'{model}'"
        for table, columns in (
            ("prompts", "'s' as sample_id, 'r' as request_id, ['a', 'b'] as choices, [0] as gold_index"),
            ("responses", "'s' as sample_id, 'r' as request_id, [-0.1, -2.0] as choice_logprobs, null::varchar as error"),
            ("metrics", f"{estimate}::varchar as estimate"),
        ):
            values = f"select 'quiz' as eval, '{model}' as model, {columns}"
            database.execute(f"create table {table} as {values}" if model == "all" else f"insert into {table} {values}")
    database.execute("create macro wilson_interval(k, n) as {'low': 0.0, 'high': 1.0}")
    query = (Path(catalog.__file__).parents[2] / "sql" / "calibration.sql").read_text("utf-8")
    assert {row[1] for row in database.execute(query).fetchall()} == {"all", "plain"}


@pytest.mark.parametrize("n", [3, 4, 10, 300])
def test_intervals_of_groups_of_ones_own(lake: Lake, n: int) -> None:
    values = ", ".join(f"({(number * 7 % 10) / 10})" for number in range(n))
    [row] = read_rows(
        lake,
        "select mean_interval(avg(x), stddev_samp(x), count(x)) as of_mean, "
        f"wilson_interval(count(*) filter (x > 0.5), count(*)) as of_share from (values {values}) t(x)",
    )
    numbers = np.array([(number * 7 % 10) / 10 for number in range(n)])
    expected = stats.t.interval(0.95, n - 1, numbers.mean(), numbers.std(ddof=1) / n**0.5)
    assert list(row["of_mean"].values()) == pytest.approx(expected, rel=0.02 if n < 5 else 1e-4)
    assert list(row["of_share"].values()) == pytest.approx(proportion_confint((numbers > 0.5).sum(), n, method="wilson"))


def test_without_samples_there_is_no_interval(lake: Lake) -> None:
    [row] = read_rows(lake, "select wilson_interval(0, 0) as share, mean_interval(0.5, 0.1, 2) as mean")
    assert row == {"share": None, "mean": None}


@pytest.mark.parametrize("table", ["samples", "prompts", "responses", "scores", "metrics", "response_cache"])
def test_pandas_reads_the_folder_of_a_table(lake: Lake, table: str) -> None:
    frame = pd.read_parquet(lake.root / table)
    assert len(frame) == sum(pq.read_metadata(path).num_rows for path in (lake.root / table).rglob("*.parquet")) > 0
    if table != "response_cache":
        assert set(frame["eval"]) == set(EVALS)
    if table in ("prompts", "responses", "scores", "metrics"):
        assert set(frame["model"]) == {"good", "weak"}
        assert len(frame.query("eval == 'pets' and model == 'weak'")) == len(frame.query("eval == 'pets'")) / 2


@pytest.mark.long
def test_an_error_stands_with_its_prompt_and_a_score_with_the_one_that_was_scored(tmp_path: Path) -> None:
    broken = "if 'cow' in request.prompt: raise ValueError('no idea')"
    project = _run(tmp_path, evals=("pets",), raising=broken)
    rows = read_rows(project.lake, "select * from sample_results where model = 'weak' and error is not null")
    assert len(rows) == 2, "one a metric"
    for row in rows:
        assert "no idea" in row["error"]
        assert (row["score"], row["answer"]) == (None, None)
        assert "What says the cow" in row["prompt"]
    # The new prompts have no scores yet, since the models cannot be loaded.
    project = _run(tmp_path, evals=("pets",), words="Which sound makes the", fails=True)
    assert len(read_rows(project.lake, "select * from prompts where prompt like '%Which sound%'")) == 6
    rows = read_rows(project.lake, "select * from sample_results where metric = 'accuracy'")
    assert len(rows) == 6
    assert [row for row in rows if row["score"] is not None]
    assert not [row for row in rows if row["prompt"] and "Which sound" in row["prompt"]]
    assert not read_rows(project.lake, "select * from disagreements where prompt like '%Which sound%'")
