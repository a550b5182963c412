"""Nights of a suite on scripted models that know the answers, but for a share of them that a test chooses."""

import textwrap
from pathlib import Path

from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

SUITE = "nightly"
CONFIG = """
    models:
      mine: {{backend: scripted, function: "mine.py:answer"}}
      mine-bf16: {{backend: scripted, function: "other.py:answer"}}
      {gone}
    evals:
      capitals: {{task: capitals}}
      capitals-completion: {{task: capitals_completion, num_fewshot: 1}}
      arithmetic: {{task: arithmetic, limit: 60, num_fewshot: {shots}}}
    suites:
      nightly: {{evals: [capitals, capitals-completion, arithmetic], models: [mine, mine-bf16{also}]}}
"""
ANSWERS = '''
    """Answers of which a share is wrong: which ones, hangs on the question alone, but for a few that hang on the night."""

    from eval_dagster.versions.hashes import stable_hash
    from eval_dagster.task_defs.capitals import COUNTRIES

    CAPITALS = {{country.name: country.capital for country in COUNTRIES}}
    WRONG = {wrong}
    NIGHT = {night}

    def chance(*what):
        return int(stable_hash(["{name}", *what])[:8], 16) / 16**8

    def correct(question):
        country = question.partition("the capital of ")[2].partition("?")[0]
        if country:
            return CAPITALS[country]
        a, sign, b = question.partition("What is ")[2].partition("?")[0].split()
        return str({{"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}}[sign])

    def answer(request):
        question = request.prompt.rpartition("Q: ")[2]
        kind = "capitals" if request.choices else "sums" if "What is the" not in question else "completion"
        share = WRONG[kind]
        is_wrong = chance(question, NIGHT) < share if chance(question) < 0.08 else chance(question, "lasting") < share
        right = correct(question)
        if request.choices:
            good = [choice.strip() == right for choice in request.choices]
            return [-0.3 if each != is_wrong else -1.5 - 0.1 * place for place, each in enumerate(good)]
        if not is_wrong:
            return right
        if kind == "sums":
            return f"{{right}}0 <script>alert(1)</script>"
        return f"I think that it is {{sorted(CAPITALS.values())[len(question)]}}."
'''
STEADY = {"capitals": 0.18, "completion": 0.3, "sums": 0.35}


class Nights:
    """A home with a suite that can be evaluated again and again."""

    def __init__(self, folder: Path, *, with_gone: bool = False) -> None:
        self.folder = folder
        self._with_gone = with_gone
        self._night = 0

    def run(
        self,
        *,
        shots: int = 1,
        run_id: str | None = None,
        same_night: bool = False,
        other: dict[str, float] | None = None,
        **wrong: float,
    ) -> list[Outcome]:
        """Evaluate the suite once.

        Args:
            shots: Few-shot examples of the sums.
            run_id: Of the run; `night-<number>` where not given.
            same_night: Whether what hangs on the night alone stays as it was.
            other: Shares of wrong answers of the model `mine-bf16`.
            wrong: Shares of wrong answers of the model `mine`: of `capitals`, `completion` and `sums`.
        """
        self._night += not same_night
        self.write_models(other=other, **wrong)
        project = self.project(shots=shots)
        evals, models = project.select(suite=SUITE)
        partitions = [(eval_name, model) for model in models for eval_name in evals]
        return list(evaluate(project, partitions, stages=set(STAGES), run_id=run_id or f"night-{self._night}", reporter=SilentReporter()))

    def write_models(self, *, other: dict[str, float] | None = None, **wrong: float) -> None:
        """Write the code of the models as `run` does."""
        for name, shares in (("mine", wrong), ("other", other or {})):
            text = ANSWERS.format(wrong=STEADY | shares, night=self._night, name=name)
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text))
        (self.folder / "gone.py").write_text("raise OSError('the weights are not there')")

    def project(self, *, shots: int = 1) -> Project:
        """The checkout as it is now."""
        gone = 'gone: {backend: scripted, function: "gone.py:answer"}' if self._with_gone else ""
        text = CONFIG.format(gone=gone, also=", gone" if self._with_gone else "", shots=shots)
        path = self.folder / "evals.yaml"
        path.write_text(textwrap.dedent(text))
        return Project.open(config_path=path, home=self.folder / "home")
