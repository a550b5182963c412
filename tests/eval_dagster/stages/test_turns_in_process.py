"""Episodes on a model in this process: it keeps keys and values between their turns, and not for evals of one question."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.project import Project
from eval_dagster.stages.partition import StageResult

TASK = """
    import eval_dagster as ed


    class Talk(ed.EpisodeTask):
        NAME = "Talk"
        DATASET_PATH = "talk"
        SAMPLE_SPLIT = "test"
        METRICS = (ed.ExactMatch,)

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(4)]}

        def _get_instruction_text(self, item):
            return f"Here are the first words of the conversation number {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])

        async def episode(self, sample, roles, tools):
            messages = list(sample.messages)
            for turn in range(TURNS):
                answer = await roles.subject.ask(messages, max_tokens=6)
                messages += [answer.message, ed.Message(role=ed.Role.USER, content=f"And turn {turn}?")]
            return answer


    class Talks(Talk):
        NAME = "Talks"


    TURNS = 4
"""


def reason_of(result: StageResult) -> str:
    return result.file.info.notes["generation_reason"]


@pytest.mark.long
def test_turns_are_not_read_again(open_project: Callable[..., Project], write: Callable[[str, str], Path], tiny_model: Path) -> None:
    write("talk.py", TASK)
    project = open_project(
        f"""
        models:
          tiny: {{backend: transformers, source: {{folder: {tiny_model}}}, device: cpu}}
        evals:
          talk: {{task: talk.py:Talk}}
          sums: {{task: arithmetic, limit: 2}}
        """
    )
    results, failures = run_all(project, [("sums", "tiny")])
    assert not failures
    assert "kept" not in reason_of(results["model_outputs", "sums"])
    results, failures = run_all(project, [("talk", "tiny")])
    assert not failures
    talked = results["model_outputs", "talk"]
    assert reason_of(talked).endswith("; keys and values are kept between turns")
    assert talked.file.info.counts["turns_computed"] == 16
    # Reading each prompt computes two thirds of what is asked, since only the beginnings of one turn's prompts are shared.
    counts = talked.file.info.counts
    assert counts["run_tokens_computed"] < 0.45 * counts["run_tokens_asked"]
