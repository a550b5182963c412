"""The samples of a result, read from a lake that the stages wrote."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import scripted_nights
from scripted_nights import Nights

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_info, read_table, write_parquet
from eval_dagster.project import Project
from eval_dagster.results.materializations import history
from eval_dagster.results.samples import ResultSamples, collect_samples


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two nights: in the second one a model is worse, and sums have two examples instead of one."""
    nights = Nights(tmp_path_factory.mktemp("nights"))
    nights.run()
    nights.run(shots=2, capitals=0.4, completion=0.5)
    return nights.project(shots=2)


@pytest.fixture(scope="module")
def sums(project: Project) -> ResultSamples:
    return collect_samples(project.lake, "arithmetic", "mine")


@pytest.mark.long
def test_samples_are_those_of_the_relations(project: Project, sums: ResultSamples) -> None:
    publish(project.lake)
    query = """
        select p.sample_id, p.prompt, p.messages, p.gold, r.text, s.value
        from prompts p join responses r using (eval, model, sample_id) join scores s using (eval, model, sample_id)
        where eval = 'arithmetic' and model = 'mine' and metric = 'exact_number'
    """
    rows = {row["sample_id"]: row for row in read_rows(project.lake, query)}
    assert len(sums.samples) == sums.total == len(rows) == 180
    for sample in sums.samples:
        row = rows[sample["sample_id"]]
        assert (sample["prompt"], sample["gold"], sample["now"]["text"]) == (row["prompt"], row["gold"], row["text"])
        assert sample["now"]["scores"]["exact_number"] == row["value"]
        turns = [{"role": role, "content": text} for role, text in [*sample["examples"], *sample["turns"]]]
        assert turns == [{"role": turn["role"], "content": turn["content"]} for turn in json.loads(row["messages"])]
        assert len(sample["examples"]) == 4
        assert len(sample["turns"]) == 1
    [metric] = sums.metrics
    assert (metric["metric"], metric["is_headline"], sums.headline) == ("exact_number", True, "exact_number")
    values = [sample["now"]["scores"]["exact_number"] for sample in sums.samples]
    assert metric["now"]["value"] == pytest.approx(sum(values) / len(values))


@pytest.mark.long
def test_the_result_before_stands_beside(project: Project, sums: ResultSamples) -> None:
    points = history(project.lake, "arithmetic", "mine")
    assert sums.against is not None
    assert sums.against.materialized_at == points[0].materialized_at
    assert sums.against.differs == ("prompt", "model")
    first = collect_samples(project.lake, "arithmetic", "mine", points[0].materialized_at)
    assert first.against is None
    earlier = {sample["sample_id"]: sample for sample in first.samples}
    for sample in sums.samples:
        before = earlier[sample["sample_id"]]
        assert sample["before"]["text"] == before["now"]["text"]
        assert sample["before"]["prompt"] == before["prompt"] != sample["prompt"]  # two examples instead of one
        values = [side["scores"]["exact_number"] for side in (sample["now"], sample["before"])]
        assert sample.get("flip") == (None if values[0] == values[1] else "worse" if values[0] < values[1] else "better")


@pytest.mark.long
def test_choices_have_their_log_probabilities(project: Project) -> None:
    result = collect_samples(project.lake, "capitals", "mine")
    worse = [sample for sample in result.samples if sample.get("flip") == "worse"]
    assert worse
    for sample in worse:
        chosen = [max(range(4), key=sample[side]["logprobs"].__getitem__) for side in ("now", "before")]
        assert chosen[0] not in sample["gold_index"]
        assert chosen[1] in sample["gold_index"]
        assert not {"prompt", "choices"} & set(sample["before"])  # the same ones


