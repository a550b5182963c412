"""Vision-language models: images change what is predicted, exactly as a plain forward pass of the processor's own inputs says."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vision import SAVERS, png
from transformers import AutoModelForImageTextToText, AutoProcessor

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.vision import ProcessorCodec, read_image
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.models.transformers.weights.loading import quiet
from eval_dagster.records import GenerationSettings, Message, ModelResponse, Request, Role

OpenTiny = Callable[..., TransformersHandle]
MARKS = {"idefics3": "<image>", "gemma3": "<start_of_image>"}
CHOICES = (" a", " the hill", " b", " a")
GREEDY = GenerationSettings(max_tokens=6)

kinds = pytest.mark.parametrize("kind", sorted(SAVERS))


def respond(model: LoadedModel, *requests: Request) -> list[ModelResponse]:
    answers = {request.request_id: response for request, response in model.respond(requests)}
    return [answers[request.request_id] for request in requests]


def image_request(kind: str, *images: bytes, name: str = "image", **fields: Any) -> Request:
    """Images amid a text; ends in white space, which moves to the choices."""
    prompt = "the cat " + " and ".join([MARKS[kind]] * len(images)) + " sat on "
    return Request(request_id=name, prompt=prompt, images=images, **fields)


def plain(folder: Path, request: Request, text: str) -> tuple[list[int], torch.Tensor]:
    """Tokens of a text with the request's images, and the logits after each of them."""
    with quiet():
        processor = AutoProcessor.from_pretrained(folder, backend="pil")
        network = AutoModelForImageTextToText.from_pretrained(folder).eval()
        inputs = processor(text=[text], images=[read_image(image, 0) for image in request.images], return_tensors="pt")
        with torch.no_grad():
            return inputs["input_ids"][0].tolist(), network(**inputs).logits[0]


