"""Scoring over a tree of prefixes, against plain unbatched forward passes, for many architectures."""

import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import tiny_architectures
import torch
from tiny_architectures import CONTEXT, VOCABULARY

from eval_dagster.models.transformers.encoding.tokenization import Span
from eval_dagster.models.transformers.network.architecture import layer_windows
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring import engine as scoring
from eval_dagster.models.transformers.scoring import prefix_tree, tree
from eval_dagster.models.transformers.scoring.engine import ScoringEngine, ScoringJob, check_tree
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits
from eval_dagster.models.transformers.scoring.spans import SpanScore
from eval_dagster.models.transformers.scoring.tree import TreeAttention
from eval_dagster.records import ModelResponse, Request

Tokens = tuple[int, ...]
Spans = Sequence[tuple[Tokens, Tokens]]
"""Contexts and what is scored after them."""

POISON = VOCABULARY - 1
ORDINARY = range(5, POISON)

BOUND = 1e-4
"""How far a log-probability may depend on what it is computed with, in float32."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def some(draw: random.Random, count: int) -> Tokens:
    return tuple(draw.choices(ORDINARY, k=count))


def questions(seed: int, *, subjects: int = 3, each: int = 4, shots: int = 60) -> dict[str, Spans]:
    """Requests as benchmarks have them: subjects share a first line, questions their subject's examples, choices their question."""
    draw = random.Random(seed)
    line = some(draw, 6)
    found: dict[str, Spans] = {}
    for subject in range(subjects):
        examples = line + some(draw, shots)
        for number in range(each):
            question = examples + some(draw, draw.randint(8, 20))
            choices = [some(draw, draw.randint(1, 5)) for _ in range(4)]
            # The last choice goes on where the first one ends.
            found[f"{subject}-{number}"] = [(question, choice) for choice in (*choices[:3], choices[0] + choices[3])]
    return found


def engine(network: Any, *, longest: int = CONTEXT, limits: PieceLimits | None = None, rows: int = 4) -> ScoringEngine:
    built = ScoringEngine(network, BatchRunner(rows=rows, tokens=None), device="cpu", pad_token=0, tokens=ORDINARY, longest=longest)
    if limits and built._tree:
        built._tree._measure = lambda: replace(limits)
    return built


def answers(scorer: ScoringEngine, spans: dict[str, Spans]) -> dict[str, ModelResponse]:
    """Score spans; the prompts are such that their order is that of the tokens."""

    def prepare(request: Request) -> ScoringJob:
        made = [Span(input=(*context, *tokens[:-1]), tokens=tokens) for context, tokens in spans[request.request_id]]
        return ScoringJob(request=request, spans=made, response=respond)

    def respond(scores: Sequence[SpanScore], _: Sequence[SpanScore]) -> ModelResponse:
        return ModelResponse(
            token_logprobs=tuple(score.logprobs for score in scores),
            argmax_logits_eq_gold=tuple(score.is_greedy for score in scores),
            logits=tuple(score.logits for score in scores),
        )

    requests = [Request(request_id=name, prompt="".join(map(chr, parts[0][0]))) for name, parts in spans.items()]
    found = [(request.request_id, response) for request, response in scorer.respond(requests, prepare)]
    assert sorted(name for name, _ in found) == sorted(spans)
    return dict(found)


def plain(network: Any, spans: Spans) -> list[list[float]]:
    found = []
    for context, tokens in spans:
        with torch.no_grad():
            logits = network(torch.tensor([[*context, *tokens]])).logits[0, len(context) - 1 : -1].float()
        found.append(torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].tolist())
    return found


def nodes(spans: dict[str, Spans]) -> int:
    """Distinct prefixes of all inputs."""
    inputs = {(*context, *tokens[:-1]) for parts in spans.values() for context, tokens in parts}
    return len({whole[: end + 1] for whole in inputs for end in range(len(whole))})


def farthest(network: Any, found: dict[str, ModelResponse], spans: dict[str, Spans]) -> float:
    distances = []
    for name, parts in spans.items():
        assert found[name].error is None
        for ours, right in zip(found[name].token_logprobs, plain(network, parts), strict=True):
            distances += [abs(one - other) for one, other in zip(ours, right, strict=True)]
    return max(distances)


