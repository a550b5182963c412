"""Steps that are recorded once and replayed: the same texts, recorded few times, given up where that fails."""

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import op_recorder
import pytest
import tiny_architectures
import torch
from test_models_decoding import KINDS, PROMPTS, TOKENIZER, engine_of, generated, network_of, requests_with, respond

from eval_dagster.models.transformers.generation import decoding, fastest_steps, graph_network, row_network
from eval_dagster.models.transformers.generation import engine as generation
from eval_dagster.models.transformers.generation.engine import GenerationEngine
from eval_dagster.models.transformers.generation.graph_network import GraphNetwork, cuda_graph, recorded_rows, recorder_for
from eval_dagster.models.transformers.generation.row_check import why_not
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.architecture import layer_windows
from eval_dagster.models.usage import GenerationUsage

RECORDED = [kind for kind in KINDS if kind != "bloom"]
"""Kinds of networks whose steps can be recorded. Bloom makes its own mask."""

Replay = Callable[[], torch.Tensor]


class Recordings:
    """Records on the CPU, and counts."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.replays = 0
        self.fault: Callable[[int], Exception | None] = lambda count: None

    def record(self, compute: Replay, device: str) -> Replay:
        fault = self.fault(len(self.rows))
        self.rows.append(-1)
        if fault is not None:
            raise fault
        replay = op_recorder.record(compute, device)
        self.rows[-1] = len(replay())

        def counted() -> torch.Tensor:
            self.replays += 1
            return replay()

        return counted


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Recordings:
    """Lets engines of the CPU record steps, whether or not that is faster."""
    found = Recordings()
    monkeypatch.setattr(generation, "recorder_for", lambda device: found.record)
    monkeypatch.setattr(fastest_steps, "_GAIN", 0.0)
    return found


@pytest.fixture
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets buffers grow by 16 tokens."""
    monkeypatch.setattr(decoding, "RESERVE", 16)
    monkeypatch.setattr(graph_network, "AHEAD", 16)


def engine_that_records(recordings: Recordings, kind: str = "llama", *, rows: int = 3, **settings: Any) -> GenerationEngine:
    """An engine that has chosen its way. What was counted is forgotten."""
    engine = engine_of(network_of(kind, **settings), rows=rows)
    assert engine._can_decode()
    recordings.rows.clear()
    recordings.replays = 0
    return engine


