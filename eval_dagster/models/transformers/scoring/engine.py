"""Log-probabilities of tokens: over a tree of prefixes if a check on load shows that this is exact for the network, else by batches.

The other tokens of a batch change a log-probability by rounding only: in float32 by less than 1e-4. A job has
the spans of choices or of a whole text, and makes the response of their scores. The check compares a faster way of scoring with the plain
scores of the network.
"""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.tokenization import Codec, Span, rolling_windows
from eval_dagster.models.transformers.network.architecture import constant_length, layer_windows, rounding_tolerance
from eval_dagster.models.transformers.network.batching import BatchRunner, Failure, Outcome, failure_of, refusal, with_memory
from eval_dagster.models.transformers.scoring.plain import PlainScorer, PrefixScorer
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits, piece_limits
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, SpanScore
from eval_dagster.models.transformers.scoring.tree import TreeAttention, TreeScorer
from eval_dagster.models.usage import ScoringUsage
from eval_dagster.records import ModelResponse, Request

_FORKS = 10
_LEAVES = 3
_SCORED = 3
"""Tokens that are scored at the end of each sequence."""

_VARIETY = 8
"""Fewest different tokens for the sequences. With fewer, the sequences could be alike."""

_LIMITS = {"tokens": 160, "chain": 160, "scored": 4096}
"""Limits of a piece of the check. The check takes several pieces, so that later ones use a cache. Each sequence fits one piece."""

_ROWS = 6
"""Rows of a batch of the check. Some batches begin with a prefix of an earlier batch."""

_CONTRAST = 4
"""A network that sees a neighbouring branch must differ by this multiple, or the check could not detect the fault."""
_LOG = logging.getLogger(__name__)
_WINDOW = 1024
"""Requests that are encoded and sorted together. It bounds the memory for tokens, and the time to the first answer."""
_WINDOW_TEXT = 2**18
"""Characters of the texts among them that are scored as a whole. All of them are computed before the last is answered."""
_STEM = 24
"""Tokens with which the sequences of the self-check begin."""
_CPU_WINDOW = 1024
_GPU_WINDOW = 8192
"""Longest sliding window, in tokens, that the self-check exceeds. With a longer one, only inputs up to its length are proved."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a way of scoring may be used, and why."""

    is_exact: bool
    reason: str


def check_tree(
    network: Any, attention: TreeAttention, *, device: str, tokens: Sequence[int], stems: Sequence[int], longest: int
) -> Verdict:
    """Compare scores over trees with plain ones: a tree with each of the stems. `attention` describes pieces to the network.

    The other arguments as of `check`. The verdict is about the first stem whose scores are not exact, else about the last.
    """
    for stem in stems:
        tree = TreeScorer(network, attention, limits=lambda: PieceLimits(**_LIMITS), device=device, usage=ScoringUsage())
        score = partial(tree.run, fallback=_refuse)
        verdict = check(network, score, device=device, tokens=tokens, stem=stem, longest=longest)
        if not verdict.is_exact:
            break
    return verdict


def check_prefix(network: Any, *, device: str, tokens: Sequence[int], stem: int, longest: int) -> Verdict:
    """Compare scores by batches with a common prefix with plain ones; arguments as in `check`."""
    prefix = PrefixScorer(network, device=device, pad_token=0, usage=ScoringUsage())
    runner = BatchRunner(rows=_ROWS, tokens=None)
    return check(network, lambda inputs: prefix.run(inputs, runner), device=device, tokens=tokens, stem=stem, longest=longest)


