"""The registry of the package that the tests write."""

from types import MappingProxyType

from eval_dagster.errors import DataError, RequirementError
from eval_dagster.peers.processes import ProcessRegistry


def doubled(text: str) -> str:
    if text == "much":
        raise RequirementError("this machine cannot double so much")
    if text == "nothing":
        raise DataError("nothing cannot be doubled")
    return 2 * text


class QuizRegistry(ProcessRegistry):
    NAME = "quiz"
    WORKER = "tests.eval_dagster.peers.quiz_worker"
    DISTRIBUTION = "quizbook"
    PACKAGES = ("quizbook",)
    READS_FILES = True
    ASKED = MappingProxyType({"doubled": doubled})
