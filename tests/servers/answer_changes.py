"""Changes of a server's right answer, of which the catalogue of faults is made."""

import copy
import json
from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], Any]


def error_body(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "injected", "code": None}})


def in_choice(change: Callable[[dict[str, Any]], None]) -> Change:
    """A change of the first choice."""

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        change(answer["choices"][0])
        return answer

    return changed


def set_text(choice: dict[str, Any], text: Any) -> None:
    if "message" in choice:
        choice["message"]["content"] = text
    else:
        choice["text"] = text


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def with_text(text: Any) -> Change:
    return in_choice(lambda choice: set_text(choice, text))


def ended_by(word: Any) -> Change:
    """Half of the text, and another word for its end."""

    def change(choice: dict[str, Any]) -> None:
        whole = text_of(choice)
        set_text(choice, whole[: len(whole) // 2])
        choice["finish_reason"] = word

    return in_choice(change)


def half_without_reason(choice: dict[str, Any]) -> None:
    whole = text_of(choice)
    set_text(choice, whole[: len(whole) // 2])
    del choice["finish_reason"]


def with_fields(**values: Any) -> Change:
    return lambda answer: answer | values


def in_choices(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    return lambda answer: answer | {"choices": change(answer["choices"])}


def other_choice(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Another answer of the same form."""
    other = copy.deepcopy(choice)
    set_text(other, "another answer")
    if other.get("logprobs"):
        other["logprobs"]["token_logprobs"] = [value and value - 1 for value in other["logprobs"]["token_logprobs"]]
    return other | more


def in_values(change: Callable[[list[Any]], list[Any]]) -> Change:
    """A change of the log-probabilities of the tokens."""

    def changed(choice: dict[str, Any]) -> None:
        choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])

    return in_choice(changed)


def each_logprob(value: Any) -> Change:
    """The same in place of all log-probabilities, beside the likely tokens too."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [None if each is None else value for each in found["token_logprobs"]]
        found["top_logprobs"] = [each and dict.fromkeys(each, value) for each in found["top_logprobs"]]

    return in_choice(changed)


def in_tokens(change: Callable[[list[str]], list[str]]) -> Change:
    def changed(choice: dict[str, Any]) -> None:
        choice["logprobs"]["tokens"] = change(choice["logprobs"]["tokens"])

    return in_choice(changed)


def in_lists(change: Callable[[list[Any]], list[Any]]) -> Change:
    """The same change of all lists of tokens."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        choice["logprobs"] = {name: change(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs")}

    return in_choice(changed)


def moved_on(tokens: list[str], step: int) -> list[str]:
    return [f"token_id:{int(token.removeprefix('token_id:')) + step}" for token in tokens]


def with_logprobs(value: Any) -> Change:
    return in_choice(lambda choice: choice.update(logprobs=value))


def with_usage(**values: Any) -> Change:
    return lambda answer: answer | {"usage": {**answer["usage"], **values}}


FIRST: dict[str, Any] = {}
"""The first answer of the run, under `answer`."""


def first_again(answer: dict[str, Any]) -> dict[str, Any]:
    """The first answer of the run, again and again."""
    return FIRST.setdefault("answer", answer)


def with_message(**values: Any) -> Change:
    """Other values of the message; a text of completions stays as it is."""
    return in_choice(lambda choice: choice["message"].update(values))


def without_text(choice: dict[str, Any]) -> None:
    choice.pop("message", None)
    choice.pop("text", None)


def half_text(**values: Any) -> Change:
    """Half of the text, and other values of the choice."""
    return in_choice(lambda choice: (set_text(choice, text_of(choice)[: len(text_of(choice)) // 2]), choice.update(values))[0])


def full_text(text: Any, **values: Any) -> Change:
    """Another text, as if all tokens that it may have were spent."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        set_text(answer["choices"][0], text)
        answer["choices"][0].update(values, finish_reason="length")
        return with_usage(completion_tokens=8, total_tokens=answer["usage"]["prompt_tokens"] + 8)(answer)

    return change


def shifted(found: list[Any], by: int) -> list[Any]:
    return [None, *found[:-1]] if by > 0 else [None, *found[2:], found[-1]]


def all_shifted(by: int) -> Change:
    """The numbers of a token at another one, those of the likely tokens as well."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        for name in ("token_logprobs", "top_logprobs"):
            found[name] = shifted(found[name], by)

    return in_choice(changed)


def own_logprob(value: Any) -> Change:
    """The same in place of the log-probabilities of the tokens, beside what the likely tokens have."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [None if each is None else value for each in found["token_logprobs"]]
        for token, likely in zip(found["tokens"], found["top_logprobs"], strict=True):
            if likely:
                likely[token] = value

    return in_choice(changed)


def at_end(value: Any) -> Change:
    """Another value in place of the log-probability of the last token but one: the last one of an echoed prompt."""
    return in_values(lambda found: [*found[:-2], value, *found[-1:]] if len(found) > 1 else [value])


def json_body(**values: Any) -> str:
    return json.dumps(values)


def fixed_answer(message: dict[str, Any], **more: Any) -> str:
    """An answer without anything that is not needed."""
    choice = {"index": 0, "text": message.get("content"), "message": message, "finish_reason": "stop", "logprobs": None}
    return json_body(choices=[choice | more])


def both_changes(first: Change, second: Change) -> Change:
    return lambda answer: second(first(answer))


def ended_whole(word: Any) -> Change:
    return in_choice(lambda choice: choice.update(finish_reason=word))


def as_thinking(choice: dict[str, Any]) -> None:
    set_text(choice, [{"type": "thinking", "thinking": text_of(choice)}])


def own_and_other_logprob(value: float) -> Change:
    """The same for the token and for a likely one beside it."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [value for _ in found["token_logprobs"]]
        found["top_logprobs"] = [{token: value, "token_id:1": value, "token_id:2": value} for token in found["tokens"]]

    return in_choice(changed)


def choices_twice(body: bytes, *, is_right_last: bool) -> bytes:
    """The answer with `choices` twice."""
    answer = json.loads(body)
    right, other = (json.dumps(each) for each in (answer["choices"], [other_choice(answer["choices"][0])]))
    rest = json.dumps({name: value for name, value in answer.items() if name != "choices"})
    first, last = (other, right) if is_right_last else (right, other)
    return f'{{"choices": {first}, "choices": {last}, {rest[1:]}'.encode()


def after_question(answer: dict[str, Any], question: str) -> dict[str, Any]:
    """The text after the question."""
    choice = answer["choices"][0]
    set_text(choice, f"{question} {text_of(choice)}")
    return answer
