"""A served model with a tokenizer on this machine: what is sent, how it is compared with the server's, and what it scores."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from servers.stub import Stub, stub_server
from servers.stub_model import _WORDS, HashModel, split
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.served.calls.answer_records import Choice
from eval_dagster.models.served.calls.answers import TextReader
from eval_dagster.models.served.handle import ENGINE_VERSION, ServedHandle
from eval_dagster.models.served.scoring import scoring
from eval_dagster.models.served.scoring.tokenizers import _TEXTS
from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConversationFormatter, formatter_for
from eval_dagster.records import GenerationSettings, Grammar, Message, ModelResponse, Request, Role
from eval_dagster.versions.hashes import stable_hash

START = "<s>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXTS = (
    "The capital of France is Paris and London town",
    "What is it? It is red blue",
    "user: Hi\nassistant:user\nHi",
    "One day the sun, the moon and the river met.",
)
"""Texts of the tests, whose words the vocabulary has."""
Ask = Callable[..., dict[str, ModelResponse]]


@pytest.fixture(scope="module")
def vocabulary() -> list[str]:
    tokens = [START, *_WORDS, *(token for text in (*_TEXTS, *TEXTS) for token in split(text))]
    return list(dict.fromkeys([*tokens, *split(START), *(token.strip() for token in tokens)]))


@pytest.fixture(scope="module")
def folder(vocabulary: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub's tokenizer: a word or a sign with the white space before it. A start token is known and not added."""
    words = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token=START))
    pattern = Regex(r"\s*(?:[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s])|\s+")
    words.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    words.decoder = decoders.Fuse()
    folder = tmp_path_factory.mktemp("words")
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token=None, eos_token=" the", chat_template=TEMPLATE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def running(vocabulary: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("stub"), vocabulary=vocabulary) as stub:
        yield stub


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    running.reset()
    yield running
    running.change(added_tokens=0, tokenize=True, echo="right", logprobs="lists", names_ids=True, usage=True, token_ids=True, answers={})


@pytest.fixture
def handle(stub: Stub, folder: Path, tmp_path: Path) -> Callable[..., ServedHandle]:
    def handle(**config: Any) -> ServedHandle:
        given = {"backend": "openai", "base_url": stub.base_url, "model": "stub", "tokenizer": {"folder": str(folder)}, **config}
        return ServedHandle("served", OpenAIModel.model_validate(given), home=tmp_path)

    return handle


@pytest.fixture
def ask(handle: Callable[..., ServedHandle]) -> Ask:
    def ask(*requests: Request, **config: Any) -> dict[str, ModelResponse]:
        return {request.request_id: response for request, response in handle(**config).load().respond(requests)}

    return ask


def choices(prompt: str, *texts: str, **fields: Any) -> Request:
    return Request(request_id=prompt, prompt=prompt, choices=texts, **fields)


PARIS = choices("The capital of France is", " Paris", " London town")


def prompts_sent(stub: Stub) -> Sequence[Any]:
    return [each["body"].get("prompt") for each in stub.requests()]


def test_prompts_are_sent_as_token_ids(ask: Ask, stub: Stub, vocabulary: list[str]) -> None:
    text = Request(request_id="t", prompt="The capital of France is", generation=GenerationSettings(max_tokens=4))
    by_text = ask(text)["t"]
    stub.reset()
    by_tokens = ask(text, send="tokens")["t"]
    assert by_tokens.text == by_text.text
    assert by_tokens.error is None
    [sent] = [each for each in prompts_sent(stub) if isinstance(each, list)]
    assert [vocabulary[token] for token in sent] == ["The", " capital", " of", " France", " is"]


def test_the_local_template_renders_what_is_not_sent_as_messages(handle: Callable[..., ServedHandle]) -> None:
    turns = [Message(Role.USER, "Hi")]
    rendered = handle(prompt_format="chat", send="tokens")
    formatter = formatter_for("chat", rendered)
    assert isinstance(formatter, ChatTemplateFormatter)
    assert formatter.format(turns) == "user: Hi\nassistant:"
    sent = handle(prompt_format="chat")
    assert isinstance(formatter_for("chat", sent), ConversationFormatter)
    with pytest.raises(ModelError, match="has its chat template on its server"):
        sent.apply_chat_template(turns)
    with pytest.raises(ModelError, match="Set `send: messages`"):
        rendered.apply_chat_template(turns, images=1)
    assert rendered.template_version() != sent.template_version()


