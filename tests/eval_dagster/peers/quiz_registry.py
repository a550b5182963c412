"""The registry of the package that the tests write."""

from eval_dagster.peers.processes import ProcessRegistry


class QuizRegistry(ProcessRegistry):
    NAME = "quiz"
    WORKER = "tests.eval_dagster.peers.quiz_worker"
    DISTRIBUTION = "quizbook"
    PACKAGES = ("quizbook",)
