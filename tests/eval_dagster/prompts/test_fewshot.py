import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.config.schema import FewshotSets
from eval_dagster.errors import DataError
from eval_dagster.prompts.fewshot import FewshotPool, fewshot_set
from eval_dagster.records import Sample
from eval_dagster.tasks.base import FewshotStrategy
from eval_dagster.tasks.samples import build_samples


def make(count: int, split: str = "train") -> list[Sample]:
    return build_samples({split: [{"question": f"question {index}"} for index in range(count)]}, "sub")


def others(count: int) -> list[Sample]:
    """Samples that are in no pool."""
    return build_samples({"test": [{"question": f"other {index}"} for index in range(count)]}, "sub")


def ids(samples: list[Sample]) -> list[str]:
    return [sample.sample_id for sample in samples]


@pytest.mark.parametrize("sets", [1, 4, "per_sample"])
def test_a_draw_depends_on_seed_and_sample_alone(sets: FewshotSets) -> None:
    samples, asked = make(50), others(3)
    pool = FewshotPool(samples)
    first = [ids(pool.draw(sample, count=5, seed=1, sets=sets)) for sample in asked]
    again = [ids(pool.draw(sample, count=5, seed=1, sets=sets)) for sample in reversed(asked)][::-1]
    shuffled = random.Random(3).sample(samples, len(samples))
    assert first == again == [ids(FewshotPool(shuffled).draw(sample, count=5, seed=1, sets=sets)) for sample in asked]
    assert first != [ids(pool.draw(sample, count=5, seed=2, sets=sets)) for sample in asked]


def test_the_samples_of_a_subject_share_one_set() -> None:
    pool = FewshotPool(make(50))
    drawn = {tuple(ids(pool.draw(sample, count=5, seed=0))) for sample in others(100)}
    assert len(drawn) == 1
    (other,) = build_samples({"test": [{"question": "other 0"}]}, "another subject")
    assert tuple(ids(pool.draw(other, count=5, seed=0))) not in drawn


def test_several_sets_are_spread_over_the_samples_by_their_ids() -> None:
    pool, asked = FewshotPool(make(50)), others(400)
    drawn = {sample.sample_id: tuple(ids(pool.draw(sample, count=5, seed=0, sets=4))) for sample in asked}
    numbers = {sample.sample_id: fewshot_set(sample.sample_id, 4) for sample in asked}
    assert {numbers[name] for name in drawn} == {1, 2, 3, 4}
    assert len({(numbers[name], examples) for name, examples in drawn.items()}) == len(set(drawn.values())) == 4
    assert all(70 < list(numbers.values()).count(number) < 130 for number in (1, 2, 3, 4))
    assert {drawn[name] for name, number in numbers.items() if number == 1} == {tuple(ids(pool.draw(asked[0], count=5, seed=0)))}
    assert [fewshot_set("any", sets) for sets in (1, "per_sample")] == [1, None]


def test_each_sample_may_have_a_set_of_its_own_in_the_order_of_the_split() -> None:
    pool = FewshotPool(make(50))
    drawn = [pool.draw(sample, count=5, seed=0, sets="per_sample") for sample in others(100)]
    assert len({tuple(ids(examples)) for examples in drawn}) > 95
    assert all([each.row_index for each in examples] == sorted(each.row_index for each in examples) for examples in drawn)


@pytest.mark.parametrize("strategy", ["random", "first"])
def test_a_sample_among_the_examples_takes_the_next_in_line_at_the_end(strategy: FewshotStrategy) -> None:
    samples = make(30)
    pool = FewshotPool(samples)
    (stranger,) = others(1)
    longer = pool.draw(stranger, count=6, seed=0, strategy=strategy)
    shared, following = longer[:5], longer[5]
    assert pool.draw(stranger, count=5, seed=0, strategy=strategy) == shared
    for place, example in enumerate(shared):
        duplicate = replace(example, sample_id=f"{example.sample_id}-2", split="test")
        for asked in (example, duplicate):
            assert pool.draw(asked, count=5, seed=0, strategy=strategy) == [*shared[:place], *shared[place + 1 :], following]
    for sample in set(ids(samples)) - set(ids(shared)):
        (asked,) = (each for each in samples if each.sample_id == sample)
        assert pool.draw(asked, count=5, seed=0, strategy=strategy) == shared