def check(
    network: Any,
    score: Callable[[Sequence[ScoredInput]], Outcomes],
    *,
    device: str,
    tokens: Sequence[int],
    stem: int,
    longest: int,
) -> Verdict:
    """Compare a way of scoring with plain rows.

    The sequences consist of `tokens`, which are tokens of ordinary text. Most of them begin with the same `stem` tokens, or with fewer if
    the sequences would otherwise have more than `longest` tokens.
    """
    fork, leaf = min(8, longest // 4), min(6, longest // 4)
    if leaf <= _SCORED:
        return Verdict(is_exact=False, reason=f"a context of {longest} tokens is too short to be checked")
    if len(set(tokens)) < _VARIETY:
        return Verdict(is_exact=False, reason=f"{len(set(tokens))} different tokens are too few to be checked with")
    leaves, neighboured = _sequences(tokens, min(stem, longest - fork - 2 * leaf), fork, leaf)
    plain = PlainScorer(network, device=device, pad_token=0, usage=ScoringUsage())
    few = [leaves[index] for index in (0, 1, len(leaves) // 2, -2, -1)]
    try:
        found = with_memory(lambda: _scores(score(leaves)))
        right = with_memory(lambda: _scores(plain.run([*few, neighboured], BatchRunner(rows=1, tokens=None))))
    except Exception as error:
        return Verdict(is_exact=False, reason=f"the network refuses it ({failure_of(error, retryable=False).error})")
    off = max(_distance(found[item.tokens], right[item.tokens]) for item in few)
    contrast = _distance(right[few[1].tokens], right[neighboured.tokens])
    greatest = max(abs(logit) for score in right.values() for logit in score.logits)
    tolerance = rounding_tolerance(network.dtype, greatest)
    if off > tolerance:
        return Verdict(
            is_exact=False, reason=f"log-probabilities differ by {off:.1e} from plain ones, more than the {tolerance:.1e} of rounding"
        )
    if contrast < _CONTRAST * off:
        return Verdict(
            is_exact=False, reason=f"a difference of {off:.1e} could be an error: seeing a neighbour makes one of {contrast:.1e}"
        )
    return Verdict(is_exact=True, reason=f"checked on load: log-probabilities differ by {off:.1e} from plain ones")


def _sequences(tokens: Sequence[int], stem: int, fork: int, leaf: int) -> tuple[list[ScoredInput], ScoredInput]:
    """Sequences in order, and the second of them with the first one's end before its own."""
    draw = random.Random(0)  # noqa: S311
    trunk = tuple(draw.choices(tokens, k=stem))
    forks = [trunk + tuple(draw.choices(tokens, k=fork)) for _ in range(_FORKS)]
    wholes = {path + tuple(draw.choices(tokens, k=draw.randint(_SCORED + 1, leaf))) for path in forks for _ in range(_LEAVES)}
    wholes.add(tuple(draw.choices(tokens, k=fork + leaf)))
    ordered = sorted(wholes)
    misled = ordered[0] + ordered[1][-_SCORED - 1 :]
    inputs = {whole[:-1]: ScoredInput(tokens=whole[:-1], spans=[whole[-_SCORED:]]) for whole in ordered}
    return list(inputs.values()), ScoredInput(tokens=misled[:-1], spans=[misled[-_SCORED:]])


def _refuse(_: Sequence[ScoredInput], error: Exception | None) -> Outcomes:
    raise error or ModelError("it gives values that are no finite numbers")


def _scores(batches: Outcomes) -> dict[tuple[int, ...], SpanScore]:
    found = {}
    for batch in batches:
        for outcome in batch:
            score = outcome.result if isinstance(outcome.result, Failure) else outcome.result.scores[0]
            if isinstance(score, Failure):
                raise ModelError(score.error)
            found[outcome.item.tokens] = score
    return found


def _distance(one: SpanScore, other: SpanScore) -> float:
    return max(abs(left - right) for left, right in zip(one.logprobs, other.logprobs, strict=True))


@dataclass(frozen=True, kw_only=True)
class ScoringJob:
    """The spans that a request needs scored."""

    request: Request
    spans: Sequence[Span]
    shared: Sequence[Span] = ()
    """Spans that other requests probably have, too; scored before all others."""
    response: Callable[[Sequence[SpanScore], Sequence[SpanScore]], ModelResponse]
    """Makes the response of the scores of `spans` and of `shared`."""


class PendingJob:
    """A job some of whose spans are not scored yet: its own spans first, then the shared ones."""

    def __init__(self, job: ScoringJob):
        self.job = job
        self.scores: dict[int, SpanScore | Failure] = {}
        self.seconds = 0.0
        self.padding = 0

    def spans(self) -> list[Span]:
        """All spans, in the order of their numbers in `scores`."""
        return [*self.job.spans, *self.job.shared]

    def is_done(self) -> bool:
        """Whether all spans are scored."""
        return len(self.scores) == len(self.job.spans) + len(self.job.shared)

    def response(self) -> ModelResponse:
        """The response, once all spans are scored: the error of the first one that failed, if any did."""
        ordered = [self.scores[index] for index in range(len(self.scores))]
        for score in ordered:
            if isinstance(score, Failure):
                return ModelResponse(error=score.error, retryable=score.retryable, latency_s=self.seconds)
        scores = [score for score in ordered if isinstance(score, SpanScore)]
        count = len(self.job.spans)
        return replace(self.job.response(scores[:count], scores[count:]), padded_tokens_count=self.padding, latency_s=self.seconds)


class _Inputs:
    """The distinct inputs of some jobs, and the jobs that wait for them."""

    def __init__(self) -> None:
        self._inputs: dict[tuple[tuple[int, ...], int], ScoredInput] = {}
        self._waiting: dict[int, list[tuple[PendingJob, int]]] = {}

    def add(self, owner: PendingJob, spans: Sequence[Span], first: int) -> None:
        """Add spans of a job, of which the first has the given number; the longest comes first."""
        for index, span in sorted(enumerate(spans, first), key=lambda item: len(item[1].input), reverse=True):
            # Equal tokens may belong to different images in another request.
            key = (span.input, id(owner) if span.tensors else 0)
            item = self._inputs.setdefault(key, ScoredInput(tokens=span.input, tensors=span.tensors))
            item.spans.append(span.tokens)
            self._waiting.setdefault(id(item), []).append((owner, index))

    def all(self) -> list[ScoredInput]:
        return list(self._inputs.values())

    def settle(self, outcomes: Sequence[Outcome[ScoredInput, InputScore]]) -> Iterator[tuple[Request, ModelResponse]]:
        """Hand scores to the jobs that wait for them and yield the responses of those that are complete."""
        for outcome in outcomes:
            waiting, result = self._waiting[id(outcome.item)], outcome.result
            if isinstance(result, InputScore):
                for owner in {id(owner): owner for owner, _ in waiting}.values():
                    owner.padding += result.padding
            for number, (owner, index) in enumerate(waiting):
                owner.scores[index] = result if isinstance(result, Failure) else result.scores[number]
                owner.seconds += outcome.seconds / len(waiting)
                if owner.is_done():
                    yield owner.job.request, owner.response()


class ScoringEngine:
    """Scores the tokens that requests ask for, with one network."""

    def __init__(self, network: Any, runner: BatchRunner, *, device: str, pad_token: int, tokens: Sequence[int], longest: int):
        """Check on the network which way of scoring is exact.

        `runner` cuts the batches of plain rows, and `pad_token` fills them. `tokens` are tokens of ordinary text, for the check. `longest`
        is the number of tokens that the model's context holds.
        """
        self._runner = runner
        # Rows with images have different inputs beside their tokens, so each has a batch of its own.
        self._single = BatchRunner(rows=1, tokens=None)
        self._device = device
        self.usage = ScoringUsage()
        self._plain = PlainScorer(network, device=device, pad_token=pad_token, usage=self.usage)
        self._rows = self._plain
        self._constant = constant_length(network.config.get_text_config(decoder=True))
        self._longest = self._proved = longest
        self._tree = self._open_tree(network, tokens)
        if self._tree is None and self._constant is not None:
            self.usage.reason += "; nor with common prefixes: its positions depend on how long a sequence is"
        elif self._tree is None:
            verdict = check_prefix(network, device=device, tokens=tokens, stem=2 * _STEM, longest=longest)
            if verdict.is_exact:
                self.usage.path = "prefix"
                self.usage.reason += f"; with common prefixes {verdict.reason}"
                self._rows = PrefixScorer(network, device=device, pad_token=pad_token, usage=self.usage)
            else:
                self.usage.reason += f"; nor with common prefixes: {verdict.reason}"
        _LOG.info("%s scores by path %r: %s", type(network).__name__, self.usage.path, self.usage.reason)

    def respond(self, requests: Sequence[Request], prepare: Callable[[Request], ScoringJob]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer requests: those that begin alike together if that saves work, else the longest first, so that low memory shows early.

        `prepare` encodes a request. An exception that it raises becomes the error of that request.
        """
        plain = [request for request in requests if not request.images]
        if self.usage.path == "plain":
            plain.sort(
                key=lambda request: (len(request.prompt) + max(map(len, request.choices or ()), default=0), request.prompt), reverse=True
            )
        else:
            plain.sort(key=lambda request: (request.prompt, request.choices or ()))
        for window in _windows(plain):
            yield from self._respond_window(window, prepare)
        for request in requests:
            if request.images:
                yield from self._respond_window([request], prepare)

    def _respond_window(
        self, requests: Sequence[Request], prepare: Callable[[Request], ScoringJob]
    ) -> Iterator[tuple[Request, ModelResponse]]:
        pending: list[PendingJob] = []
        for request in requests:
            try:
                pending.append(PendingJob(prepare(request)))
            except Exception as error:
                yield request, refusal(error)
        self.usage.requests += len(pending)
        self.usage.tokens_asked += sum(len(span.input) for owner in pending for span in owner.spans())
        shared, own = _Inputs(), _Inputs()
        for owner in _longest_first(pending, lambda job: job.shared):
            shared.add(owner, owner.job.shared, len(owner.job.spans))
        for owner in _longest_first(pending, lambda job: job.spans):
            own.add(owner, owner.job.spans, 0)
        for inputs in (shared, own):
            for outcomes in self._run(inputs.all()):
                yield from inputs.settle(outcomes)

    def _run(self, inputs: Sequence[ScoredInput]) -> Outcomes:
        over_tree = [item for item in inputs if self._tree and not item.tensors and len(item.tokens) <= self._proved]
        if self._tree and over_tree:
            yield from self._counted(self._tree.run(over_tree, self._fall_back))
        chosen = set(map(id, over_tree))
        others = [item for item in inputs if id(item) not in chosen]
        self.usage.elsewhere += len(others) if self._tree else 0
        # Beyond the length that keeps positions constant, they depend on the longest row of a batch.
        most = self._constant or self._longest
        alone = [item for item in others if item.tensors or len(item.tokens) > most]
        chosen |= set(map(id, alone))
        yield from self._counted(self._rows.run([item for item in others if id(item) not in chosen], self._runner))
        yield from self._counted(self._plain.run(alone, self._single))

    def _fall_back(self, inputs: Sequence[ScoredInput], error: Exception | None) -> Outcomes:
        why = "gave a token of theirs no finite number" if error is None else f"met {type(error).__name__}: {error}"
        _LOG.warning("%d inputs are scored again, by plain batches: the prefix tree %s", len(inputs), why)
        self.usage.elsewhere += len(inputs)
        return self._plain.run(sorted(inputs, key=lambda item: len(item.tokens), reverse=True), self._runner)

    def _counted(self, batches: Outcomes) -> Outcomes:
        for batch in batches:
            self.usage.seconds += sum(outcome.seconds for outcome in batch)
            yield batch

    def _open_tree(self, network: Any, tokens: Sequence[int]) -> TreeScorer | None:
        """The scorer over a tree, if it is exact for the network. The usage gets the reason in both cases."""
        config = network.config.get_text_config(decoder=True)
        windows = layer_windows(config)
        if windows is None:
            self.usage.reason = "not over a tree: it has layers whose mask is not known"
            return None
        window = max((window for window in windows.values() if window), default=0)
        is_checked = window <= (_CPU_WINDOW if self._device == "cpu" else _GPU_WINDOW)
        proved = min(length for length in (self._longest, self._constant, None if is_checked else window) if length)
        # Beyond a window most of a piece's attention is to what is cached; before it, most of it is to the piece itself.
        stems = (_STEM, window + _STEM) if window and is_checked else (_STEM,)
        attention = TreeAttention(windows, dtype=network.dtype, device=self._device)
        verdict = check_tree(network, attention, device=self._device, tokens=tokens, stems=stems, longest=proved)
        if not verdict.is_exact:
            self.usage.reason = f"not over a tree: {verdict.reason}"
            return None
        self._proved = proved
        beyond = "" if proved == self._longest else f"; inputs of more than {proved} tokens by plain rows"
        self.usage.path, self.usage.reason = "tree", verdict.reason + beyond
        limits = partial(piece_limits, network, self._device, cell_bytes=attention.cell_bytes())
        return TreeScorer(network, attention, limits=limits, device=self._device, usage=self.usage)


def _windows(requests: Sequence[Request]) -> Iterator[list[Request]]:
    window: list[Request] = []
    text = 0
    for request in requests:
        more = len(request.prompt) if request.choices is None else 0
        if window and (len(window) == _WINDOW or text + more > _WINDOW_TEXT):
            yield window
            window, text = [], 0
        window.append(request)
        text += more
    if window:
        yield window


def _longest_first(pending: Sequence[PendingJob], spans_of: Callable[[ScoringJob], Sequence[Span]]) -> list[PendingJob]:
    return sorted(pending, key=lambda owner: max((len(span.input) for span in spans_of(owner.job)), default=0), reverse=True)


def choices_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of a request's choices after its prompt and, if there is one, after its unconditioned prompt.

    Raises `ModelError` if the choices cannot be encoded; see `Codec.encode_choices`.
    """
    prompt, spans = codec.encode_choices(request)
    unconditioned: tuple[Span, ...] = ()
    if request.unconditioned_prompt is not None:
        # It is a prompt without the question, and so without the question's images.
        _, unconditioned = codec.encode_choices(replace(request, prompt=request.unconditioned_prompt, images=()))

    def respond(scores: Sequence[SpanScore], priors: Sequence[SpanScore]) -> ModelResponse:
        return ModelResponse(
            input=prompt.text,
            input_tokens=prompt.tokens,
            output_tokens=tuple(span.tokens for span in spans),
            logprobs=tuple(sum(score.logprobs) for score in scores),
            token_logprobs=tuple(score.logprobs for score in scores),
            argmax_logits_eq_gold=tuple(score.is_greedy for score in scores),
            logits=tuple(score.logits for score in scores) if request.use_logits else None,
            unconditioned_logprobs=tuple(sum(prior.logprobs) for prior in priors) if priors else None,
            truncated_tokens_count=prompt.truncated,
        )

    return ScoringJob(request=request, spans=spans, shared=unconditioned, response=respond)


def perplexity_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of every token of a request's prompt.

    Raises `ModelError` if the text is empty or comes with images, or the tokenizer has no token to start it with.
    """
    if request.images:
        raise ModelError(f"The request asks for the log-probability of a text with {len(request.images)} images; expected text alone.")
    prefix, tokens = codec.encode_text(request.prompt)
    if not tokens:
        raise ModelError("The text is empty, so it has no token to score.")

    def respond(scores: Sequence[SpanScore], _: Sequence[SpanScore]) -> ModelResponse:
        logprobs = tuple(chain.from_iterable(score.logprobs for score in scores))
        return ModelResponse(
            input=request.prompt,
            input_tokens=tokens,
            output_tokens=tuple((token,) for token in tokens),
            logprobs=logprobs,
            token_logprobs=(logprobs,),
            argmax_logits_eq_gold=(all(score.is_greedy for score in scores),),
            logits=(tuple(chain.from_iterable(score.logits for score in scores)),) if request.use_logits else None,
        )

    return ScoringJob(request=request, spans=rolling_windows(prefix, tokens, codec.max_length), response=respond)
