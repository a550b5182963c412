"""The scripted model: table, function, errors, versions."""

import math
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.config.models import ScriptedModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.registry import open_model
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.records import GenerationSettings, Message, ModelResponse, Request, Role

FUNCTION = """
def answer(request):
    return [-float(len(choice)) for choice in request.choices] if request.choices else request.prompt.upper()
"""


def text_request(prompt: str, **settings: Any) -> Request:
    return Request(request_id=prompt, prompt=prompt, generation=GenerationSettings(**settings))


def choice_request(prompt: str, *choices: str) -> Request:
    return Request(request_id=prompt, prompt=prompt, choices=choices)


def respond(handle: ModelHandle, request: Request) -> ModelResponse:
    ((answered, response),) = handle.load().respond([request])
    assert answered is request
    return response


def from_config(tmp_path: Path, **section: Any) -> ModelHandle:
    return open_model("s", ScriptedModel(backend="scripted", **section), folder=tmp_path, home=tmp_path)


def test_a_table_answers_by_the_first_key_in_the_prompt(tmp_path: Path) -> None:
    handle = from_config(tmp_path, answers={"capital": "Paris", "France": "wine"}, default="no idea")
    handle.check()
    assert respond(handle, text_request("The capital of France?")).text == ("Paris",)
    assert respond(handle, text_request("Made in France?")).text == ("wine",)
    response = respond(handle, text_request("2 + 2?", num_samples=2, temperature=1.0))
    assert (response.text, response.finish_reason) == (("no idea", "no idea"), ("stop", "stop"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("B", (0.05, 0.9, 0.05)), ("Ceylon", (0.05, 0.05, 0.9)), ("Z", (1 / 3, 1 / 3, 1 / 3)), ("", (1 / 3, 1 / 3, 1 / 3))],
)
def test_a_table_scores_the_choice_that_it_names(answer: str, expected: tuple[float, ...]) -> None:
    response = respond(ScriptedHandle("s", default=answer), choice_request("?", " AB", " B", " tea of Ceylon"))
    assert [math.exp(value) for value in response.logprobs] == pytest.approx(expected)
    assert [list(tokens) for tokens in response.token_logprobs] == [[value] for value in response.logprobs]


def test_a_text_ends_before_a_stop_sequence() -> None:
    assert respond(ScriptedHandle("s", default="4\n\nQuestion: 5"), text_request("?", stop_sequences=("Question:", "\n\n"))).text == ("4",)


def test_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text(FUNCTION)
    handle = from_config(tmp_path, function="answers.py:answer")
    handle.check()
    assert respond(handle, text_request("hi")).text == ("HI",)
    response = respond(handle, choice_request("?", "aa", "a"))
    assert (response.logprobs, response.argmax_logits_eq_gold) == ((-2.0, -1.0), (False, True))
    before = handle.version()
    (tmp_path / "answers.py").write_text(FUNCTION.replace("upper", "lower"))
    assert from_config(tmp_path, function="answers.py:answer").version() != before


def test_a_function_imports_the_modules_beside_its_file_and_their_code_counts(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text("def answer(request):\n    from words import WORD\n\n    return WORD\n")
    versions = []
    for word in ("yes", "no"):
        (tmp_path / "words.py").write_text(f"WORD = '{word}'\n")
        handle = from_config(tmp_path, function="answers.py:answer")
        assert respond(handle, text_request("?")).text == (word,)
        versions.append(handle.version())
    assert versions[0] != versions[1]


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"Model 's': function 'answer' in .*answers.py: the file does not exist"):
        from_config(tmp_path, function="answers.py:answer").check()
    (tmp_path / "answers.py").write_text("x = 1")
    with pytest.raises(ModelNotFoundError, match="defines no function 'answer'"):
        from_config(tmp_path, function="answers.py:answer").version()
    (tmp_path / "answers.py").write_text("x = ")
    with pytest.raises(ModelNotFoundError, match=r"cannot be run \(SyntaxError"):
        from_config(tmp_path, function="answers.py:answer").load()


def test_an_exception_is_an_error_of_its_request_alone() -> None:
    def answer(request: Request) -> str:
        if request.prompt == "bad":
            raise ValueError("no answer to this")
        return "fine"

    handle = ScriptedHandle("s", function=answer)
    responses = {request.prompt: response for request, response in handle.load().respond([text_request("bad"), text_request("good")])}
    assert responses["bad"] == ModelResponse(error="ValueError: no answer to this", retryable=True)
    assert responses["good"].text == ("fine",)
    assert handle.requests_seen == 2


