"""Tools of a model in this process: its own chat template shows them, and its text has the calls."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from running_stages import run_all
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eval_dagster.config.models import TransformersModel
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.encoding.tokenization import Codec, EncodedPrompt
from eval_dagster.models.transformers.generation.jobs import Pending, Sample, TextPlan
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import ChatTemplateFormatter
from eval_dagster.records import GenerationSettings, Message, Request, Role, ToolCall, Turn

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
WITH_TOOLS = (
    "{% if tools %}Tools: {% for tool in tools %}{{ tool.function | tojson }};{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}{% if m.role == 'tool' %} {{ m.name }} {{ m.tool_call_id }}{% endif %}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }} {{ call.function.arguments.city }}</tool_call>{% endfor %}"
    ";{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TASK = '''
    from typing import Literal

    import eval_dagster as ed


    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        return f"It rains in {city}."


    class Weather(ed.EpisodeTask):
        NAME = "Weather"
        DATASET_PATH = "weather"
        SAMPLE_SPLIT = "test"
        METRICS = (ed.ExactMatch,)
        TOOLS = (weather,)

        def _load_dataset(self, subject):
            return {"test": [{"n": 1}, {"n": 2}]}

        def _get_instruction_text(self, item):
            return f"What is the weather? {item['n']}"

        def _get_ground_truth(self, item):
            return ""

        async def episode(self, sample, roles, tools):
            messages = list(sample.messages)
            answer = await roles.subject.ask(messages, tools=tools.definitions, tool_choice="CHOICE", max_tokens=TOKENS)
            messages += [answer.message, *[await tools.call(each) for each in answer.tool_calls]]
            return await roles.subject.ask(messages, tools=tools.definitions, max_tokens=4)
'''


def save_model(folder: Path, template: str) -> None:
    """Save a tiny model with random weights, which reads bytes and has special tokens that mark calls."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", "[TOOL_CALLS]", *sorted(alphabet)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["[TOOL_CALLS]"],
        chat_template=template,
    ).save_pretrained(folder)
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=len(vocabulary), max_position_embeddings=2048, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)


def formatter_of(folder: Path, template: str, home: Path) -> ChatTemplateFormatter:
    save_model(folder, template)
    section = {"backend": "transformers", "device": "cpu", "source": {"folder": str(folder)}}
    return ChatTemplateFormatter(open_model("tiny", TransformersModel.model_validate(section), folder=home, home=home))


