"""A suite on a server that answers each sample at random, by the sample's own probability."""

import textwrap
from pathlib import Path
from random import Random

from servers.stub_model import is_given

from eval_dagster.statistics.significance import exact_mcnemar

NUMBERS = range(1000, 1200)
TASK = f"""
    from eval_dagster.metrics.base import CorpusMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.base import ItemMetric
    from eval_dagster.records import Completion, ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Share(CorpusMetric[Completion]):
        NAME = "share"
        STATISTICS = ("right", "samples")

        def calculate(self, response):
            return {{"right": float(response.completion_text.strip() in response.ground_truths), "samples": 1.0}}

        @classmethod
        def aggregate(cls, sums):
            return sums[..., 0] / sums[..., 1]

    class Agreement(ItemMetric[Completion]):
        NAME = "agreement"

        def calculate(self, response):
            return [response.completion_text.strip(), response.ground_truths[0]]

        @classmethod
        def aggregate(cls, items):
            return sum(said == truth for said, truth in items) / len(items)

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        ID_FIELD = "n"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch, Share, Agreement]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n}} for n in range({NUMBERS.start}, {NUMBERS.stop})]}}

        def _get_instruction_text(self, item):
            return f"Say {{item['n']}}"

        def _get_ground_truth(self, item):
            return f"number {{item['n']}}"
"""
CONFIG = """
    models:
      served:
        backend: openai
        base_url: {url}
        model: stub
        extra_body: {{user: "{user}"}}
        attempts: 1
        patience_s: 1
        concurrency: 8
        canaries: 0  # each request to the server is one of the test
        generation: {{temperature: {temperature}}}
    evals:
      numbers: {{task: "numbers.py:Numbers"}}
    suites:
      nightly: {{evals: [numbers], models: [served], baseline: {baseline}, gate: {{{gate}}}, notify: [ADDRESSES]}}
"""


def write_files(folder: Path, url: str, *, user: str, gate: str = "", temperature: float = 0.0, baseline: str = "last_passed") -> None:
    """The files of a project. Another user of the server makes all requests new ones."""
    (folder / "numbers.py").write_text(textwrap.dedent(TASK))
    config = CONFIG.format(url=url, user=user, gate=gate, temperature=temperature, baseline=baseline)
    (folder / "evals.yaml").write_text(textwrap.dedent(config))


def answers() -> dict[str, str]:
    """The right text to each prompt."""
    return {f"Say {number}": f"number {number}" for number in NUMBERS}


def chances(seed: int = 0) -> dict[str, float]:
    """How likely each prompt is answered right: 160 of 200 always, the others mostly."""
    random = Random(seed)
    return {f"Say {number}": random.uniform(0.5, 1.0) if number % 5 == 0 else 1.0 for number in NUMBERS}


def unlucky(chances: dict[str, float], *, times: int = 3) -> str:
    """The luck by which the second time of asking is significantly worse than the first, and the later ones are not so bad."""
    varying = {part: chance for part, chance in chances.items() if chance < 1}
    for number in range(100_000):
        luck = str(number)
        first, second = (_right(luck, varying, time) for time in (1, 2))
        lost = sum(a and not b for a, b in zip(first, second, strict=True))
        won = sum(b and not a for a, b in zip(first, second, strict=True))
        if won < lost and exact_mcnemar(won, lost) <= 0.04:
            later = [sum(_right(luck, varying, time)) for time in range(3, times + 1)]
            if all(2 * each > sum(first) + sum(second) for each in later):
                return luck
    raise AssertionError("no luck is that bad")


def _right(luck: str, chances: dict[str, float], time: int) -> list[bool]:
    return [is_given(luck, part, time, chance) for part, chance in chances.items()]
