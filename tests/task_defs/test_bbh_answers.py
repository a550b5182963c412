"""What an answer to BBH by a chain of thought says."""

import pytest

from eval_dagster.task_defs.bbh import BBHCoT


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("not True is False. So the answer is False.", "False"),
        ("So the answer is (B).", "(B)"),
        ("The answer is B", "(B)"),
        ("The answer is B. It is later.", "(B)"),
        ("The correct answer is:\n\n**(B) 02/03/2021**", "(B)"),
        ("**Answer:** yes", "yes"),
        ('First the answer is "no"; no, the answer is "yes".', "yes"),
        ("Closing them, the answer is ] ) >.", "] ) >"),
        ("The sorted list is\napple, fig, pear", "apple fig pear"),
        ("So the answer is -41.", "-41"),
        ("The answer is All of them", "All of them"),
        ("", ""),
    ],
)
def test_the_answer_is_what_is_said_last(text: str, answer: str) -> None:
    assert BBHCoT().post_process_generated_completion(text) == answer