@pytest.mark.long
@pytest.mark.parametrize("server", [{"echo": "right"}, {"echo": "ignored", "logprobs": "content"}])
def test_choices_are_scored_without_tokenize(ask: Ask, stub: Stub, server: dict[str, Any]) -> None:
    """The server is one that tells texts of tokens alone, as SGLang does."""
    expected = ask(PARIS, tokenizer=None)[PARIS.prompt]
    assert expected.error is None
    stub.change(tokenize=False, names_ids=False, **server)
    found = ask(PARIS)[PARIS.prompt]
    assert found.error is None
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-9)
    assert (found.input_tokens, found.output_tokens) == (expected.input_tokens, expected.output_tokens)
    missing = ask(PARIS, tokenizer=None)[PARIS.prompt].error
    assert missing is not None
    assert "Name the model's `tokenizer` in evals.yaml" in missing


def test_choices_of_a_conversation_are_scored(ask: Ask, handle: Callable[..., ServedHandle]) -> None:
    settings = {"prompt_format": "chat", "send": "tokens"}
    prompt, alone = (handle(**settings).apply_chat_template([Message(Role.USER, text)]) for text in ("What is it?", "It is"))
    request = choices(prompt, " red", " blue", has_special_tokens=True, unconditioned_prompt=alone)
    found = ask(request, **settings)[prompt]
    assert found.error is None
    assert found.unconditioned_logprobs == pytest.approx(ask(choices(alone, " red", " blue"), **settings)[alone].logprobs)


@pytest.mark.long
@pytest.mark.parametrize("server", [{}, {"tokenize": False}, {"tokenize": False, "echo": "ignored"}])
def test_another_tokenizer_is_refused(
    handle: Callable[..., ServedHandle], stub: Stub, tokenizer: PreTrainedTokenizerFast, server: dict[str, Any], tmp_path: Path
) -> None:
    stub.change(**server)
    tokenizer.save_pretrained(tmp_path / "bytes")
    with pytest.raises(ModelError, match="is not that of the server at http") as found:
        handle(tokenizer={"folder": str(tmp_path / "bytes")}).load()
    assert "the text 'The quick brown fox" in str(found.value)
    assert "Name the tokenizer of the model that is served, or leave `tokenizer` out." in str(found.value)
    handle().load()


def test_a_server_that_tells_nothing_about_tokens_is_an_error(handle: Callable[..., ServedHandle], stub: Stub) -> None:
    stub.change(tokenize=False, echo="ignored", usage=False)
    with pytest.raises(ModelError, match="tells neither the tokens of a prompt nor their number"):
        handle().load()


def test_a_server_that_adds_tokens_to_a_rendered_conversation_is_refused(handle: Callable[..., ServedHandle], stub: Stub) -> None:
    handle(prompt_format="chat", send="text").load()
    stub.change(added_tokens=1)
    with pytest.raises(ModelError, match="Set `send: tokens` for this model"):
        handle(prompt_format="chat", send="text").load()
    handle(prompt_format="chat", send="tokens").load()


def test_a_missing_tokenizer_is_found_before_anything_is_sent(handle: Callable[..., ServedHandle], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"Correct `tokenizer\.folder` in evals"):
        handle(tokenizer={"folder": str(tmp_path / "nowhere")}).check()
    with pytest.raises(ModelNotFoundError, match=r"Correct `tokenizer\.gguf` in evals"):
        handle(tokenizer={"gguf": str(tmp_path / "nowhere.gguf")}).check()


@pytest.mark.parametrize("way", [{"echo": "right"}, {"echo": "ignored", "logprobs": "content"}])
@pytest.mark.parametrize("length", [None, 4])
def test_a_text_is_scored_in_windows(ask: Ask, stub: Stub, way: dict[str, Any], length: int | None) -> None:
    """Each window begins with the token before those that it scores; the last one has as many earlier tokens as fit."""
    stub.change(**way)
    text = "One day the sun, the moon and the river met."
    tokens = split(text)
    found = ask(Request(request_id="p", prompt=text, perplexity=True), max_length=length)["p"]
    model, size, expected = HashModel("", 8, 0.5), length or len(tokens), []
    for start in range(0, len(tokens), size):
        end = min(start + size, len(tokens))
        given = [" the", *tokens[: end - 1]] if start == 0 else tokens[end - 1 - size : end - 1]
        scored = tokens[start:end]
        before = given[: len(given) + 1 - len(scored)]
        expected += [value for value, _ in model.logprobs(model.state("".join(before)), scored, 0)]
    assert found.error is None
    assert list(found.logprobs) == pytest.approx(expected)
    assert [len(each) for each in found.output_tokens] == [1] * len(tokens)


