"""The registry of the package that the tests write."""

from eval_dagster.bridges.processes import ProcessRegistry


class QuizRegistry(ProcessRegistry):
    NAME = "quiz"
    WORKER = "tests.eval_dagster.bridges.quiz_worker"
    DISTRIBUTION = "quizbook"
    PACKAGES = ("quizbook",)