def test_of_balanced_examples_one_of_the_same_class_takes_the_place() -> None:
    rows = [{"question": f"question {index}", "label": "abc"[index % 3]} for index in range(60)]
    pool = FewshotPool(build_samples({"train": rows}, "sub"), group=lambda sample: str(sample.row["label"]))
    shared = pool.draw(others(1)[0], count=6, seed=0, strategy="balanced")
    labels = [example.row["label"] for example in shared]
    assert sorted(labels[:3]) == ["a", "b", "c"]
    assert labels[3:] == labels[:3]
    for place, example in enumerate(shared):
        drawn = pool.draw(example, count=6, seed=0, strategy="balanced")
        assert [each.row["label"] for each in drawn] == labels
        assert drawn[:place] == shared[:place]


ROWS = st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.sampled_from("xy")), min_size=1, max_size=40)


@given(
    rows=ROWS,
    order=st.randoms(use_true_random=False),
    count=st.integers(1, 5),
    seed=st.integers(0, 3),
    strategy=st.sampled_from(["random", "first", "balanced"]),
    sets=st.sampled_from([1, 3, "per_sample"]),
)
def test_no_example_is_the_sample_or_a_duplicate_whatever_the_order_of_draws(
    rows: list[tuple[str, str]], order: random.Random, count: int, seed: int, strategy: FewshotStrategy, sets: FewshotSets
) -> None:
    samples = build_samples({"test": [{"id": index, "asks": asks, "label": label} for index, (asks, label) in enumerate(rows)]}, "sub")

    def drawn(asked: list[Sample]) -> dict[str, list[str] | None]:
        pool = FewshotPool(samples, question=lambda each: str(each.row["asks"]), group=lambda each: str(each.row["label"]))
        found: dict[str, list[str] | None] = {}
        for sample in asked:
            try:
                found[sample.sample_id] = ids(pool.draw(sample, count=count, seed=seed, strategy=strategy, sets=sets))
            except DataError:
                found[sample.sample_id] = None
        return found

    asks = {sample.sample_id: sample.row["asks"] for sample in samples}
    others = len(set(asks.values())) - 1
    whole = drawn(samples)
    for name, examples in whole.items():
        assert (examples is None) == (others < count), "examples are found where there are enough"
        questions = [asks[each] for each in examples or ()]
        assert asks[name] not in questions
        assert len(set(questions)) == len(questions)
    some = order.sample(samples, order.randint(1, len(samples)))
    assert drawn(some) == {sample.sample_id: whole[sample.sample_id] for sample in some}


