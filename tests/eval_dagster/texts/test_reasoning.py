import pytest

from eval_dagster.records import ModelResponse
from eval_dagster.texts.reasoning import split_reasoning


@pytest.mark.parametrize(
    ("text", "prompt", "reasoning", "answer", "is_cut"),
    [
        ("The answer is 42.", "", None, "The answer is 42.", False),
        ("<think>\nsix times seven\n</think>\n\nThe answer is 42.", "", "six times seven", "The answer is 42.", False),
        ("Well. <think>hm</think> 42", "", "hm", "42", False),
        ("<think>one</think> <think>two</think> 42", "", "one</think> <think>two", "42", False),
        ("<think>\nsix times", "", "six times", "", True),
        ("<think>one</think> then <think>again", "", "one</think> then <think>again", "", True),
        ("six times seven</think> 42", "Q\n<think>\n", "six times seven", "42", False),
        ("six times", "Q\n<think>\n", "six times", "", True),
        ("six times seven</think> 42", "", "six times seven", "42", False),
        ("<think>done</think>", "", "done", "", False),
        ("", "", None, "", False),
    ],
)
def test_reasoning_is_told_from_the_answer(text: str, prompt: str, reasoning: str | None, answer: str, is_cut: bool) -> None:
    assert split_reasoning(text, prompt=prompt) == (reasoning, answer, is_cut)


def test_the_tags_are_the_models_own() -> None:
    tags = ("[THINK]", "[/THINK]")
    assert split_reasoning("[THINK]a[/THINK]b", tags=tags) == ("a", "b", False)
    assert split_reasoning("<think>a</think>b", tags=tags) == (None, "<think>a</think>b", False)


def test_a_response_is_post_processed_in_a_step_of_its_own() -> None:
    response = ModelResponse(input="Q", text=["<think>a</think> b", "c"])
    assert (response.text_post_processed, response.final_text) == (None, ["<think>a</think> b", "c"])
    response.post_process()
    assert (response.text, response.text_post_processed, response.reasonings) == (["<think>a</think> b", "c"], ["b", "c"], ["a", None])
    assert response.final_text == ["b", "c"]