def assert_texts_are_right(engine: GenerationEngine, prompts: Sequence[str] = PROMPTS, count: int = 20, **settings: Any) -> None:
    """Have an engine write texts, and compare them with those of `generate`."""
    responses = respond(engine, requests_with(prompts, max_tokens=count, **settings))
    assert [response.error for response in responses] == [None] * len(prompts)
    assert [list(response.output_tokens[0]) for response in responses] == [generated(engine._network, text, count) for text in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_those_of_generate(kind: str, recordings: Recordings) -> None:
    engine = engine_that_records(recordings, kind)
    is_recorded = "; steps are recorded and replayed (steps of 16 rows a second: " in engine.usage.reason
    assert is_recorded is (kind in RECORDED), engine.usage.reason
    assert_texts_are_right(engine)
    assert bool(recordings.replays) is is_recorded
    assert engine.usage.path == "rows"


@pytest.mark.usefixtures("_little_room")
def test_steps_are_recorded_anew_only_where_rows_or_memory_change(recordings: Recordings) -> None:
    engine = engine_that_records(recordings, rows=7)
    assert_texts_are_right(engine, count=60)
    # New buffers behind each 16 tokens.
    assert recordings.rows == [7, 7, 7, 7]
    assert recordings.replays == 59


def test_few_rows_that_are_left_are_recorded_anew(recordings: Recordings) -> None:
    engine = engine_that_records(recordings, rows=21)
    respond(engine, requests_with(stop_sequences=("e",), temperature=1.0, num_samples=3, max_tokens=60))
    assert recordings.rows == [21, 6]


def test_fewer_rows_are_recorded_where_a_quarter_is_left() -> None:
    assert [recorded_rows(count, 256) for count in (256, 65, 64, 17, 16, 5, 4, 2, 1)] == [256, 256, 64, 64, 16, 16, 4, 4, 1]
    assert [recorded_rows(count, 7) for count in (7, 3, 2, 1)] == [7, 7, 2, 1]
    for most in range(1, 40):
        for count in range(1, most + 1):
            assert count <= recorded_rows(count, most) <= most


def test_samples_do_not_depend_on_the_recording(recordings: Recordings) -> None:
    how = {"temperature": 0.7, "num_samples": 2, "stop_sequences": ("e",), "seed": 5}
    mine = respond(engine_that_records(recordings), requests_with(**how))
    assert recordings.replays
    theirs = engine_of(network_of("llama"))
    theirs._is_checked, theirs.usage.path = True, "rows"
    assert [response.text for response in mine] == [response.text for response in respond(theirs, requests_with(**how))]


def test_work_is_counted_as_without_recordings(recordings: Recordings) -> None:
    engine, plain = engine_that_records(recordings), engine_of(network_of("llama"))
    plain._is_checked, plain.usage.path = True, "rows"
    for each in (engine, plain):
        respond(each, requests_with())
    assert recordings.replays
    assert [getattr(engine.usage, name) for name in ("passes", "tokens_decoded", "prompt_tokens_computed")] == [
        getattr(plain.usage, name) for name in ("passes", "tokens_decoded", "prompt_tokens_computed")
    ]


@pytest.mark.usefixtures("_little_room")
def test_a_recording_that_fails_is_done_without(recordings: Recordings, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_that_records(recordings, rows=7)
    recordings.fault = lambda count: RuntimeError("CUDA error: operation not permitted\nmore") if count else None
    with caplog.at_level(logging.WARNING, graph_network.__name__):
        assert_texts_are_right(engine, count=60)
    assert len(recordings.rows) == 2, "it is not tried again"
    assert engine.usage.reason.endswith("; no step is recorded from here on: RuntimeError: CUDA error: operation not permitted")
    (message,) = [record.getMessage() for record in caplog.records if record.name == graph_network.__name__]
    assert "computed one by one from here on: they cannot be recorded (RuntimeError: CUDA error: operation not permitted)" in message


@pytest.mark.usefixtures("_little_room")
def test_without_memory_for_a_recording_steps_are_computed(recordings: Recordings, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_that_records(recordings, rows=7)
    recordings.fault = lambda count: None if count else torch.OutOfMemoryError("CUDA out of memory")
    assert_texts_are_right(engine, count=40)
    assert recordings.rows == [-1, 7, 7], "it is tried again with the next buffers"
    assert not caplog.records


def test_what_is_no_number_in_one_row_does_not_spoil_the_next(recordings: Recordings) -> None:
    """The mask makes nothing of it in the sums of attention, since no product with it is a number."""
    network = network_of("llama")
    graph = GraphNetwork(network, GenerationUsage(), device="cpu", windows={"full_attention": None}, record=recordings.record)
    graph.clear(rows=2, longest=8)
    for _ in range(2):
        graph.prefill([5, 6, 7], 3)
        graph.join()
    graph.step([8, 8])
    with torch.no_grad():
        kept = network.model.embed_tokens.weight[9].clone()
        network.model.embed_tokens.weight[9] = torch.nan
    assert graph.step([8, 9]).isnan().any(dim=-1).tolist() == [False, True]
    with torch.no_grad():
        network.model.embed_tokens.weight[9] = kept
    for row in (1, 0):
        graph.leave(row)
    for _ in range(2):
        graph.prefill([5, 6, 7], 3)
        graph.join()
    right = graph.step([8, 8])
    assert graph.problem is None
    assert right.isfinite().all()


def test_the_masks_of_windows_are_checked_beyond_them(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "layer_windows", lambda config: {"full_attention": 60})
    reason = engine_that_records(recordings).usage.reason
    assert "; steps are not recorded: beyond its window, logits are off by" in reason
    monkeypatch.setattr(fastest_steps, "_LONGEST_WINDOW", 59)
    reason = engine_that_records(recordings).usage.reason
    assert reason.endswith("; steps are not recorded: its window of 60 tokens is too long to be checked")
    monkeypatch.setattr(generation, "layer_windows", lambda config: None)
    assert engine_that_records(recordings).usage.reason.endswith("; steps are not recorded: it has layers whose mask is not known")


def test_no_more_rows_are_measured_than_memory_holds(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowNetwork, "rows_in_memory", lambda self, tokens: 5)
    assert "steps are recorded and replayed" in engine_that_records(recordings).usage.reason


def test_slower_recordings_are_not_used(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest_steps, "_GAIN", 1e9)
    engine = engine_that_records(recordings)
    assert "; steps are not recorded (steps of 16 rows a second: " in engine.usage.reason
    assert_texts_are_right(engine)
    assert not recordings.replays


def test_a_measurement_that_fails_is_done_without(recordings: Recordings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fastest_steps, "_rate", fail)
    engine = engine_that_records(recordings)
    assert engine.usage.reason.endswith("; steps are not recorded: measuring failed (OutOfMemoryError)")
    assert_texts_are_right(engine)
    assert not recordings.replays


def test_a_network_that_reads_the_length_of_its_cache_is_not_recorded(recordings: Recordings) -> None:
    """A recording repeats the number that Python has read."""
    network = network_of("llama")
    forward = network.forward

    def counting(position_ids: Any = None, past_key_values: Any = None, **others: Any) -> Any:
        if position_ids is not None and position_ids.shape[1] == 1:
            position_ids = position_ids - position_ids.max() + past_key_values.get_seq_length()
        return forward(position_ids=position_ids, past_key_values=past_key_values, **others)

    network.forward = counting
    windows = layer_windows(network.config)
    assert windows is not None
    tokens = TOKENIZER.encode(PROMPTS[1])
    rows = row_network.RowNetwork(network, GenerationUsage(), device="cpu")
    assert why_not(rows, network, tokens=tokens, device="cpu") is None
    graph = GraphNetwork(network, GenerationUsage(), device="cpu", windows=windows, record=op_recorder.record)
    assert "its logits are then off by" in (why_not(graph, network, tokens=tokens, device="cpu") or "")


def test_a_network_that_reads_a_tensor_cannot_be_recorded() -> None:
    network = network_of("llama")
    forward = network.forward

    def reading(position_ids: Any = None, **others: Any) -> Any:
        assert position_ids.max() < 1000
        return forward(position_ids=position_ids, **others)

    windows = layer_windows(network.config)
    assert windows is not None
    graph = GraphNetwork(network, GenerationUsage(), device="cpu", windows=windows, record=op_recorder.record)
    network.forward = reading
    graph.clear(longest=3)
    graph.prefill([5, 6, 7], 2)
    graph.join()
    assert graph.step([8]).shape == (1, len(TOKENIZER))
    assert graph.problem == "RuntimeError: CUDA error: operation not permitted when stream is capturing"


def test_weights_do_not_outlive_the_model(recordings: Recordings) -> None:
    engine = engine_that_records(recordings)
    assert_texts_are_right(engine)
    assert recordings.replays
    network = weakref.ref(engine._network)
    gc.disable()
    try:
        del engine
        assert network() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_steps_are_where_the_network_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's `meta` device refuses tensors of the CPU, as a GPU does."""
    monkeypatch.setattr(row_network, "free_memory", lambda device: 2**30)
    monkeypatch.setattr(graph_network, "AHEAD", 4)
    network = tiny_architectures.network(name).to("meta")
    windows = layer_windows(network.config)
    assert windows is not None

    def record(compute: Replay, device: str) -> Replay:
        assert device == "meta"
        return compute

    graph = GraphNetwork(network, GenerationUsage(), device="meta", windows=windows, record=record)
    graph.clear(rows=2, longest=20, ahead=4)
    with torch.inference_mode():
        for length in (4, 3):
            ids = torch.zeros((1, length), dtype=torch.long, device="meta")
            graph._prompt.cut(0)
            graph._compute(graph._prompt, ids, torch.arange(length, device="meta")[None], torch.ones((1, 1, length, length), device="meta"))
            graph._prompt.advance(length)
            graph.join()
    for _ in range(12):
        assert graph.step([4, 5]).shape == (2, tiny_architectures.VOCABULARY)
    graph.leave(0)
    assert graph.step([4]).device.type == "meta"
    assert graph.problem is None
    assert graph._batch.moves > 1


def test_only_cuda_records() -> None:
    assert [recorder_for(device) for device in ("cuda", "cuda:1", "cpu", "mps")] == [cuda_graph, cuda_graph, None, None]
