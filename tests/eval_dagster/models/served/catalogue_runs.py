"""Evaluates samples by a server that does one thing of the catalogue wrong, and says what came of it."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.catalogue import Wrong
from servers.processes import RunningServer, running_server
from servers.stub import stub_server

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, Partition, StageFailure

CONFIG = """
    models:
      served:
        {{backend: openai, base_url: "{base_url}", model: stub, canaries: 0, pin: "{pin}", timeout_s: 2, patience_s: 60, attempts: 3,
          concurrency: 32, prompt_format: {prompt_format}}}
    evals:
      numbers: {{task: "word_tasks.py:{task}", limit: {samples}}}
"""
TASKS = '''
    from eval_dagster import AccuracyLoglikelihood, BaseTask, ExactMatch, ResponseType

    WORDS = ("red", "green", "blue", "moon")

    class Texts(BaseTask[str]):
        """Which word stands for a number? The words are those of the server, so that some answers are right."""

        NAME, DATASET_PATH, SAMPLE_SPLIT = "Texts", "own", "test"
        RESPONSE_TYPE, METRICS, MAX_TOKENS = ResponseType.COMPLETION, [ExactMatch], 8

        def _load_dataset(self, subject):
            return {"test": [{"number": number} for number in range(2000)]}

        def _get_instruction_text(self, item):
            marked = " marked" if item["number"] == 7 else ""
            return f"Which word stands for the{marked} number {item['number']}?"

        def _get_ground_truth(self, item):
            return f"{WORDS[item['number'] % 4]} it is"

    class Choices(Texts):
        """The same, by the log-probabilities of the words."""

        NAME = "Choices"
        RESPONSE_TYPE, METRICS = ResponseType.LOGLIKELIHOODS, [AccuracyLoglikelihood]

        def _get_possible_completions(self, item):
            return [f" {word}" for word in WORDS]

        def _get_ground_truth(self, item):
            return f" {WORDS[item['number'] % 4]}"
'''
_WORDS = ("red", "green", "blue", "moon")
_STAGES = [stage for stage in STAGES if stage != "task_metrics"]
Answers = dict[str, tuple[Any, ...]]
"""What the model answered, by sample: its texts and log-probabilities, and the score."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of an evaluation."""

    answers: Answers
    """Those without an error."""
    errors: dict[str, str]
    lost: str | None
    """Why there is no result."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one entry of the catalogue, in one way."""

    errors: int
    """Samples with an error, before the second run."""
    wrong: int
    """Requests about samples that went wrong."""
    problems: list[str]
    """What must not be."""
    is_kept: bool = False
    """Whether the errors are final."""

    @property
    def word(self) -> str:
        """The outcome in the table: fewer errors than a quarter of what went wrong are those of requests that went wrong each time."""
        if self.errors == 0 or (self.wrong > 1 and 4 * self.errors < self.wrong and not self.is_alone):
            return "same"
        return "kept error" if self.is_kept else "error"

    is_alone: bool = False
    """Whether it was one prompt alone."""


