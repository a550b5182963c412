"""BBH: BIG-Bench Hard."""

import re
from typing import ClassVar

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.base import BaseTask

_ORDER = "A logical deduction task which requires deducing the order of a sequence of objects."
_SWAPS = (
    "A task requiring determining the final positions of a set of objects given their initial positions and a description of a sequence "
    "of swaps."
)
_DESCRIPTIONS = {
    "boolean_expressions": "Evaluate the result of a random Boolean expression.",
    "causal_judgement": "Answer questions about causal attribution.",
    "date_understanding": "Infer the date from context.",
    "disambiguation_qa": "Clarify the meaning of sentences with ambiguous pronouns.",
    "dyck_languages": "Correctly close a Dyck-n word.",
    "formal_fallacies": "Distinguish deductively valid arguments from formal fallacies.",
    "geometric_shapes": "Name geometric shapes from their SVG paths.",
    "hyperbaton": "Order adjectives correctly in English sentences.",
    "logical_deduction_five_objects": _ORDER,
    "logical_deduction_seven_objects": _ORDER,
    "logical_deduction_three_objects": _ORDER,
    "movie_recommendation": "Recommend movies similar to the given list of movies.",
    "multistep_arithmetic_two": "Solve multi-step arithmetic problems.",
    "navigate": "Given a series of navigation instructions, determine whether one would end up back at the starting point.",
    "object_counting": "Questions that involve enumerating objects and asking the model to count them.",
    "penguins_in_a_table": "Answer questions about a table of penguins and their attributes.",
    "reasoning_about_colored_objects": "Answer extremely simple questions about the colors of objects on a surface.",
    "ruin_names": "Select the humorous edit that 'ruins' the input movie or musical artist name.",
    "salient_translation_error_detection": "Detect the type of error in an English translation of a German source sentence.",
    "snarks": "Determine which of two sentences is sarcastic.",
    "sports_understanding": "Determine whether an artificially constructed sentence relating to sports is plausible or not.",
    "temporal_sequences": "Task description: Answer questions about which times certain events could have occurred.",
    "tracking_shuffled_objects_five_objects": _SWAPS,
    "tracking_shuffled_objects_seven_objects": _SWAPS,
    "tracking_shuffled_objects_three_objects": _SWAPS,
    "web_of_lies": "Evaluate a random boolean function expressed as a word problem.",
    "word_sorting": "Sort a list of words.",
}
_SAID = re.compile(r"(?s:.*)\banswer(?:\s+is|\s*:)[\s:*]*(.+)", re.IGNORECASE)
_OPTION = re.compile(r"\(([A-Z])\)|\A([A-Z])(?:[.:)]|\Z)")


class BBH(BaseTask[str]):
    """27 tasks of BIG-Bench on which models were weaker than people (Suzgun et al. 2022, arXiv:2210.09261), answered at once.

    Three examples by default. They are other rows of the task, since the dataset does not hold the paper's.
    """

    NAME = "BBH"
    DATASET_PATH = "lukaemon/bbh"
    DATASET_REVISION = "982bb89fd79532a8ac676a61fc42eb1aeec63f99"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT: ClassVar[str | None] = "test"
    NUM_FEWSHOT = 3  # Suzgun et al. 2022; lm-eval
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    HEADLINE_AGGREGATION = "macro"
    SUBJECTS = tuple(_DESCRIPTIONS)
    STOP_SEQUENCES: ClassVar[tuple[str, ...]] = ("Q:", "\n\n")
    MAX_TOKENS = 256  # as in lm-eval
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/lukaemon/bbh (MIT, as https://github.com/suzgunmirac/BIG-Bench-Hard)"

    def _get_initial_prompt_text(self, item: Row) -> str:
        return _DESCRIPTIONS[item["subject"]]

    def _get_instruction_text(self, item: Row) -> str:
        return f"Q: {item['input']}\nA:"

    def _get_ground_truth(self, item: Row) -> str | list[str] | None:
        return str(item["target"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['target']}"


class BBHCoT(BBH):
    """BBH by chains of thought, without examples, since the rows hold no reasoning. The answer counts in upper or lower case."""

    NAME = "BBH (chain of thought)"
    FEWSHOT_SPLIT = None
    NUM_FEWSHOT = 0  # its rows hold no reasoning
    STOP_SEQUENCES = ("Q:",)
    MAX_TOKENS = 1024

    def _get_instruction_text(self, item: Row) -> str:
        return f"{super()._get_instruction_text(item)} Let's think step by step."

    def _get_ground_truth(self, item: Row) -> str | list[str] | None:
        target = _bare(item["target"])
        return list(dict.fromkeys([target, target.lower(), target.upper(), target.capitalize()]))

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" So the answer is {item['target']}."

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:  # noqa: ARG002
        """The last stated answer, else the last line. If it is an option, its letter in parentheses."""
        said = _SAID.match(completion_text)
        answer = _bare(said[1] if said else completion_text.strip().rpartition("\n")[2])
        option = _OPTION.search(answer)
        return f"({option[1] or option[2]})" if option else answer


def _bare(text: str) -> str:
    """The text without marks of Markdown, quotes, commas and a full stop."""
    return text.replace(",", "").strip(" *_`\"'$.")
