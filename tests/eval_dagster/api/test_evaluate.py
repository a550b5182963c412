"""Evaluation by a call: tasks, models, settings, results, and the messages where one is wrong."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eval_dagster as ed

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
      empty: {backend: scripted}
    evals:
      arithmetic: {task: arithmetic, limit: 3}
"""


class Words(ed.BaseTask[str]):
    """Two subjects of four words."""

    NAME, DATASET_PATH, SAMPLE_SPLIT, SUBJECTS = "Words", "own", "test", ["short", "long"]
    RESPONSE_TYPE, METRICS = ed.ResponseType.COMPLETION, [ed.ExactMatch]

    def _load_dataset(self, subject: str) -> dict[str, list[ed.Row]]:
        return {"test": [{"word": f"{subject} {n}"} for n in range(4)]}

    def _get_instruction_text(self, item: ed.Row) -> str:
        return f"Repeat: {item['word']}\n"

    def _get_ground_truth(self, item: ed.Row) -> str:
        return str(item["word"])


def repeats(request: ed.Request) -> str:
    return request.prompt.strip().removeprefix("Repeat: ")


def forgets(request: ed.Request) -> str:
    if "long 3" in request.prompt:
        raise ValueError("too long")
    return repeats(request) if "short" in request.prompt else "?"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("EVAL_DAGSTER_HOME", "EVAL_DAGSTER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(*arguments: Any, **settings: Any) -> ed.Results:
    return ed.evaluate(*arguments, progress=False, **settings)


@pytest.mark.long
def test_two_functions_on_a_class() -> None:
    results = evaluate(Words, [repeats, forgets])
    assert results.scores[["eval", "model", "value", "n", "n_errors"]].to_numpy().tolist() == [
        ["Words", "repeats", 1.0, 8, 0],
        ["Words", "forgets", 4 / 7, 7, 1],
    ]
    assert set(results.errors["model"]) == {"forgets"}
    assert sorted(results.errors["prompt"]) == [f"Repeat: long {n}\n" for n in range(4)]
    assert results.errors["error"].notna().sum() == 1
    legend = results.plot().get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["repeats", "forgets"]
    assert "forgets" in results._repr_html_()
    with pytest.raises(ed.UsageError, match="there are 2 scores"):
        results.score  # noqa: B018


@pytest.mark.long
def test_a_task_file_elsewhere_has_its_rows_beside_it(folder: Path) -> None:
    """The folder of the notebook has none of that name."""
    place, notebook = folder / "tasks", folder / "notebook"
    (place / "rows").mkdir(parents=True)
    notebook.mkdir()
    (place / "rows/test.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (place / "sums.py").write_text(
        textwrap.dedent("""
            from eval_dagster import Doc, ExactMatch, doc_task

            @doc_task(dataset_path="./rows", sample_split="test", metrics=[ExactMatch])
            def sums(row):
                return Doc(query=row["question"], choices=[row["answer"]], gold_index=0)
        """)
    )
    os.chdir(notebook)
    assert evaluate(f"{place / 'sums.py'}:sums", lambda _: "4").score == 1.0


@pytest.mark.long
def test_a_second_call_asks_no_model_again(folder: Path) -> None:
    (folder / "asked.py").write_text(
        textwrap.dedent("""
            def answer(request):
                with open("asked.log", "a") as log:
                    log.write(request.prompt)
                return ""
        """)
    )
    model = {"backend": "scripted", "function": "asked.py:answer"}
    assert evaluate(Words, {"logged": model}).score == 0.0
    asked = (folder / "asked.log").read_text()
    assert evaluate(Words, {"logged": model}, limit=2, name="fewer").score == 0.0
    assert (folder / "asked.log").read_text() == asked
    rows = ed.connect().sql("select eval, n from metrics where is_headline order by eval").fetchall()
    assert rows == [("Words", 8), ("fewer", 4)]


@pytest.mark.long
def test_names_of_the_registry_and_of_the_configuration(folder: Path) -> None:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    results = evaluate(["arithmetic", Words], "sevens", limit=3)
    assert set(results.scores["eval"]) == {"arithmetic", "Words"}
    assert set(results.scores["model"]) == {"sevens"}
    assert ed.connect().sql("select eval from leaderboard").fetchall() == [("arithmetic",)], "evals.yaml says what is published"
    with pytest.raises(ed.UsageError, match=r"evals\.yaml has an eval 'arithmetic' with other settings.*name='arithmetic-trial'"):
        evaluate("arithmetic", "sevens", limit=4)
    assert len(evaluate("arithmetic", "sevens", limit=4, name="more").samples) == 12
    with pytest.raises(ed.UsageError, match=r"evals\.yaml has another model 'sevens'"):
        evaluate("arithmetic", {"sevens": repeats}, limit=3)
    with pytest.raises(ed.UsageError, match=r"evals\.yaml has another model 'empty'"):
        evaluate("arithmetic", {"empty": repeats}, limit=3)


@pytest.mark.long
def test_a_folder_is_a_model(tiny_model: Path) -> None:
    results = evaluate("arithmetic", tiny_model, limit=1, subjects=["addition"], num_fewshot=0)
    assert list(results.scores["model"]) == [tiny_model.name]
    assert list(results.scores["n"]) == [1]


@pytest.mark.long
def test_one_failing_eval_leaves_the_others() -> None:
    class Broken(Words):
        """A task that cannot be rendered."""

        NAME = "Broken"

        def _get_instruction_text(self, item: ed.Row) -> str:
            raise KeyError("nothing")

    results = evaluate([Words, Broken], repeats)
    assert list(results.scores["eval"]) == ["Words"]
    assert {failure.eval_name for failure in results.failures} == {"Broken"}
    assert "failed" in repr(results)
    with pytest.raises(ed.UsageError, match="Broken"):
        evaluate(Broken, repeats)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("arithmetik", repeats), "there is no task 'arithmetik'; did you mean 'arithmetic'"),
        ((Words, "nowhere"), "there is no model 'nowhere'"),
        ((Words, {"backend": "scripted", "defualt": "x"}), "defualt"),
        ((Words, {"backend": "vllm", "source": {"folder": "base"}, "adapters": {"a": {"folder": "a"}}}), "only evals.yaml can do"),
        ((Words, {"a/b": repeats}), "a model cannot be called 'a/b'"),
        ((Words, [repeats, repeats]), "two models would be called 'repeats'"),
        ((Words, 5), "found int for a model"),
        ((Words, len), "found builtin_function_or_method for a model"),
    ],
)
def test_a_wrong_choice_is_one_message(arguments: tuple[Any, Any], message: str, folder: Path) -> None:
    with pytest.raises(ed.UsageError, match=message):
        evaluate(*arguments)
    assert not (folder / ".eval_dagster" / "lake").exists()


@pytest.mark.parametrize("settings", [{"limit": 0}, {"limt": 3}, {"seed": "x"}])
def test_a_wrong_setting_is_one_message(settings: dict[str, Any]) -> None:
    with pytest.raises(ed.UsageError, match=next(iter(settings))):
        evaluate(Words, repeats, **settings)


def test_all_names_are_there() -> None:
    for name in ed.__all__:
        assert getattr(ed, name) is not None
    assert sorted(ed.__all__) == dir(ed)


@pytest.mark.long
def test_code_that_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Callable[..., Any]] = {}
    exec("def typed(request): return ''", {"__name__": "nowhere"}, made)
    with pytest.raises(ed.UsageError, match="the code of typed cannot be read"):
        evaluate(Words, made["typed"])
