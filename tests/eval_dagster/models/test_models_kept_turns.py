"""Keys and values kept between turns: tokens that were read or written once are not computed again, and the texts are the same."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from test_models_decoding import OTHERS, PROMPTS, TOKENIZER, computed, engine_of, failing, generated, network_of, nodes, respond

from eval_dagster.models.transformers.generation import row_network, turn_store
from eval_dagster.models.transformers.generation.engine import GenerationEngine
from eval_dagster.models.transformers.generation.turn_store import TurnStore
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import GenerationSettings, Request

SYSTEM = "one two three four five six seven\nred green blue, yes no\n"
USER = ("the cat sat on the mat", "a dog ran over the hill", "one two", "yes no red blue green", "a cat", "the hill", "seven six", "blue")
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values of 2 layers, 2 heads, 8 features and 4 bytes."""


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Conversations that are over."""

    texts: list[list[tuple[int, ...]]]
    """The tokens of the answers, by turn and conversation."""
    nodes: int
    """Distinct prefixes of all prompts with their answers, without the last token of each, which no network reads."""
    computed: int
    """Tokens that went through the network."""


def talk(engine: Any, *, conversations: int = 8, turns: int = 4, max_tokens: int = 12) -> Talk:
    """Conversations with a scripted user; all of them ask at once, turn by turn."""
    usage = engine.usage()[1] if isinstance(engine, LoadedModel) else engine.usage
    before, how = usage.computed(), GenerationSettings(max_tokens=max_tokens)
    histories, texts, sequences = [SYSTEM] * conversations, [], []
    for turn in range(turns):
        histories = [f"{text}\nuser {place}: {USER[(place + turn) % len(USER)]}\n" for place, text in enumerate(histories)]
        asked = [Request(request_id=f"{turn}-{place}", prompt=text, generation=how) for place, text in enumerate(histories)]
        responses = respond(engine, asked)
        assert [response.error for response in responses] == [None] * conversations
        texts.append([response.output_tokens[0] for response in responses])
        sequences += [(*response.input_tokens, *response.output_tokens[0][:-1]) for response in responses]
        histories = [text + response.text[0] for text, response in zip(histories, responses, strict=True)]
    usage = engine.usage()[1] if isinstance(engine, LoadedModel) else engine.usage
    return Talk(texts=texts, nodes=nodes(sequences), computed=usage.computed() - before)


def ask(engine: GenerationEngine, *prompts: str, max_tokens: int = 12) -> list[tuple[int, ...]]:
    how = GenerationSettings(max_tokens=max_tokens)
    answers = respond(engine, [Request(request_id=str(place), prompt=text, generation=how) for place, text in enumerate(prompts)])
    return [answer.output_tokens[0] for answer in answers]


def checked(kind: str = "llama") -> GenerationEngine:
    """An engine whose checks are over."""
    engine = engine_of(network_of(kind))
    with engine.keeping():
        ask(engine, "a dog", max_tokens=1)
    return engine


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text", "gpt2", "bloom"])
def test_no_token_is_computed_again_and_the_texts_are_the_same(kind: str) -> None:
    """The same holds for windows, whose rows hold all tokens, and for positions in the attention."""
    engine = checked(kind)
    without = talk(engine)
    with engine.keeping():
        kept = talk(engine)
    assert engine.usage.reason.endswith("; keys and values are kept between turns")
    assert kept.texts == without.texts
    assert len({text for turn in kept.texts for text in turn}) > 10, "the answers vary"
    assert kept.computed <= 1.05 * kept.nodes
    assert without.computed > 1.5 * without.nodes, "the turns share much"


def test_answers_of_one_token_are_kept_too() -> None:
    engine = checked()
    with engine.keeping():
        kept = talk(engine, max_tokens=1)
    assert engine.usage.tokens_decoded == 0
    assert kept.computed <= 1.05 * kept.nodes


def test_a_prompt_shares_what_it_shares_with_an_earlier_text() -> None:
    """As under a template that writes an answer in another way, or leaves a part of it out."""
    engine = checked()
    first, second = SYSTEM + "the cat sat on the mat", SYSTEM + "the cat sat on a hill\none two three"
    with engine.keeping():
        ask(engine, first)
        before = computed(engine)[0]
        (text,) = ask(engine, second)
    assert computed(engine)[0] - before == nodes([TOKENIZER.encode(first), TOKENIZER.encode(second)]) - len(TOKENIZER.encode(first))
    assert list(text) == generated(engine._network, second, 12)


@pytest.mark.parametrize("kind", OTHERS)
def test_networks_without_rows_keep_nothing_and_say_so(kind: str) -> None:
    engine = checked(kind)
    assert engine.usage.path == "padded"
    assert engine.usage.reason.endswith("; keys and values are not kept between turns, for texts are not generated in rows")
    with engine.keeping():
        texts = ask(engine, *PROMPTS[:2])
        assert engine._decoder.network.store is None
    assert [list(text) for text in texts] == [generated(engine._network, prompt, 12) for prompt in PROMPTS[:2]]


@pytest.mark.long
def test_a_network_that_cannot_continue_kept_columns_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = talk(engine_of(network_of("llama")))
    columns = row_network.RowCache.columns
    monkeypatch.setattr(row_network.RowCache, "columns", lambda cache, row, start: [each.flip(1) for each in columns(cache, row, start)])
    engine = checked()
    assert "; keys and values are not kept between turns, for its logits are then off by" in engine.usage.reason
    assert engine.usage.path == "rows"
    with engine.keeping():
        talked = talk(engine)
    assert (talked.texts, talked.computed) == (right.texts, right.computed)


@pytest.mark.long
def test_nothing_is_kept_unless_it_is_asked_for_and_nothing_afterwards() -> None:
    engine, stores = engine_of(network_of("llama")), []
    first = talk(engine)
    assert "kept" not in engine.usage.reason
    with engine.keeping():
        talk(engine)
        stores.append(engine._decoder.network.store)
    again = talk(engine)
    assert stores[0] is not None
    assert stores[0].bytes > 0
    assert engine._decoder.network.store is None
    assert (again.texts, again.computed) == (first.texts, first.computed)


@pytest.mark.long
@pytest.mark.parametrize("tokens", [0, 60, 200, 600])
def test_no_more_is_kept_than_memory_holds(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = checked()
    without = talk(engine)
    held = [0]

    def free(device: str) -> int:
        store = engine._decoder.network.store
        held.append(0 if store is None else store.bytes)
        return 2 * tokens * TOKEN_BYTES - held[-1]

    monkeypatch.setattr(turn_store, "free_memory", free)
    with engine.keeping():
        kept = talk(engine)
    assert kept.texts == without.texts
    assert max(held) <= tokens * TOKEN_BYTES
    assert "tokens that found no memory" in engine.usage.reason
    if tokens:
        assert max(held) > tokens * TOKEN_BYTES / 2
        assert without.computed - kept.computed > tokens, "what is kept is used turn by turn"


@pytest.mark.long
def test_what_was_kept_goes_first_if_memory_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    engine = checked()
    without = talk(engine)
    calls = [0]

    def fail(arguments: dict[str, Any]) -> Exception | None:
        calls[0] += 1
        return RuntimeError("not enough memory (simulated)") if calls[0] == 80 else None

    failing(engine._network, fail)
    with engine.keeping():
        kept = talk(engine)
    assert kept.texts == without.texts
    assert "what was kept of earlier turns is forgotten" in caplog.text
    assert engine._decoder.rows == 3, "the rows stay as many"


@pytest.mark.long
def test_no_memory_for_a_text_that_is_over_costs_no_answer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    engine = checked()
    without = talk(engine)

    def copied(columns: Any) -> Any:
        raise MemoryError("(simulated)")

    monkeypatch.setattr(turn_store, "_copied", copied)
    with engine.keeping(), caplog.at_level(logging.WARNING):
        kept = talk(engine)
    assert (kept.texts, kept.computed) == (without.texts, without.computed)
    assert not caplog.records


def test_the_columns_of_a_text_without_finite_logits_are_not_kept() -> None:
    engine = checked()
    token = TOKENIZER.encode(" mat", add_special_tokens=False)[-1]
    weights = engine._network.get_input_embeddings().weight
    kept = weights[token].clone()
    prompt = SYSTEM + "the cat sat on the mat"
    with engine.keeping():
        with torch.no_grad():
            weights[token] = float("nan")
        how = GenerationSettings(max_tokens=5)
        (bad,) = respond(engine, [Request(request_id="x", prompt=prompt, generation=how)])
        with torch.no_grad():
            weights[token] = kept
        (text,) = ask(engine, prompt)
    assert bad.error is not None
    assert list(text) == generated(engine._network, prompt, 12)


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


def columns_of(tokens: tuple[int, ...]) -> list[torch.Tensor]:
    """Columns that tell the whole beginning of the text: one head, one feature, for keys and values of one layer."""
    numbers = [hash(tokens[: place + 1]) % 1_000_003 for place in range(len(tokens))]
    return [torch.tensor(numbers, dtype=torch.float64)[None, :, None], -torch.tensor(numbers, dtype=torch.float64)[None, :, None]]


@example([((0,), 0, []), ((1, 0, 0, 0, 0), 5, []), ((1, 1), 6, []), ((0,), 6, [(1,)])], [])  # what continues an awaited text goes first
@given(st.lists(st.tuples(TEXTS, st.integers(0, 30), st.lists(TEXTS, max_size=2)), max_size=25), st.lists(TEXTS, max_size=5))
def test_kept_columns_are_those_of_the_prompt_whatever_is_given_up(
    steps: list[tuple[tuple[int, ...], int, list[tuple[int, ...]]]], prompts: list[tuple[int, ...]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        store, room = TurnStore("cpu"), [0]
        patch.setattr(turn_store, "free_memory", lambda device: 2 * room[0] * 16 - store.bytes)
        for text, tokens, awaited in steps:
            room[0] = tokens
            store.begin(awaited)
            waiting = {each: sum(piece.end - piece.start for piece in store.find(each)) for each in awaited}
            store.begin(awaited)
            before = store.bytes
            store.keep(text, lambda start, text=text: [each[:, start:] for each in columns_of(text)])
            assert store.bytes <= max(before, 16 * tokens)
            for each, found in waiting.items():
                assert sum(piece.end - piece.start for piece in store.find(each)) >= found or before > 16 * tokens
        for prompt in [*prompts, *(text for text, _, _ in steps)]:
            length = 0
            for piece in store.find(prompt):
                assert piece.start <= length < piece.end
                for kept, right in zip(piece.columns, columns_of(prompt), strict=True):
                    assert torch.equal(kept[:, : piece.end - piece.start], right[:, piece.start : piece.end])
                length = piece.end
        assert store.bytes == 16 * sum(len(branch.tokens) for branch in store._branches.values())
        room[0] = 0
        store.begin([])
        store.begin([])
        for _ in range(10):
            store.begin([])
        assert store.bytes == 0, "what nobody asks for goes part by part"


def test_texts_share_one_copy_of_their_common_beginning() -> None:
    store = TurnStore("cpu")
    texts = [(1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2, 6), (1, 2, 3, 7), (8,)]
    for text in texts:
        store.keep(text, lambda start, text=text: [each[:, start:] for each in columns_of(text)])
    assert store.bytes == 16 * nodes(texts)


def test_the_oldest_and_shortest_part_is_given_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TurnStore("cpu")
    long, short, old = (1, 1, 1, 1, 1, 1), (2, 2, 2), (3, 3, 3, 3)

    def keep(text: tuple[int, ...]) -> None:
        store.keep(text, lambda start: [each[:, start:] for each in columns_of(text)])

    def length(text: tuple[int, ...]) -> int:
        return sum(piece.end - piece.start for piece in store.find(text))

    keep(old)
    store.begin([])
    keep(long)
    keep(short)
    monkeypatch.setattr(turn_store, "free_memory", lambda device: 2 * 16 * 14 - store.bytes)
    keep((4, 4, 4, 4))
    assert [length(text) for text in (long, short, old)] == [6, 3, 0]
    keep((5, 5))
    assert length((5, 5)) == 0, "it is worth less than what is there"
    store.begin([short])
    keep((6, 6, 6, 6, 6, 6))
    assert [length(text) for text in (long, short, (4, 4, 4, 4))] == [0, 3, 0], "what a prompt waits for stays"


@pytest.mark.long
def test_conversations_with_the_demo_model(demo_model: LoadedModel) -> None:
    talk(demo_model, conversations=1, turns=1, max_tokens=1)
    without = talk(demo_model, conversations=4, turns=3, max_tokens=8)
    with demo_model.conversing():
        kept = talk(demo_model, conversations=4, turns=3, max_tokens=8)
    assert "keys and values are kept between turns" in demo_model.usage()[1].reason
    assert kept.texts == without.texts
    assert kept.computed <= 1.05 * kept.nodes < without.computed
