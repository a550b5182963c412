"""The counts of a file of `responses`: all answers of an eval, and those that its run got from the model."""

from collections.abc import Sequence

from eval_dagster.lake.tables.columns import Answer, AnswerRow, PromptRow, ResponseRow
from eval_dagster.stages.answer_counts import Costs, Mixed, Seconds
from eval_dagster.stages.episodes import EndedEpisode
from eval_dagster.stages.inference import Asker, ModelRun
from eval_dagster.versions.seen_ids import SeenIds


class Counts:
    """The counts of an eval's answers, which come in the order of its prompts.

    A request shared by samples or evals is sent once, and counted in one eval.
    """

    def __init__(self, *, has_price: bool) -> None:
        self.requests = 0
        self.invalid = 0
        """Prompts with an error of their own."""
        self.is_asked = False
        """Whether an answer of this run is among them."""
        self.mixed = Mixed()
        self.costs, self.seconds = Costs(has_price=has_price), Seconds()
        self.of_run, self.costs_of_run, self.seconds_of_run = SeenIds(), Costs(has_price=has_price), Seconds()
        self.computed, self.model_seconds = 0, 0.0
        self.sums = dict.fromkeys(("errors", "prompt_tokens", "output_tokens"), 0)
        self.faults = dict.fromkeys(("retryable_errors", "cut_at_max_tokens", "cut_in_reasoning", "escaped", "truncated"), 0)
        self.turns = self.turns_computed = 0
        """Requests of episodes."""
        self.tokens_asked = self.tokens_unknown = self.without_scores = 0

    def add(self, prompt: PromptRow, answer: Answer, response: ResponseRow, asker: Asker, eval_name: str) -> None:
        """Add the answer to the next prompt, as it is stored in the cache and in `responses`."""
        run = asker.run
        name, is_error = prompt["request_id"], answer["error"] is not None
        self.requests += 1
        self.invalid += prompt["error"] is not None
        for each in (self.mixed, self.costs, self.seconds):
            each.add(answer)
        self.sums["errors"] += is_error
        self.sums["prompt_tokens"] += answer["prompt_tokens"] or 0
        self.sums["output_tokens"] += answer["output_tokens"] or 0
        self.faults["retryable_errors"] += response["retryable"]
        self.faults["cut_at_max_tokens"] += "length" in response["finish_reason"]
        self.faults["cut_in_reasoning"] += "reasoning" in response["finish_reason"]
        self.faults["escaped"] += response["text_is_escaped"]
        self.faults["truncated"] += response["truncated_tokens"] > 0
        # A server may leave out counts of tokens, and log-probabilities of given tokens.
        is_unknown = not is_error and None in (answer["prompt_tokens"], answer["output_tokens"])
        self.tokens_unknown += bool(answer.get("attempts")) and is_unknown
        self.without_scores += (answer["error"] or "").startswith("NoScoresError")
        if prompt["error"] is None and name in asker.answered:
            given = run.answers.get(name)
            self.is_asked = True
            self.tokens_asked += _tokens_asked(prompt["choices"], answer if given is None else given)
            if given is not None and run.owners[name] == eval_name and self.of_run.times(name) == 1:
                self.computed += 1
                self.model_seconds += given["latency_s"]
                self.costs_of_run.add(given)
                self.seconds_of_run.add(given)

    def add_episode(self, ended: EndedEpisode, response: ResponseRow) -> None:
        """Add an episode, which counts as one request, with its row of `responses`."""
        whole, answers = ended.whole, ended.answers
        self.requests += 1
        self.sums["errors"] += whole["error"] is not None
        self.sums["prompt_tokens"] += whole["prompt_tokens"] or 0
        self.sums["output_tokens"] += whole["output_tokens"] or 0
        self.faults["retryable_errors"] += response["retryable"]
        self.faults["cut_at_max_tokens"] += "length" in response["finish_reason"]
        self.faults["cut_in_reasoning"] += "reasoning" in response["finish_reason"]
        self.faults["escaped"] += response["text_is_escaped"]
        self.faults["truncated"] += any(each["truncated_tokens"] > 0 for each in answers)
        self.turns += len(answers) + len(ended.of_roles)
        self.turns_computed += len(ended.asked) + len(ended.asked_of_roles)
        for each in answers:
            for part in (self.mixed, self.costs, self.seconds):
                part.add(each)
        for _, each in ended.of_roles:
            self.costs.add(each)
        for each in ended.asked_of_roles:
            self.costs_of_run.add(each)
        for each in ended.asked:
            self.is_asked = True
            self.tokens_asked += _tokens_asked(None, each)
            self.model_seconds += each["latency_s"]
            self.costs_of_run.add(each)
            self.seconds_of_run.add(each)
        self.computed += bool(ended.asked or ended.asked_of_roles)

    def of_this_run(self, run: ModelRun) -> dict[str, float]:
        """The counts of all answers, and of the answers that this run got from the model."""
        costs = self.costs_of_run.counts() | self.seconds_of_run.counts()
        if run.look_cost:  # in one eval of the run
            costs["cost"], run.look_cost = costs.get("cost", 0.0) + run.look_cost, 0.0
        return {
            "requests_computed": self.computed,
            "requests_cached": self.requests - self.computed - self.invalid,
            **({"turns": self.turns, "turns_computed": self.turns_computed} if self.turns else {}),
            **self.sums,
            "model_seconds": round(self.model_seconds, 3),
            **{f"{name}_computed": count for name, count in costs.items()},
        }


def _tokens_asked(choices: Sequence[str] | None, answer: AnswerRow) -> int:
    """The number of tokens a model reads to answer a request if nothing is shared: the prompt for each choice or text, and the choices.

    The last token of a choice is only predicted. A text that is scored as a whole is read once. Not counted: tokens of generated texts,
    prompts without context, and the overlap of windows over a long text.
    """
    prompt_tokens = int(answer["prompt_tokens"] or 0)
    if answer.get("attempts"):  # a server counts the tokens of all calls
        return prompt_tokens
    if choices is None:
        return prompt_tokens * max(1, len(answer["text"]))
    return sum(prompt_tokens + len(tokens) - 1 for tokens in answer["choice_token_logprobs"] if prompt_tokens)