@pytest.mark.long
@kinds
@pytest.mark.parametrize("images", [(png("red"),), (png("red"), png("blue", (9, 30)))])
def test_scores_equal_a_plain_forward_pass(
    kind: str, images: Sequence[bytes], vision_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    request = image_request(kind, *images, choices=CHOICES, use_logits=True)
    (response,) = respond(open_tiny(folder=vision_folders[kind]).load(), request)
    assert response.error is None
    context = request.prompt.rstrip()
    head, _ = plain(vision_folders[kind], request, context)
    assert list(response.input_tokens) == head
    for index, choice in enumerate(CHOICES):
        tokens, logits = plain(vision_folders[kind], request, f"{context} {choice}")
        tail = tokens[len(head) :]
        rows = logits[len(head) - 1 : -1]
        expected = torch.log_softmax(rows, -1)[range(len(tail)), tail]
        assert list(response.output_tokens[index]) == tail
        assert response.token_logprobs[index] == pytest.approx(expected.tolist(), abs=1e-5)
        assert response.logprobs[index] == pytest.approx(float(expected.sum()), abs=1e-5)
        assert response.logits is not None
        assert response.logits[index] == pytest.approx(rows[range(len(tail)), tail].tolist(), abs=1e-5)
    assert (response.input, response.padded_tokens_count) == (request.prompt, 0)


@kinds
def test_a_text_equals_a_plain_loop(kind: str, vision_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    request = image_request(kind, png("red"), generation=GREEDY, use_logits=True)
    (response,) = respond(open_tiny(folder=vision_folders[kind]).load(), request)
    head, logits = plain(vision_folders[kind], request, request.prompt)
    assert list(response.input_tokens) == head
    (tokens,), (kept,) = response.output_tokens, response.logits or ()
    assert tokens[0] == int(logits[-1].argmax())
    assert kept[0] == pytest.approx(float(logits[-1].max()), abs=1e-5)
    with quiet():
        network = AutoModelForImageTextToText.from_pretrained(vision_folders[kind]).eval()
        processor = AutoProcessor.from_pretrained(vision_folders[kind], backend="pil")
        inputs = processor(text=[request.prompt], images=[read_image(image, 0) for image in request.images], return_tensors="pt")
        expected = network.generate(**inputs, max_new_tokens=6, do_sample=False)[0, len(head) :].tolist()
    assert list(tokens) == expected


@pytest.mark.long
@kinds
def test_another_image_changes_the_answer_and_the_same_one_does_not(
    kind: str, vision_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    model = open_tiny(folder=vision_folders[kind]).load()
    settings = {"choices": CHOICES, "use_logits": True}
    red, blue, again = respond(
        model,
        image_request(kind, png("red"), name="red", **settings),
        image_request(kind, png("blue"), name="blue", **settings),
        image_request(kind, png("red"), name="again", **settings),
    )
    assert red.input_tokens == blue.input_tokens
    assert all(abs(one - other) > 1e-4 for one, other in zip(red.logprobs, blue.logprobs, strict=True))
    assert red.logits != blue.logits
    assert (red.logprobs, red.logits) == (again.logprobs, again.logits)
    sampled = GenerationSettings(max_tokens=6, temperature=1.0, num_samples=3)
    one, same, other = (respond(model, image_request(kind, png(colour), generation=sampled))[0] for colour in ("red", "red", "blue"))
    assert len(set(one.text)) == 3
    assert one.text == same.text != other.text


@kinds
def test_requests_of_text_alone_work_beside_those_with_images(kind: str, vision_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    model = open_tiny(folder=vision_folders[kind]).load()
    text = Request(request_id="text", prompt="the cat", choices=CHOICES)
    image = image_request(kind, png("red"), choices=CHOICES)
    both = respond(model, image, text, Request(request_id="generated", prompt="a dog", generation=GREEDY))
    assert [response.error for response in both] == [None] * 3
    assert both[1].logprobs == pytest.approx(respond(model, text)[0].logprobs, abs=1e-5)
    with quiet(), torch.no_grad():
        tokens = torch.tensor([[*both[1].input_tokens, *both[1].output_tokens[0]]])
        rows = AutoModelForImageTextToText.from_pretrained(vision_folders[kind]).eval()(input_ids=tokens).logits[0]
    scored = torch.log_softmax(rows[len(both[1].input_tokens) - 1 : -1], -1)
    assert both[1].logprobs[0] == pytest.approx(float(scored[range(len(scored)), both[1].output_tokens[0]].sum()), abs=1e-5)


def test_an_unconditioned_prompt_has_no_images(vision_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    model = open_tiny(folder=vision_folders["idefics3"]).load()
    plain_text = Request(request_id="text", prompt="Answer:", choices=CHOICES)
    image, text = respond(model, image_request("idefics3", png("red"), choices=CHOICES, unconditioned_prompt="Answer:"), plain_text)
    assert image.unconditioned_logprobs == pytest.approx(text.logprobs, abs=1e-5)


def test_what_has_a_value_a_token_is_as_long_as_the_input(vision_folders: dict[str, Path]) -> None:
    with quiet():
        processor = AutoProcessor.from_pretrained(vision_folders["gemma3"], backend="pil")
    codec = ProcessorCodec(processor, max_length=64, dtype=torch.bfloat16)
    _, spans = codec.encode_choices(image_request("gemma3", png("red"), choices=CHOICES))
    for span in spans:
        assert set(span.tensors) >= {"pixel_values", "token_type_ids"}
        assert span.tensors["token_type_ids"].shape == (1, len(span.input))
        assert (span.tensors["pixel_values"].shape, span.tensors["pixel_values"].dtype) == ((1, 3, 16, 16), torch.bfloat16)


@kinds
def test_marks_and_chat_templates(kind: str, vision_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    handle = open_tiny(folder=vision_folders[kind])
    mark = MARKS[kind]
    assert handle.image_mark() == mark
    turns = [Message(Role.USER, "Hi"), Message(Role.ASSISTANT, "Yes?"), Message(Role.USER, "What is this?")]
    assert handle.apply_chat_template(turns[:1]) == "<|user|>Hi</s><|assistant|>"
    assert (
        handle.apply_chat_template(turns, images=2)
        == f"<|user|>Hi</s><|assistant|>Yes?</s><|user|>{mark}{mark}What is this?</s><|assistant|>"
    )
    cued = [*turns, Message(Role.ASSISTANT, "It is")]
    prompt = handle.apply_chat_template(cued, images=1)
    assert prompt.endswith(f"<|user|>{mark}What is this?</s><|assistant|>It is")
    request = Request(request_id="r", prompt=f"<s>{mark}", images=(png("red"),), choices=(" a",), has_special_tokens=True)
    (response,) = respond(handle.load(), request)
    assert list(response.input_tokens).count(0) == 1
    with pytest.raises(ModelError, match="Model 'tiny': no user turn among the messages that could hold the 1 images"):
        handle.apply_chat_template([Message(Role.SYSTEM, "Hi")], images=1)


BAD = [
    ({"images": (b"no image",)}, "ModelError: Image 0 (from 0) of the request cannot be read (UnidentifiedImageError"),
    ({"prompt": "a <image> <image>"}, "ModelError: The prompt holds 2 marks '<image>' and the request 1 images"),
    ({"choices": (" cat" * 60,)}, "PromptTooLongError: prompt, images and choice need "),
    (
        {"prompt": "a <image>" + " cat" * 60, "choices": None, "generation": GenerationSettings(max_tokens=60)},
        "PromptTooLongError: prompt, images and one token after them need ",
    ),
    ({"choices": ()}, "ModelError: The request has an empty list of choices"),
    ({"choices": None, "perplexity": True}, "ModelError: The request asks for the log-probability of a text with 1 images"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_what_cannot_be_answered_is_an_error_of_its_request(
    fields: dict[str, Any], message: str, vision_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    good = image_request("idefics3", png("red"), name="good", choices=CHOICES)
    values = {"prompt": "a <image>", "images": (png("red"),), "choices": CHOICES, **fields}
    bad, beside = respond(open_tiny(folder=vision_folders["idefics3"], truncate=True).load(), Request(request_id="bad", **values), good)
    assert bad.error is not None
    assert bad.error.startswith(message)
    assert not bad.retryable
    assert beside.error is None


@pytest.mark.parametrize("fields", [{"choices": CHOICES}, {"generation": GREEDY}])
def test_a_model_of_text_alone_takes_no_images(fields: dict[str, Any], open_tiny: OpenTiny) -> None:
    handle = open_tiny()
    request, text = image_request("idefics3", png("red"), **fields), Request(request_id="text", prompt="the cat", **fields)
    refused, answered = respond(handle.load(), request, text)
    assert refused.error is not None
    assert refused.error.startswith("ModelError: Model 'tiny' takes no images")
    assert (refused.retryable, answered.error) == (False, None)
    for ask in (handle.image_mark, lambda: handle.apply_chat_template([Message(Role.USER, "Hi")], images=1)):
        with pytest.raises(ModelError, match="Model 'tiny' takes no images"):
            ask()


def test_a_missing_package_is_named_and_can_come_to_be_there(
    vision_folders: dict[str, Path], open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_tiny(folder=vision_folders["idefics3"]).load()
    request = image_request("idefics3", png("red"), choices=CHOICES)
    monkeypatch.setitem(sys.modules, "PIL", None)
    (response,) = respond(model, request)
    assert response.error is not None
    assert "pip install pillow" in response.error
    assert response.retryable
    monkeypatch.undo()
    assert respond(model, request)[0].error is None


def test_the_processor_is_part_of_both_versions(tmp_path: Path, vision_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    handle = open_tiny(folder=vision_folders["idefics3"])
    folder = tmp_path / "m"
    shutil.copytree(vision_folders["idefics3"], folder)
    assert (open_tiny(folder=folder).version(), open_tiny(folder=folder).template_version()) == (
        handle.version(),
        handle.template_version(),
    )
    settings = json.loads((folder / "processor_config.json").read_text())
    settings["image_seq_len"] = 5
    (folder / "processor_config.json").write_text(json.dumps(settings))
    assert open_tiny(folder=folder).version() != handle.version()
    assert open_tiny(folder=folder).template_version() != handle.template_version()
