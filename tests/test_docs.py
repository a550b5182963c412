"""Every page of the documentation, done as a reader would do it."""

import json
import re
from pathlib import Path

import pytest
import yaml
from documents import DOCS, PAGES, SHOWN, Reader, block_of, blocks, name_of

import eval_dagster
from eval_dagster.cli.task_page import show_task
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult

ELSEWHERE = tuple(f"docs/how-to/{name}.md" for name in ("containers", "dagster-project", "many-machines", "other-packages", "shared-lake"))
"""Pages whose blocks need more than a folder; `test_containers`, `test_merged_definitions`, `test_deploy_examples`,
`test_registry_of_the_guide` and `test_shared_lake` try them."""
TRIED = [
    pytest.param(page, id=name_of(page))
    for page in PAGES
    if name_of(page) not in ELSEWHERE and any(block.language not in SHOWN for block in blocks(page))
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the evals, models and suite that the guides name, evaluated once. The models answer from a table."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "planets.py").write_text(block_of(DOCS / "tutorial.md", "planets.py"))
    suites = next(text for block in blocks(DOCS / "how-to" / "nightly-gate.md") if "suites" in (text := yaml.safe_load(block.text)))
    config = {
        "models": {
            "smollm2-135m": {"backend": "scripted", "default": " 7"},
            "smollm2-135m-bf16": {"backend": "scripted", "default": " Mars"},
        },
        "evals": {
            "capitals": {"task": "capitals", "limit": 2},
            "arithmetic": {"task": "arithmetic", "limit": 2},
            "planets": {"task": "planets.py:Planets", "num_fewshot": 2},
        },
        **suites,
    }
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    Reader(folder).run("eval-dagster run", "the workplace")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("page", TRIED)
def test_every_block_of_a_page_works(page: Path, workplace: Path, tmp_path: Path) -> None:
    """A page with an evals.yaml of its own starts in an empty folder."""
    own = any(block.file == "evals.yaml" for block in blocks(page))
    assert Reader(tmp_path if own else workplace).do(page) > 0


@pytest.mark.long
def test_a_notebook_evaluates(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "notebooks.md"
    block = next(block for block in blocks(page) if "evaluate(" in block.text)
    Reader(tmp_path).python(block.text, block.where)


@pytest.mark.long
def test_the_means_of_the_cookbook_are_the_scores(workplace: Path) -> None:
    """Also where the lake keeps an older result, which has other samples."""
    reader, config = Reader(workplace), yaml.safe_load((workplace / "evals.yaml").read_text())
    longer = {**config, "evals": {**config["evals"], "arithmetic": {"task": "arithmetic", "limit": 5}}}
    (workplace / "evals.yaml").write_text(yaml.safe_dump(longer))
    reader.run("eval-dagster run --eval arithmetic", "the workplace")
    (workplace / "evals.yaml").write_text(yaml.safe_dump(config))
    found = list(blocks(DOCS / "how-to" / "sql-cookbook.md"))
    number = next(number for number, block in enumerate(found) if "means = " in block.text)
    reader.run(found[number - 1].text.splitlines()[0], found[number - 1].where)
    told = "\nmeans.to_frame('mean').reset_index().to_json('means.json', orient='records', double_precision=15)\n"
    reader.python(found[number].text + told, found[number].where)
    means = {(row["eval"], row["model"], row["metric"]): row["mean"] for row in json.loads((workplace / "means.json").read_text())}
    with eval_dagster.connect(workplace / ".eval_dagster") as results:
        rows = results.execute(
            "select eval, model, metric, value, n from metrics where subject is null and aggregation = 'micro' and n_errors = 0"
        ).fetchall()
    assert {n for eval_name, *_, n in rows if eval_name == "arithmetic"} == {15}
    assert {tuple(row[:3]): means[tuple(row[:3])] for row in rows} == pytest.approx({tuple(row[:3]): row[3] for row in rows})


def test_the_benchmarks_of_the_tutorial_are_short() -> None:
    assert len(block_of(DOCS / "tutorial.md", "planets.py").splitlines()) <= 40
    assert len(block_of(DOCS / "tutorial.md", "orbits.py").splitlines()) <= 30


# ---- the metric of the page


def run() -> dict[str, StageResult]:
    """All stages of the folder's one eval and model, by stage."""
    outcomes = list(
        evaluate(Project.open(tasks={}), [("distances", "guesser")], stages=set(STAGES), run_id="test", reporter=SilentReporter())
    )
    results = [each for each in outcomes if isinstance(each, StageResult)]
    assert len(results) == len(outcomes), outcomes
    return {each.stage: each for each in results}


def values(results: dict[str, StageResult]) -> dict[str, float]:
    return {row["metric"]: round(row["value"], 3) for row in read_rows(results["task_metrics"].file.path) if row["subject"] is None}


@pytest.mark.long
def test_the_metric_of_the_page_scores_as_the_page_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "how-to" / "own-metric.md"
    Reader(tmp_path).do(page)
    for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME", "EVAL_DAGSTER_DATASETS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    show_task("distances", None, None)
    assert "checked the first 3 rows: the gold answer scores best, a wrong one worse" in " ".join(capsys.readouterr().out.split())
    first = run()
    for name, value in values(first).items():
        assert re.search(rf"`{name}`( is)? {value:.3f}", page.read_text()), f"{name} is {value:.3f}"
    assert len(values(first)) == 2
    closeness = tmp_path / "closeness.py"
    closeness.write_text(closeness.read_text().replace("<= 0.1)", "<= 0.01)"))
    second = run()
    assert values(second) == {**values(first), "within_10_percent": 0.333}
    cached = {stage: result.cached for stage, result in second.items()}
    assert cached["model_outputs"], cached
    assert not cached["sample_scores"], cached