@pytest.mark.long
@pytest.mark.parametrize(
    "limits",
    [
        PieceLimits(tokens=1024, chain=1024, scored=1024),
        PieceLimits(tokens=90, chain=90, scored=40),
        PieceLimits(tokens=33, chain=33, scored=5),
    ],
)
@pytest.mark.parametrize("name", tiny_architectures.TREE)
def test_scores_over_the_tree_equal_plain_ones(name: str, limits: PieceLimits) -> None:
    network = tiny_architectures.network(name)
    scorer = engine(network, limits=limits)
    assert scorer.usage.path == "tree", scorer.usage.reason
    spans = questions(1)
    assert farthest(network, answers(scorer, spans), spans) < 2e-5
    assert scorer.usage.tokens_needed == nodes(spans)
    if limits.tokens > 80:
        assert scorer.usage.tokens_computed <= 1.05 * nodes(spans)


class Elsewhere(str):
    """A device that torch takes for the CPU, and the engine does not."""

    __hash__ = str.__hash__

    def __eq__(self, _: object) -> bool:
        return False

    def __ne__(self, _: object) -> bool:
        return True


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_gpu_has_large_pieces_with_whole_masks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "cut_strips", lambda piece: pytest.fail("strips are for a CPU"))
    network, runner = tiny_architectures.network(name), BatchRunner(rows=4, tokens=None)
    scorer = ScoringEngine(network, runner, device=Elsewhere("cpu"), pad_token=0, tokens=ORDINARY, longest=CONTEXT)
    assert scorer._tree is not None, scorer.usage.reason
    assert scorer._tree._measure().tokens == 8192
    spans = questions(1, subjects=12)
    assert farthest(network, answers(scorer, spans), spans) < 2e-5
    assert scorer.usage.tokens_computed == nodes(spans) > 1024
    assert scorer.usage.passes == 1


@pytest.mark.long
@pytest.mark.parametrize(("name", "path"), tiny_architectures.OTHERS.items())
def test_what_does_not_honour_masks_is_scored_by_the_next_best_way(name: str, path: str) -> None:
    network = tiny_architectures.network(name)
    scorer = engine(network)
    assert scorer.usage.path == path, scorer.usage.reason
    assert scorer.usage.reason.startswith("not over a tree: ")
    spans = questions(1, shots=40)
    assert farthest(network, answers(scorer, spans), spans) < 2e-5
    reuse = scorer.usage.reuse()
    assert reuse is not None
    assert reuse > 2 if path == "prefix" else reuse <= 1


class Deaf(torch.nn.Module):
    """A network that ignores one thing that it is told, as some architectures do without a word."""

    def __init__(self, network: Any, ignored: str):
        super().__init__()
        self.network = network
        self.config = network.config
        self.dtype = network.dtype
        self.ignored = ignored

    def forward(self, input_ids: Any, logits_to_keep: Any = 0, **arguments: Any) -> Any:
        if arguments.get("past_key_values") is not None or arguments.get("position_ids") is not None:
            arguments[self.ignored] = None
        return self.network(input_ids=input_ids, logits_to_keep=logits_to_keep, **arguments)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_that_ignores_masks_or_positions_is_found_out(ignored: str, dtype: torch.dtype) -> None:
    scorer = engine(Deaf(tiny_architectures.network("llama").to(dtype), ignored))
    assert scorer.usage.path != "tree"
    assert "more than" in scorer.usage.reason


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_coarse_numbers_are_no_reason_to_mistrust_the_tree(name: str) -> None:
    network = tiny_architectures.network(name).to(torch.bfloat16)
    scorer = engine(network)
    assert scorer.usage.path == "tree", scorer.usage.reason
    spans = questions(1)
    assert farthest(network, answers(scorer, spans), spans) < 0.1


@pytest.mark.parametrize("name", ["mistral with a window", "gemma3"])
def test_a_window_that_is_not_drawn_is_found_out(name: str) -> None:
    network = tiny_architectures.network(name)
    windows = layer_windows(network.config)
    assert windows is not None
    assert set(windows.values()) - {None} == {tiny_architectures.WINDOW}
    for drawn, expected in ((windows, True), (dict.fromkeys(windows), False)):
        attention = TreeAttention(drawn, dtype=network.dtype, device="cpu")
        verdict = check_tree(network, attention, device="cpu", tokens=ORDINARY, stems=(40,), longest=CONTEXT)
        assert verdict.is_exact is expected, verdict.reason


@pytest.mark.parametrize(("tokens", "longest"), [([7] * 20, CONTEXT), (ORDINARY, 12)])
def test_what_cannot_be_checked_is_not_used(tokens: Sequence[int], longest: int) -> None:
    network = tiny_architectures.network("llama")
    scorer = ScoringEngine(network, BatchRunner(rows=4, tokens=None), device="cpu", pad_token=0, tokens=tokens, longest=longest)
    assert scorer.usage.path == "plain"
    assert "too " in scorer.usage.reason