@pytest.mark.long
def test_earlier_log_probabilities_keep_their_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights = Nights(tmp_path)
    nights.run()
    monkeypatch.setattr(scripted_nights, "CONFIG", scripted_nights.CONFIG.replace("task: capitals}", "task: capitals, num_fewshot: 1}"))
    nights.run()
    lake = nights.project().lake
    path = lake.files(lake.folder("prompts", "capitals", "mine"))[0]
    table, info = read_table(path), read_info(path)
    place = table.schema.get_field_index("choices")
    turned = pa.array([choices[:0:-1] for choices in table.column(place).to_pylist()], table.schema.field(place).type)
    path.unlink()
    write_parquet(path, table.set_column(place, table.schema.field(place), turned), info)
    for sample in collect_samples(lake, "capitals", "mine").samples:
        assert sample["before"]["choices"] == sample["choices"][:0:-1]  # three, in the other order
        assert "choices" not in sample["now"]
    path.unlink()
    result = collect_samples(lake, "capitals", "mine")
    assert {len(sample["before"]["choices"]) for sample in result.samples} == {0}
    assert result.notes == ("the prompts and choices of the result before are damaged or no longer in the lake",)


@pytest.mark.long
def test_another_model_can_stand_beside(project: Project) -> None:
    other = history(project.lake, "arithmetic", "mine-bf16")[-1]
    result = collect_samples(project.lake, "arithmetic", "mine", against=other)
    assert result.against is not None
    assert result.against.model == "mine-bf16"
    publish(project.lake)
    query = "select sample_id, text from responses where eval = 'arithmetic' and model = 'mine-bf16'"
    texts = {row["sample_id"]: row["text"] for row in read_rows(project.lake, query)}
    assert {sample["sample_id"]: sample["before"]["text"] for sample in result.samples} == texts


@pytest.mark.long
def test_files_of_scores_that_are_older_than_a_column(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.run()
    nights.run(capitals=0.4)
    lake = nights.project().lake
    for path in lake.files(lake.folder("scores", "capitals", "mine")):
        table, info = read_table(path), read_info(path)
        path.unlink()
        write_parquet(path, table.drop_columns(["explanation"]), info)
    for most in (None, 20):
        result = collect_samples(lake, "capitals", "mine", most=most)
        assert (len(result.samples), result.notes) == (most or 180, ())
        assert result.against is not None


@pytest.mark.long
def test_of_many_samples_flips_and_errors_are_kept(sums: ResultSamples, project: Project) -> None:
    flips = {sample["sample_id"] for sample in sums.samples if "flip" in sample}
    part = collect_samples(project.lake, "arithmetic", "mine", most=len(flips) + 10)
    assert (len(part.samples), part.total) == (len(flips) + 10, 180)
    taken = [sample["sample_id"] for sample in part.samples]
    assert flips < set(taken)
    assert taken == [sample["sample_id"] for sample in sums.samples if sample["sample_id"] in taken]  # the order stays
    assert collect_samples(project.lake, "arithmetic", "mine", most=len(flips) + 10) == part


@pytest.mark.long
def test_a_result_that_is_not_there_is_named(project: Project) -> None:
    with pytest.raises(LakeError, match=r"there is no result of nothing\|mine in .*metrics_history"):
        collect_samples(project.lake, "nothing", "mine")
    with pytest.raises(LakeError, match="there is no result of 2020-01-01"):
        collect_samples(project.lake, "capitals", "mine", datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.long
def test_deleted_files_of_the_other_result_are_noted(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.run()
    nights.run(completion=0.5)
    lake = nights.project().lake
    for path in lake.files(lake.folder("responses", "capitals-completion", "mine"))[:-1]:
        path.unlink()
    result = collect_samples(lake, "capitals-completion", "mine")
    assert result.against is None
    assert "nothing is compared: the responses of capitals-completion|mine" in result.notes[0]
    assert not any("before" in sample for sample in result.samples)
    lake.files(lake.folder("responses", "capitals-completion", "mine"))[-1].unlink()
    with pytest.raises(LakeError, match=r"the responses of capitals-completion\|mine of .* are no longer in the lake"):
        collect_samples(lake, "capitals-completion", "mine")