class Runs:
    """Evaluations of one kind."""

    def __init__(self, kind: str, folder: Path, proxy: RunningServer) -> None:
        self._kind, self._folder, self._proxy = kind, folder, proxy
        self._right: dict[int, Answers] = {}
        self._count = 0

    def outcome(self, wrong: Wrong, share: float, samples: int) -> Outcome:
        """Evaluate beside the wrong, and again without it. A share of 0 is the one prompt alone."""
        if samples not in self._right:
            ran = self._run(f"right {samples}", samples)
            assert ran.lost is None, ran.lost
            assert not ran.errors, next(iter(ran.errors.values()))
            assert len(ran.answers) == samples
            self._right[samples] = ran.answers
        right = self._right[samples]
        self._count += 1
        pin = f"{wrong.area}: {wrong.name} {share} {self._count}"
        self._control("reset")
        self._control("apply", name=f"{wrong.area}: {wrong.name}", share=share)
        first = self._run(pin, samples)
        night = self._run(pin, samples) if share == 0 and first.errors else first
        counts = self._control("apply", name="", share=0)
        asked = sum(counts["received"].values())
        second = self._run(pin, samples)
        after = self._control("reset_not")
        again = sum(after["received"].values()) - asked
        final = {
            name for name, error in first.errors.items() if error.startswith(("ContentFilterError", "RefusalError", "PromptTooLongError"))
        }
        problems = []
        if lost := first.lost or night.lost or second.lost:
            problems.append(f"the eval is lost: {lost}")
        if not counts["wrong"]:
            problems.append("nothing went wrong")
        for when, ran in (("", first), (" in the second night", night), (" after the second run", second)):
            if other := [name for name, answer in ran.answers.items() if answer != right[name]]:
                problems.append(f"{len(other)} other answers{when}, such as {ran.answers[other[0]]} for {right[other[0]]}")
        if second.errors.keys() != final:
            left = {name: error for name, error in second.errors.items() if name not in final}
            problems.append(f"{len(left)} samples are not healed: {next(iter(left.values()), 'kept errors are gone')}")
        missing = len(night.errors.keys() - final)  # a server that does wrong may answer rightly a night later
        a_sample = self._calls_a_sample
        # Some calls of the first run may arrive late.
        if not missing <= again <= missing * a_sample + (3 * a_sample if missing and a_sample > 1 else 0):
            problems.append(f"the second run asked {again} requests for {missing} samples")
        # A request with several calls is asked again as a whole where one of them fails.
        twice = [key for key, count in after["right"].items() if count > 1]
        if a_sample == 1 and wrong.connection not in ("late", "second answer") and twice:
            problems.append(f"{len(twice)} requests were answered rightly twice")
        return Outcome(errors=len(first.errors), wrong=counts["wrong"], problems=problems, is_kept=bool(final), is_alone=share == 0)

    @property
    def _calls_a_sample(self) -> int:
        return 1 if self._kind == "chat" else 4

    def _control(self, what: str, **body: Any) -> Any:
        return self._proxy.post(f"/control/{what}", body)

    def _run(self, pin: str, samples: int) -> Ran:
        self._control("begin")
        task, prompt_format = ("Texts", "chat") if self._kind == "chat" else ("Choices", "plain")
        config = CONFIG.format(
            base_url=self._proxy.base_url,
            pin=pin.replace('"', "'").replace("\\", ""),
            task=task,
            samples=samples,
            prompt_format=prompt_format,
        )
        (self._folder / "evals.yaml").write_text(textwrap.dedent(config))
        project = Project.open(config_path=self._folder / "evals.yaml", home=self._folder / "home")
        outcomes = list(evaluate(project, [("numbers", "served")], stages=_STAGES, run_id="run", reporter=SilentReporter()))
        failures = [each for each in outcomes if isinstance(each, StageFailure)]
        if failures:
            return Ran(answers={}, errors={}, lost=failures[0].message)
        partition = Partition(project=project, eval_name="numbers", model="served", run_id="run")
        scores = {row["sample_id"]: row["value"] for row in read_rows(partition.require("sample_scores").path)}
        rows = read_rows(partition.require("model_outputs").path)
        return Ran(
            answers={
                row["sample_id"]: (row["text"], row["choice_logprobs"], scores[row["sample_id"]]) for row in rows if row["error"] is None
            },
            errors={row["sample_id"]: row["error"] for row in rows if row["error"] is not None},
            lost=None,
        )


@contextmanager
def runs_of(kind: str, folder: Path) -> Iterator[Runs]:
    """Evaluations of a kind, with servers of their own."""
    (folder / "word_tasks.py").write_text(textwrap.dedent(TASKS))
    settings: dict[str, Any] = {"echo": "ignored" if kind == "forced" else "right"}
    if kind == "chat":  # four of five answers are right
        settings["answers"] = {f"number {number}?": f"{_WORDS[(number + (number % 5 == 0)) % 4]} it is" for number in range(500)}
    with (
        stub_server(folder, sigma=0, **settings) as stub,
        running_server("catalogue_program", stub.server.url, model=stub.model, folder=folder) as proxy,
    ):
        yield Runs(kind, folder, proxy)