def test_what_is_longer_than_is_proved_is_scored_plainly() -> None:
    network = tiny_architectures.network("llama")
    network.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "original_max_position_embeddings": 80}
    scorer = engine(network)
    draw = random.Random(4)
    spans: dict[str, Spans] = {"short": [(some(draw, 30), some(draw, 3))], "long": [(some(draw, 100), some(draw, 3))]}
    found = answers(scorer, spans)
    assert scorer.usage.path == "tree"
    assert scorer.usage.tokens_needed == nodes({"short": spans["short"]})
    assert farthest(network, found, spans) < BOUND


@pytest.mark.parametrize("way", ["tree", "plain"])
def test_rotations_that_depend_on_the_length_depend_on_no_neighbour(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("phi3 of two rotations")
    if way == "plain":
        monkeypatch.setattr(ScoringEngine, "_open_tree", lambda self, network, tokens: None)
    scorer = engine(network, rows=3)
    assert scorer.usage.path == way
    draw = random.Random(4)
    most = tiny_architectures.ORIGINAL
    spans: dict[str, Spans] = {
        f"{length}": [(some(draw, length), some(draw, 3)), (some(draw, length), some(draw, 3))] for length in (20, most - 5, most, 70)
    }
    assert farthest(network, answers(scorer, spans), spans) < BOUND
    if way == "tree":
        assert f"inputs of more than {most} tokens by plain rows" in scorer.usage.reason
        assert scorer.usage.elsewhere == 4


def recorded(monkeypatch: pytest.MonkeyPatch, network: Any, fails: Callable[[list[int]], bool] = lambda sizes: False) -> list[int]:
    """Note the tokens of each forward pass; some of them have too little memory in the middle of the network."""
    sizes: list[int] = []
    original, last = network.forward, network.model.layers[-1].forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["input_ids"].numel())
        return original(*args, **kwargs)

    def layer(*args: Any, **kwargs: Any) -> Any:
        if fails(sizes):
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return last(*args, **kwargs)

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    monkeypatch.setattr(network, "forward", forward)
    monkeypatch.setattr(network.model.layers[-1], "forward", layer)
    return sizes


def test_running_out_of_memory_halves_the_pieces_and_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    spans = questions(2)
    scorer = engine(network, limits=PieceLimits(tokens=400, chain=400, scored=400))
    sizes = recorded(monkeypatch, network, lambda sizes: sizes[-1] > 110)
    found = answers(scorer, spans)
    assert len([size for size in sizes if size > 110]) == 2, "the smaller size is kept"
    monkeypatch.undo()
    assert farthest(network, found, spans) < BOUND


def test_what_is_too_much_by_itself_makes_no_other_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    spans = questions(2)
    (context, choice), *_ = spans["1-2"]
    spans["huge"] = [((*context, POISON), choice)]
    scorer = engine(network, limits=PieceLimits(tokens=100, chain=120, scored=90))
    assert scorer._tree is not None
    compute, ceiling = scorer._tree._compute, scorer._tree._ceiling

    def failing(work: Any, piece: Any, cache: Any) -> None:
        if POISON in piece.tokens:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        compute(work, piece, cache)

    monkeypatch.setattr(scorer._tree, "_compute", failing)
    found = answers(scorer, spans)
    assert scorer._tree._ceiling == ceiling
    assert scorer.usage.elsewhere == 1
    del spans["huge"]
    assert farthest(network, found, spans) < BOUND