DEFINITION = json.dumps({"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}})
CONVERSATION = [
    Message(Role.USER, "Weather?"),
    Turn(Role.ASSISTANT, "", (ToolCall(call_id="c1", name="weather", arguments_text='{"city": "Oslo"}'),)),
    Turn(Role.TOOL, "It rains.", (), "c1"),
]


def test_the_template_gets_tools_calls_and_results(tmp_path: Path) -> None:
    formatter = formatter_of(tmp_path / "m", WITH_TOOLS, tmp_path)
    assert formatter.takes_tools
    assert formatter.offering([DEFINITION]).format(CONVERSATION) == (
        'Tools: {"name": "weather", "parameters": {"type": "object", "properties": {}}};'
        "<user>Weather?;<assistant><tool_call>weather Oslo</tool_call>;<tool weather c1>It rains.;<assistant>"
    )
    assert formatter.format([Message(Role.USER, "Weather?")]) == "<user>Weather?;<assistant>"


def test_a_call_that_cannot_be_read_is_told_as_it_was_written(tmp_path: Path) -> None:
    broken = Turn(Role.ASSISTANT, "I look.", (ToolCall(call_id="c1", name="", arguments_text='{"city": "Os'),))
    told = formatter_of(tmp_path / "m", WITH_TOOLS, tmp_path).format([CONVERSATION[0], broken, Turn(Role.TOOL, "Error: no tool", (), "c1")])
    assert told == '<user>Weather?;<assistant>I look.\n{"city": "Os;<user>Error: no tool;<assistant>'


def test_a_template_that_takes_one_call_at_a_time_gets_them_one_by_one(tmp_path: Path) -> None:
    strict = (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one call') }}{% endif %}{% endfor %}"
    )
    formatter = formatter_of(tmp_path / "m", strict + WITH_TOOLS, tmp_path)
    both = [ToolCall(call_id=name, name="weather", arguments_text=f'{{"city": "{name}"}}') for name in ("Oslo", "Rome")]
    results = [Turn(Role.TOOL, f"It rains in {call.call_id}.", (), call.call_id) for call in both]
    assert formatter.format([CONVERSATION[0], Turn(Role.ASSISTANT, "I look.", tuple(both)), *results]) == (
        "<user>Weather?;<assistant>I look.<tool_call>weather Oslo</tool_call>;<tool weather Oslo>It rains in Oslo.;"
        "<assistant><tool_call>weather Rome</tool_call>;<tool weather Rome>It rains in Rome.;<assistant>"
    )


def test_a_template_without_tools_is_told_apart(tmp_path: Path) -> None:
    assert not formatter_of(tmp_path / "m", PLAIN, tmp_path).takes_tools


def test_special_tokens_are_kept_where_they_mark_calls(tmp_path: Path) -> None:
    save_model(tmp_path / "m", WITH_TOOLS)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "m")
    codec = Codec(tokenizer, max_length=100, truncate=False)
    row = tokenizer.encode('[TOOL_CALLS]weather{"city": "Oslo"}</s>', add_special_tokens=False)
    plan = TextPlan(settings=GenerationSettings(), ends=(1,))
    for tools, text in (((DEFINITION,), '[TOOL_CALLS]weather{"city": "Oslo"}'), ((), 'weather{"city": "Oslo"}')):
        pending = Pending(Request(request_id="", prompt="", tools=tools), EncodedPrompt(text="", tokens=(), truncated=0))
        assert plan.text(codec, Sample(owner=pending, index=0), row, (), None).text == text


Run = Callable[..., tuple[Project, str]]


@pytest.fixture
def run(open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path) -> Run:
    def run_it(template: str, choice: str, tokens: int = 200) -> tuple[Project, str]:
        save_model(tmp_path / "m", template)
        write("weather.py", TASK.replace("CHOICE", choice).replace("TOKENS", str(tokens)))
        project = open_project("""
            models:
              own: {backend: transformers, source: {folder: m}, device: cpu, prompt_format: chat}
            evals:
              weather: {task: "weather.py:Weather"}
        """)
        results, failures = run_all(project, [("weather", "own")])
        publish(project.lake)
        counts = dict(results["model_outputs", "weather"].file.info.counts) if not failures else {}
        assert not failures or "model_outputs" in str(failures[0]), failures
        return project, f"{counts.get('errors')} errors, {counts.get('cached')} cached"

    return run_it


@pytest.mark.long
@pytest.mark.parametrize("choice", ["required", "weather"])
def test_a_model_of_this_process_calls_tools(run: Run, choice: str) -> None:
    """Its weights are random, so a grammar makes it call: a valid call of the offered tool, whose result is in the next prompt."""
    project, counts = run(WITH_TOOLS, choice)
    assert counts.startswith("0 errors")
    episodes = read_rows(project.lake, "select status, n_turns, n_tool_calls, error from episodes")
    assert [(row["status"], row["n_turns"], row["n_tool_calls"]) for row in episodes] == [("done", 2, 1)] * 2
    calls = read_rows(project.lake, "select name, arguments, result, error from tool_calls")
    assert len(calls) == 2
    for call in calls:
        city = json.loads(call["arguments"])["city"]
        assert (call["name"], call["result"], call["error"]) == ("weather", f"It rains in {city}.", None)
    again, _ = run(WITH_TOOLS, choice)
    assert read_rows(again.lake, "select name, arguments, result, error from tool_calls") == calls


@pytest.mark.long
def test_a_model_is_not_told_of_tools_where_it_may_call_none(run: Run) -> None:
    project, _ = run(WITH_TOOLS, "none")
    assert not read_rows(project.lake, "select * from tool_calls")
    turns = read_rows(project.lake, "select prompt_tokens from turns order by sample_id, number")
    assert turns[0]["prompt_tokens"] < 60 < turns[1]["prompt_tokens"], "the first prompt has no definition of a tool, the second has"


@pytest.mark.long
def test_a_demanded_call_that_is_cut_is_an_error(run: Run) -> None:
    project, _ = run(WITH_TOOLS, "required", tokens=5)
    errors = [row["error"] for row in read_rows(project.lake, "select error from episodes")]
    assert all("ToolChoiceError: the answer has no whole call, which tool_choice demands" in error for error in errors)


@pytest.mark.long
def test_a_demanded_call_is_found_where_the_template_opens_a_reasoning(run: Run) -> None:
    project, _ = run(WITH_TOOLS.replace("<assistant>{% endif %}", "<assistant><think>{% endif %}"), "required")
    assert [row["n_tool_calls"] for row in read_rows(project.lake, "select n_tool_calls from episodes")] == [1, 1]


@pytest.mark.long
def test_an_unknown_choice_is_an_error_that_names_the_tools(run: Run) -> None:
    project, _ = run(WITH_TOOLS, "wether")
    errors = {row["error"] for row in read_rows(project.lake, "select error from episodes")}
    assert len(errors) == 1
    assert "tool_choice is 'wether'; expected required, none or one of the tools: weather" in errors.pop()


@pytest.mark.long
def test_a_template_without_tools_is_refused(run: Run) -> None:
    project, _ = run(PLAIN, "required")
    errors = {row["error"] for row in read_rows(project.lake, "select error from episodes")}
    assert len(errors) == 1
    assert "this model cannot be told of tools; expected prompt_format: chat with a chat template that shows tools" in errors.pop()