def test_an_exception_names_the_line_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text("def answer(request):\n    table = {}\n    return table[request.prompt]\n")
    response = respond(from_config(tmp_path, function="answers.py:answer"), text_request("tin"))
    assert response.error == "KeyError: 'tin' (answers.py, line 3)"


@pytest.mark.parametrize("answer", ["a text", [-1.0], [-1.0, math.nan], [-1.0, -2.0, -3.0], None, 7])
def test_an_answer_that_does_not_fit_the_choices_is_an_error(answer: Any) -> None:
    response = respond(ScriptedHandle("s", function=lambda request: answer), choice_request("?", "a", "b"))
    assert response.error is not None
    assert response.error.startswith("ModelError: The function gave")
    assert answer is not None or "gave NoneType for a request with 2 choices; expected one log-probability a choice" in response.error


def test_a_table_scores_the_words_of_a_text_alike() -> None:
    response = respond(ScriptedHandle("s"), Request(request_id="p", prompt="the cat  sat\n", perplexity=True, use_logits=True))
    assert response.logprobs == (math.log(0.5),) * 3
    assert response.token_logprobs == response.logits == (response.logprobs,)
    assert response.argmax_logits_eq_gold == (False,)
    assert response.input == "the cat  sat\n"


def test_a_function_scores_the_tokens_of_a_text() -> None:
    handle = ScriptedHandle("s", function=lambda request: [-float(len(word)) for word in request.prompt.split()])
    response = respond(handle, Request(request_id="p", prompt="a cat", perplexity=True))
    assert (response.logprobs, response.token_logprobs, response.logits) == ((-1.0, -3.0), ((-1.0, -3.0),), None)


@pytest.mark.parametrize("answer", ["a text", [], [-1.0, math.inf], None])
def test_an_answer_that_is_no_score_of_a_text_is_an_error(answer: Any) -> None:
    response = respond(ScriptedHandle("s", function=lambda request: answer), Request(request_id="p", prompt="a", perplexity=True))
    assert (response.error or "").startswith("ModelError: The function gave")


def test_unconditioned_choices_are_equally_probable() -> None:
    request = Request(request_id="c", prompt="?", choices=("a", "b"), unconditioned_prompt="Answer:", use_logits=True, images=(b"any",))
    response = respond(ScriptedHandle("s", default="a"), request)
    assert response.unconditioned_logprobs == (-math.log(2),) * 2
    assert response.logits == tuple((value,) for value in response.logprobs)
    plain = respond(ScriptedHandle("s", default="a"), choice_request("?", "a", "b"))
    assert (plain.unconditioned_logprobs, plain.logits, plain.logprobs) == (None, None, response.logprobs)


def test_a_function_is_called_once_a_sample() -> None:
    texts = iter(["one", "two", "three"])
    response = respond(ScriptedHandle("s", function=lambda request: next(texts)), text_request("?", num_samples=3, temperature=1.0))
    assert response.text == ("one", "two", "three")


def test_images_are_marked() -> None:
    handle: ModelHandle = ScriptedHandle("s")
    assert handle.image_mark() == "<image>"
    with pytest.raises(ModelError, match="has no chat template"):
        handle.apply_chat_template([Message(Role.USER, "Hi")], images=1)


def test_a_list_is_no_text() -> None:
    assert respond(ScriptedHandle("s", function=lambda request: [1.0]), text_request("?")).error is not None


def test_versions_and_the_missing_chat_template(tmp_path: Path) -> None:
    table = from_config(tmp_path, answers={"a": "b"})
    assert table.version() == from_config(tmp_path, answers={"a": "b"}).version()
    other = [from_config(tmp_path), from_config(tmp_path, default="b"), from_config(tmp_path, answers={"a": "c"})]
    functions = [
        ScriptedHandle("s", function=lambda request: "x"),
        ScriptedHandle("s", function=lambda request: "y"),
    ]
    assert len({handle.version() for handle in [table, *other, *functions]}) == 6
    assert table.template_version() == other[0].template_version()
    with pytest.raises(ModelError, match="has no chat template"):
        table.apply_chat_template([Message(Role.USER, "Hi")])