@pytest.mark.parametrize("failing", [2, 4, 6])
def test_running_out_of_memory_above_a_cached_prefix_spoils_nothing(
    failing: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = tiny_architectures.network("llama")
    spans = questions(2)
    scorer = engine(network, limits=PieceLimits(tokens=100, chain=100, scored=100))
    sizes = recorded(monkeypatch, network, lambda sizes: len(sizes) == failing)
    found = answers(scorer, spans)
    assert len(sizes) > 6
    assert "scored again" not in caplog.text, "it goes on over the tree"
    monkeypatch.undo()
    assert farthest(network, found, spans) < BOUND


def test_a_value_that_is_no_number_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    with torch.no_grad():
        network.get_input_embeddings().weight[POISON] = float("nan")
    spans = questions(3)
    (context, choice), *_ = spans["1-2"]
    spans["bad"] = [((*context, POISON), choice)]
    scorer = engine(network)
    assert scorer.usage.path == "tree", "the check takes no such token"
    found = answers(scorer, spans)
    bad = found.pop("bad")
    assert (bad.error, bad.retryable) == ("ModelError: The model gave a log-probability that is no finite number.", False)
    del spans["bad"]
    assert farthest(network, found, spans) < BOUND


def test_a_value_that_is_no_number_is_not_kept_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where masks are added: NaN reaches every token of its piece, masked or not."""
    monkeypatch.setattr(TreeAttention, "computed", lambda self, piece: nullcontext())
    network = tiny_architectures.network("llama")
    first = min(ORDINARY) - 1
    with torch.no_grad():
        network.get_input_embeddings().weight[first] = float("nan")
    spans = questions(3, subjects=1, each=12)
    (context, choice), *_ = spans["0-0"]
    # It comes before all others, in the piece that also computes the end of what all of them share.
    spans["bad"] = [((*context[:66], first), choice)]
    scorer = engine(network, limits=PieceLimits(tokens=60, chain=60, scored=60))
    found = answers(scorer, spans)
    assert found.pop("bad").error
    del spans["bad"]
    assert scorer.usage.passes > 5
    assert 1 < scorer.usage.elsewhere < 20, "the inputs of one piece"
    assert farthest(network, found, spans) < BOUND


def test_answers_come_while_pieces_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    spans = questions(4)
    scorer = engine(network, limits=PieceLimits(tokens=90, chain=90, scored=90))
    sizes = recorded(monkeypatch, network)

    def prepare(request: Request) -> ScoringJob:
        made = [Span(input=(*context, *tokens[:-1]), tokens=tokens) for context, tokens in spans[request.request_id]]
        return ScoringJob(request=request, spans=made, response=lambda scores, _: ModelResponse())

    requests = [Request(request_id=name, prompt=name) for name in spans]
    seen = [len(sizes) for _ in scorer.respond(requests, prepare)]
    assert seen[0] <= 2
    assert max(seen.count(passes) for passes in seen) <= 3 < len(seen) / 2, "an answer waits for no piece but its own"


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "bloom"])
def test_no_score_depends_on_its_company_by_more_than_the_bound(name: str) -> None:
    """Another order, a limit, other pieces and other batches round differently: by so much at most, and no greedy token changes."""
    network = tiny_architectures.network(name)
    spans = questions(5)
    reference = answers(engine(network), spans)
    assert len({value for response in reference.values() for scores in response.token_logprobs for value in scores}) > 100
    draw = random.Random(6)
    shuffled = dict(draw.sample(sorted(spans.items()), k=len(spans)))
    settings: list[tuple[dict[str, Spans], dict[str, Any]]] = [
        (shuffled, {}),
        (dict(list(spans.items())[:5]), {}),
        ({"0-1": spans["0-1"]}, {"rows": 1}),
        (shuffled, {"limits": PieceLimits(tokens=60, chain=60, scored=20), "rows": 3}),
    ]
    for chosen, options in settings:
        for key, response in answers(engine(network, **options), chosen).items():
            assert response.argmax_logits_eq_gold == reference[key].argmax_logits_eq_gold
            for ours, theirs in zip(response.token_logprobs, reference[key].token_logprobs, strict=True):
                assert ours == pytest.approx(theirs, abs=BOUND, rel=0)


def test_the_same_requests_in_another_order_give_the_very_same_digits() -> None:
    network = tiny_architectures.network("llama")
    spans = questions(7)
    scorer = engine(network)
    backwards = answers(scorer, dict(reversed(spans.items())))
    for name, response in answers(scorer, spans).items():
        assert (response.token_logprobs, response.logits) == (backwards[name].token_logprobs, backwards[name].logits)


def test_requests_that_begin_alike_come_together_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_WINDOW", 4)
    spans = questions(9)
    shuffled = dict(random.Random(1).sample(sorted(spans.items()), k=len(spans)))
    scorer = engine(tiny_architectures.network("llama"))
    answers(scorer, shuffled)
    # Four questions a subject, four requests at a time: only the first line, six tokens that all share, is computed for each.
    assert scorer.usage.tokens_computed == nodes(spans) + 2 * 6


def test_what_was_taken_is_counted() -> None:
    scorer = engine(tiny_architectures.network("llama"))
    spans = questions(8)
    answers(scorer, spans)
    usage = scorer.usage
    asked = sum(len(context) + len(tokens) - 1 for parts in spans.values() for context, tokens in parts)
    assert (usage.requests, usage.tokens_asked, usage.tokens_needed) == (len(spans), asked, nodes(spans))
    assert usage.tokens_computed == nodes(spans)
    assert usage.reuse() == asked / nodes(spans)
    assert usage.passes == 1
    assert usage.seconds > 0


@pytest.mark.parametrize("failures", [1, 2])
def test_a_check_for_which_memory_ran_out_is_made_once_more(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    recorded(monkeypatch, network, lambda sizes: len(sizes) <= failures)
    monkeypatch.setattr(prefix_tree, "LEAST_TOKENS", 2**20)
    scorer = engine(network)
    assert scorer.usage.path == ("tree" if failures == 1 else "prefix"), scorer.usage.reason
