"""Ports and ships, in lighteval's style: every kind of metric, and a file beside it."""

import numpy as np
from aenum import extend_enum
from inspect_ai.dataset import Sample
from inspect_ai.scorer import choice, scorer
from inspect_ai.solver import generate
from lighteval.metrics.metrics import Metrics, SampleLevelMetric, math_scorer
from lighteval.metrics.metrics_sample import JudgeLLM, SampleLevelComputation
from lighteval.metrics.utils.metric_utils import SampleLevelMetricGrouping
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod
from lighteval.tasks.tasks.harbour.flags import flag_of
from lighteval.utils.imports import is_package_available, requires


def port_prompt(line, task_name: str = ""):
    return Doc(
        task_name=task_name,
        query=f"Name a port.\n\nCountry: {line['country']}\nPort:",
        choices=[f" {port}" for port in line["ports"]],
        gold_index=line["gold"],
        instruction="Name a port.\n\n",
        specific={"flag": flag_of(line["country"]), "few": line["__few_shots"]},
    )


@requires("a_package_of_nobody")
def needy_prompt(line, task_name: str = ""):
    return port_prompt(line, task_name)


class Letters(SampleLevelComputation):
    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs):
        text = model_response.final_text[0]
        return {"is_long": len(text) > 3, "letters": [letter.isupper() for letter in text], "flag": len(doc.specific["flag"])}


def share(items):
    flat = [each for item in items for each in item]
    return sum(flat) / len(flat)


letters = SampleLevelMetricGrouping(
    metric_name=["is_long", "letters", "flag"],
    higher_is_better={"is_long": True, "letters": True, "flag": False},
    category=SamplingMethod.GENERATIVE,
    sample_level_fn=Letters(),
    corpus_level_fn={"is_long": np.mean, "letters": share, "flag": np.sum},
)


class Judge(JudgeLLM):
    def __init__(self):
        super().__init__(judge_model_name="judge", template=None, judge_backend="nobody")


judged = SampleLevelMetric(
    metric_name="judged", higher_is_better=True, category=SamplingMethod.GENERATIVE, sample_level_fn=Judge(), corpus_level_fn=np.mean
)
extend_enum(Metrics, "letters_of_ports", letters)


@scorer(metrics=[choice()])
def port_scorer():
    async def score(state, target):
        raise NotImplementedError

    return score


def config(name, **settings):
    given = {"name": name, "prompt_function": port_prompt, "hf_repo": "./ports", "hf_subset": "default", "evaluation_splits": ["test"]}
    return LightevalTaskConfig(**{**given, "few_shots_split": "train", "stop_sequence": ["\n"], "generation_size": -1, **settings})


TASKS_TABLE = [
    config(
        "ports:choice",
        metrics=[Metrics.loglikelihood_acc, "mcc", Metrics.target_perplexity],
        evaluation_splits=["test", "train"],
        suite=("community",),
        sample_fields=lambda line: Sample(input=line["country"]),
        solver=[generate(cache=True)],
        scorer=port_scorer(),
    ),
    config("ports:text", metrics=[Metrics.exact_match, Metrics.bleu, Metrics.letters_of_ports, judged], scorer=math_scorer()),
    config("ports:several", metrics=[Metrics.pass_at_k(sample_params={"k": 1, "n": 2}), Metrics.maj_at_n(sample_params={"n": 3})]),
    config("ports:whole", metrics=[Metrics.word_perplexity, Metrics.bits_per_byte]),
    config("ports:needy", prompt_function=needy_prompt, metrics=[Metrics.exact_match]),
]
if is_package_available("a_package_of_nobody"):
    TASKS_TABLE = []