@pytest.mark.long
def test_a_draw_is_the_same_in_every_process() -> None:
    code = (
        "from eval_dagster.prompts.fewshot import FewshotPool\n"
        "from eval_dagster.tasks.samples import build_samples\n"
        "rows = {split: [{'question': f'{split} {index}'} for index in range(9)] for split in ('test', 'train')}\n"
        "samples = build_samples(rows, 'sub')\n"
        "pool = FewshotPool(samples[9:])\n"
        "drawn = [pool.draw(asked, count=3, seed=0, sets=sets) for sets in (1, 4, 'per_sample') for asked in samples]\n"
        "print([each.row_index for examples in drawn for each in examples])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.split()) == 3 * 18 * 3


def test_a_pool_of_the_wanted_size_gives_every_sample_the_same_examples() -> None:
    pool = FewshotPool(make(5))
    assert len({tuple(ids(pool.draw(sample, count=5, seed=0, sets="per_sample"))) for sample in others(4)}) == 1


def test_every_example_is_drawn_about_equally_often() -> None:
    pool = FewshotPool(make(10))
    counts = [0] * 10
    for sample in others(1000):
        for example in pool.draw(sample, count=3, seed=0, sets="per_sample"):
            counts[example.row_index] += 1
    assert sum(counts) == 3000
    assert min(counts) > 240
    assert max(counts) < 360


def test_neither_itself_nor_a_duplicate_is_drawn() -> None:
    rows = [{"question": "same"}] * 3 + [{"question": "a"}, {"question": "a"}, {"question": "b"}]
    samples = build_samples({"test": rows}, "sub")
    pool = FewshotPool(samples)
    for sample in samples:
        contents = [example.content_id for example in pool.draw(sample, count=2, seed=0)]
        assert sample.content_id not in contents
        assert len(set(contents)) == 2


def test_rows_that_ask_the_same_are_duplicates_although_their_ids_differ() -> None:
    rows = [{"id": 1, "question": "What is  it?"}, {"id": 2, "question": "what is it?"}, {"id": 3, "question": "Who?"}]
    samples = build_samples({"test": rows}, "sub")
    pool = FewshotPool(samples, question=lambda sample: sample.row["question"])
    drawn = pool.draw(samples[0], count=1, seed=0)
    assert [example.row["id"] for example in drawn] == [3]
    with pytest.raises(DataError, match="has 1 distinct few-shot examples"):
        pool.draw(samples[0], count=2, seed=0)


def test_too_small_a_pool_says_how_many_there_are() -> None:
    samples = make(3)
    with pytest.raises(DataError, match=r"subject 'sub' has 2 .* row 1 of split 'train', expected 5.*split 'train'.*holds 3 rows"):
        FewshotPool(samples).draw(samples[1], count=5, seed=0)
    with pytest.raises(DataError, match=r"has 0 .*\(split none\)"):
        FewshotPool([]).draw(samples[1], count=1, seed=0)


def test_drawing_does_not_grow_with_the_pool() -> None:
    samples = make(20_000)
    pool = FewshotPool(samples)
    begin = time.perf_counter()
    for sample in samples[:2_000]:
        pool.draw(sample, count=5, seed=0)
    assert time.perf_counter() - begin < 2


def test_first_takes_the_beginning_of_the_split_and_skips_duplicates() -> None:
    samples = make(10)
    pool = FewshotPool(reversed(samples))
    assert [each.row_index for each in pool.draw(samples[1], count=3, seed=5, strategy="first")] == [0, 2, 3]
    (asked,) = build_samples({"test": [{"question": "question 0"}]}, "sub")
    assert [each.row_index for each in pool.draw(asked, count=3, seed=9, strategy="first")] == [1, 2, 3]


def test_balanced_draws_every_class_equally_often_however_rare_it_is() -> None:
    rows = [{"question": f"question {index}", "label": "rare" if index in (3, 77, 140) else f"class {index % 2}"} for index in range(200)]
    samples = build_samples({"train": rows}, "sub")
    pool = FewshotPool(samples, group=lambda sample: str(sample.row["label"]))
    drawn = [tuple(ids(pool.draw(sample, count=6, seed=0, strategy="balanced", sets="per_sample"))) for sample in samples]
    label = {sample.sample_id: sample.row["label"] for sample in samples}
    for sample, chosen in zip(samples, drawn, strict=True):
        assert sample.sample_id not in chosen
        assert sorted(label[each] for each in chosen) == ["class 0"] * 2 + ["class 1"] * 2 + ["rare"] * 2
    assert len(set(drawn)) > 190
    shuffled = FewshotPool(random.Random(1).sample(samples, 200), group=lambda sample: str(sample.row["label"]))
    assert ids(shuffled.draw(samples[0], count=6, seed=0, strategy="balanced", sets="per_sample")) == list(drawn[0])


def test_balanced_goes_on_with_the_other_classes_where_one_is_used_up() -> None:
    rows = [{"question": f"question {index}", "label": "rare" if index == 3 else "common"} for index in range(9)]
    samples = build_samples({"train": rows}, "sub")
    pool = FewshotPool(samples, group=lambda sample: str(sample.row["label"]))
    assert len(pool.draw(samples[0], count=7, seed=0, strategy="balanced")) == 7
    with pytest.raises(DataError, match="has 8 distinct few-shot examples"):
        pool.draw(samples[0], count=9, seed=0, strategy="balanced")


def test_nearly_the_same_question_is_drawn_only_where_there_is_nothing_else() -> None:
    text = "a train leaves the old station at noon and drives north for two hours until it meets another one coming south"
    rows = [{"question": text}, {"question": f"{text}wards"}, {"question": "How many legs has a spider?"}]
    samples = build_samples({"test": rows}, "sub")
    pool = FewshotPool(samples)
    for seed in range(20):
        assert [each.row_index for each in pool.draw(samples[0], count=1, seed=seed)] == [2]
    assert [each.row_index for each in pool.draw(samples[0], count=2, seed=0)] == [2, 1]