def test_the_price_of_forced_scoring_is_reported_before_it_starts(
    handle: Callable[..., ServedHandle], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans that are not kept are made again. The numbers are those of the calls that follow."""
    monkeypatch.setattr(scoring, "_MOST_KEPT_TOKENS", 0)
    stub.change(echo="ignored")
    loaded = handle(price={"input": 1000, "output": 2000}).load()
    lines: list[str] = []
    other = choices("What is it?", " It is red", " blue")
    stub.reset()
    with use_reporter(LogReporter(lines.append)):
        found = list(loaded.respond([PARIS, other]))
    assert all(response.error is None for _, response in found)
    forced = [each["body"] for each in stub.requests() if "logit_bias" in each["body"]][2:]  # two of them try the server
    tokens = sum(len(each["prompt"]) for each in forced)
    cost = (tokens * 1000 + len(forced) * 2000) / 1e6
    assert f"scoring 4 choices by served needs 7 calls of one token, {tokens} prompt tokens (${cost:.2f})" in lines
    assert len(forced) == 7


def test_more_forced_tokens_than_allowed_are_an_error_that_names_the_key(ask: Ask, stub: Stub) -> None:
    stub.change(echo="ignored")
    found = ask(PARIS, most_forced_tokens=2)[PARIS.prompt]
    assert found.error is not None
    assert "The choices have 3 tokens, and this server needs a call for each; expected at most 2. Raise `most_forced_tokens`" in found.error
    assert found.retryable, "a higher limit asks again"


def test_a_named_tokenizer_is_part_of_the_version(handle: Callable[..., ServedHandle], folder: Path, tmp_path: Path) -> None:
    without = handle(tokenizer=None).version()
    named = handle().version()
    assert len({without, named, handle(send="tokens").version(), handle(max_length=7).version()}) == 4
    assert handle(most_forced_tokens=7).version() == named
    assert handle(tokenizer=None, most_forced_tokens=7, send="messages").version() == without
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert handle(tokenizer={"folder": str(copy)}).version() == named
    (copy / "chat_template.jinja").write_text("another")
    assert handle(tokenizer={"folder": str(copy)}).version() != named


def test_a_configuration_without_these_keys_keeps_its_version(handle: Callable[..., ServedHandle]) -> None:
    config = handle(tokenizer=None, pin="a")
    asked = {"headers": {}, "headers_env": {}, "extra_body": {}}
    assert config.version() == stable_hash({"content": stable_hash({"pin": "a"}), "asked": asked, "engine": ENGINE_VERSION})


def test_a_cue_is_continued_and_not_repeated(ask: Ask, stub: Stub) -> None:
    """llama.cpp repeats the message that it continues. vLLM continues it where it is told to."""
    stub.change(answers={"France": "The capital\nis Paris.\nMore"})
    turns = (Message(Role.USER, "France?"), Message(Role.ASSISTANT, "The capital\nis"))
    request = Request(request_id="c", prompt="shown", messages=turns, generation=GenerationSettings(max_tokens=16, stop_sequences=("\nM",)))
    assert ask(request, tokenizer=None)["c"].text == (" Paris.",)
    repeated = {"text": "The capital\nis Paris.\nMore", "finish_reason": "stop"}
    assert TextReader(stop_sequences=["\n"], cue="The capital\nis")(Choice.of(repeated)).text == " Paris.", (
        "no stop sequence is looked for in the cue"
    )
    assert "continue_final_message" not in stub.requests()[-1]["body"]
    ask(request, tokenizer=None, continue_cue=True)
    sent = stub.requests()[-1]["body"]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)


@pytest.mark.parametrize(
    ("text", "problem"), [("Berlin", "it is no JSON"), ('{"city": 1}', "at $.city: 1 is not of type"), ('{"city": "Berlin"}', None)]
)
def test_a_text_that_does_not_match_its_schema_is_an_error(ask: Ask, stub: Stub, text: str, problem: str | None) -> None:
    stub.change(answers={"France": text})
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    settings = GenerationSettings(max_tokens=16, grammar=Grammar(kind="json_schema", value=json.dumps(schema)))
    found = ask(Request(request_id="g", prompt="France?", generation=settings), tokenizer=None)["g"]
    assert stub.requests()[-1]["body"]["json_schema"] == schema
    if problem is None:
        assert found.text == (text,)
    else:
        assert (found.error or "").startswith("SchemaError: the text does not match the JSON schema")
        assert problem in (found.error or "")
        assert found.retryable
