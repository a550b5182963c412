"""Looks at the border inputs of a server: the search for them, and the draws of tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.tables.events import EndpointAnswer
from eval_dagster.models.served.borders import (
    BATCH,
    DRAWS,
    FIRST_DRAWS,
    MORE_DRAWS,
    MOST_INPUTS,
    SECOND_DRAWS,
    SUSPICION,
    Borders,
    Draws,
    Found,
    border_call,
    is_at_border,
    problem_of,
    random_names,
)
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.canaries import Answer
from eval_dagster.models.served.scoring.responses import CallReply
from eval_dagster.models.served.watch import answer_rows


@dataclass(frozen=True, kw_only=True)
class BorderLook:
    """The findings of one look at border inputs; empty if none were asked."""

    draws: Draws = field(default_factory=dict)
    """Tokens of the inputs that were known before, and of the ones that a search found."""
    n_searched: int = 0
    p_value: float | None = None
    said: Sequence[str] = ()
    """The findings in words."""

    def rows(self, tokens: Mapping[str, str], wanted: int) -> list[EndpointAnswer]:
        """The draws as `endpoint_states` holds them. `tokens` are counted in the draws of known inputs, of which so many are `wanted`."""
        return [
            {
                "asked": name,
                "is_canary": True,
                "reference": answer_rows([Answer(text=tokens[name])] if name in tokens else []),
                "answers": answer_rows(Answer(text=text, is_cut=True) for text in drawn),
                "difference": None,
                "noise": None,
                "error": f"{wanted - len(drawn)} of {wanted} draws failed" if name in tokens and len(drawn) < wanted else None,
            }
            for name, drawn in self.draws.items()
        ]


class BorderLooker:
    """Asks a server for first tokens."""

    def __init__(self, config: OpenAIModel, replies: Callable[[Sequence[Call]], Sequence[CallReply | BadAnswerError]]) -> None:
        """`replies` sends calls, and gives their replies in the same order."""
        self._config = config
        self._replies = replies
        self._random = SystemRandom()
        """For prompts and seeds: other ones in each look."""

    def look(self, known: Borders, before: BorderLook | None, *, may_search: bool) -> BorderLook:
        """Draw tokens from the border inputs, and search for more of them where too few are known and nothing is suspected.

        In a second look, the draws are added to the ones of the look `before`. Raises `StoppedError` if no request can succeed.
        """
        first: Draws = {} if before is None else before.draws
        drawn, _ = self._draw(list(known.tokens), DRAWS if before is None else MORE_DRAWS)
        draws = {name: [*first.get(name, ()), *drawn[name]] for name in known.tokens}
        verdict = known.judge(draws)
        found = Found()
        if before is None and may_search and known.to_search and (verdict.p_value is None or verdict.p_value >= SUSPICION):
            found = self._search(known.to_search, MOST_INPUTS - len(known.tokens))
        said = [verdict.said] if known.tokens else []
        if found.n_prompts or found.problem:
            said.append(found.described())
        elif known.is_hopeless:
            said.append(f"none of {known.searched} prompts is a border input, as on a server that ignores the temperature: texts decide")
        return BorderLook(draws={**draws, **found.draws}, n_searched=found.n_prompts, p_value=verdict.p_value, said=said)

    def _search(self, prompts: int, wanted: int) -> Found:
        """Search so many random prompts for border inputs; fewer if as many as are `wanted` are found, or if there can be none."""
        limit = self._config.requests_per_minute
        names = random_names(prompts if limit is None else max(BATCH, min(prompts, limit // FIRST_DRAWS)), self._random)
        found: dict[str, list[str]] = {}
        for start in range(0, len(names), BATCH):
            drawn, error = self._draw(names[start : start + BATCH], FIRST_DRAWS)
            if (problem := problem_of(drawn, error)) is not None:
                return Found(draws=found, n_prompts=start + sum(map(bool, drawn.values())), problem=problem)
            more, _ = self._draw([name for name, tokens in drawn.items() if len(set(tokens)) > 1], SECOND_DRAWS)
            found |= {name: tokens for name in more if is_at_border(tokens := [*drawn[name], *more[name]])}
            if len(found) >= wanted:
                break
        return Found(draws=dict(list(found.items())[:wanted]), n_prompts=min(start + BATCH, len(names)))

    def _draw(self, names: Sequence[str], times: int) -> tuple[dict[str, list[str]], str | None]:
        """So many tokens of each border input or prompt, fewer where calls fail; and the first error."""
        asked = [name for _ in range(times) for name in names]
        drawn: dict[str, list[str]] = {name: [] for name in names}
        error = None
        for name, reply in zip(asked, self._replies([border_call(name, self._config, self._random) for name in asked]), strict=True):
            if isinstance(reply, CallReply):
                drawn[name].append(reply.reply.content.text)
            else:
                error = error or f"{reply.kind}: {reply}"
        return drawn, error


def border_calls(config: OpenAIModel, known: Borders) -> list[Call]:
    """About the calls of a look: draws of known inputs, and a search for more."""
    if not config.border_canaries:
        return []
    random = SystemRandom()
    draws = len(known.tokens) * DRAWS + known.to_search * (FIRST_DRAWS + SECOND_DRAWS // FIRST_DRAWS)
    return [border_call(name, config, random) for name in random_names(draws, random)]
