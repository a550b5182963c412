"""Answers to the questions of a bridge, by `scripted_answers`."""

from eval_dagster.records import TaskSample
from eval_dagster.tasks.benchmark import Answer
from tests.peers.packages.scripted_answers import is_greedy, loglikelihood, texts


def answer(question: TaskSample) -> Answer:
    prompt, kind = str(question.prompt), question.response_type
    assert kind is not None
    context = dict(question.context)  # type: ignore[arg-type, call-overload]
    if kind.value == "completion":
        golds = [question.ground_truth] if isinstance(question.ground_truth, str) else list(question.ground_truth or ())
        return Answer(prompt=prompt, texts=texts(prompt, golds, question.num_samples or 1), context=context)
    if kind.value == "perplexity":
        return Answer(prompt=prompt, loglikelihoods=[loglikelihood(prompt, "")], context=context)
    choices = list(question.possible_completions or ())
    scores = [loglikelihood(prompt, choice) for choice in choices]
    return Answer(
        prompt=prompt,
        choices=choices,
        loglikelihoods=scores,
        is_greedy=[is_greedy(prompt, choice) for choice in choices],
        context=context,
    )
