"""Every code block of the documents that this task API follows runs, and defines what it says."""

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel
from scored_tasks import IMPORTS, Scored, project_of, scored

from eval_dagster.errors import DataError
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.peers.aliases import aliases
from eval_dagster.peers.eval_framework.metrics import AccuracyLoglikelihood as TheirAccuracy
from eval_dagster.peers.eval_framework.metrics import DistributionalCorrectnessScore, TernaryScore
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Message, ModelResponse, ResponseType, Role, Row
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import OrderedTask
from eval_dagster.tasks.doc import Doc, doc_task
from eval_dagster.tasks.samples import build_samples

SEEDS = Path(os.environ.get("EVAL_DAGSTER_SHARED") or Path(__file__).resolve().parents[4] / "shared") / "seeds"
pytestmark = pytest.mark.skipif(
    not SEEDS.is_dir(), reason=f"no documents in {SEEDS}: set EVAL_DAGSTER_SHARED to a folder that holds seeds/"
)

_STARTS_CODE = re.compile(r"(from [\w.]+ import \w|import \w+$|class \w+.*:$|def \w+\(|@\w|# |\w+ = \w+\($)")


class ExistingTask(BaseTask[str]):
    """What a fragment presupposes."""

    NAME = "Existing"
    DATASET_PATH = SAMPLE_SPLIT = "existing"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)
    SUBJECTS = ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return "Sure?"

    def _get_ground_truth(self, item: Row) -> str:
        return " yes"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [" yes", " no"]


PRESUPPOSED = {
    each.__name__: each
    for each in (
        BaseModel, BaseTask, ResponseType, Message, Role, AccuracyLoglikelihood, TernaryScore, DistributionalCorrectnessScore, ExistingTask,
        Doc, ModelResponse,
    )
} | {"Any": Any, "pil_image": Image.new("RGB", (2, 2))}  # fmt: skip


def fenced(text: str) -> list[str]:
    """The blocks of a Markdown document."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def unfenced(text: str) -> Iterator[str]:
    """The blocks of a document that lost its marks: a block begins with a line that can only be code, and goes on while lines are
    indented, open brackets are not closed, or more such lines follow.
    """
    block: list[str] = []
    for line in [*text.splitlines(), "The end."]:
        is_open = _depth(block) > 0
        if is_open or _STARTS_CODE.match(line) or (block and (not line.strip() or line[0].isspace() or line == ")")):
            block.append(line)
            continue
        if code := _healed("\n".join(block).strip()):
            yield code
        block = []


def _depth(block: list[str]) -> int:
    # Brackets in texts of these documents are balanced.
    return sum(line.count(opening) - line.count(closing) for line in block for opening, closing in ("()", "[]"))


def _healed(code: str) -> str:
    """The code with texts that a line break parted put together again."""
    lines: list[str] = []
    for line in code.split("\n"):
        if lines and lines[-1].count('"') % 2:
            lines[-1] += f"\\n{line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def blocks_of(name: str) -> list[str]:
    text = (SEEDS / name).read_text()
    return fenced(text) if name.endswith(".md") else list(unfenced(text))


def run(name: str, position: int) -> dict[str, Any]:
    """What a block defines; imports by the names of eval-framework and lighteval work in it."""
    names = {**PRESUPPOSED, "__name__": __name__}
    with aliases():
        exec(compile(blocks_of(name)[position], f"{name}, block {position}", "exec"), names)
    return {key: value for key, value in names.items() if key not in ("__builtins__", "__name__") and value is not PRESUPPOSED.get(key)}


def task_with(**attributes: Any) -> BaseTask[Any]:
    """A task that takes a fragment's functions for its hooks."""
    return type("Fragment", (ExistingTask,), attributes)()


def render(task: type[BaseTask[Any]], *rows: Row, subject: str = "all", fewshot: int = 0) -> RenderedPrompt:
    check_task(task)
    made, samples = task(), build_samples({"test": rows}, subject)
    if isinstance(made, OrderedTask):
        made = task(num_fewshot=fewshot)  # type: ignore[assignment]
        made.prepare(build_samples({"test": rows[:1], str(made.FEWSHOT_SPLIT): rows[1:]}, subject))
    rendering = Rendering(task=made, formatter=ConcatFormatter(), num_fewshot=fewshot)
    (prompt,) = render_sample(rendering, samples[0], fewshot_pool(made, samples))
    return prompt


GUIDE, OVERVIEW = "loglikelihood_task_guide.txt", "overview_dataloading.md"
DOC, RESPONSE = "lighteval_doc.txt", "lighteval_model_output.txt"


@pytest.mark.parametrize(("name", "count"), [(GUIDE, 14), (OVERVIEW, 6), (DOC, 4), (RESPONSE, 4)])
def test_every_block_is_found_and_is_python(name: str, count: int) -> None:
    blocks = blocks_of(name)
    assert len(blocks) == count
    assert all(ast.parse(block).body for block in blocks)
    # Nothing that looks like code was left between the blocks.
    assert {line for line in (SEEDS / name).read_text().splitlines() if re.match(r"(class \w+\(|def |from \w[\w.]* import)", line)} <= {
        line for block in blocks for line in block.splitlines()
    }


def test_no_document_is_left_out() -> None:
    assert {path.name for path in SEEDS.iterdir()} == {GUIDE, OVERVIEW, DOC, RESPONSE}


# ---- the guide

QUESTION: Row = {
    "question": "2 + 2?",
    "choices": ["3", "4", "5", "6"],
    "correct_answer": "4",
    "answer_idx": 1,
    "answer": "B",
    "answer_key": "B",
}
OTHER: Row = {
    "question": "2 + 3?",
    "choices": ["3", "4", "5", "6"],
    "correct_answer": "5",
    "answer_idx": 2,
    "answer": "C",
    "answer_key": "C",
}


def test_quick_start() -> None:
    prompt = render(run(GUIDE, 0)["YourLoglikelihoodTask"], QUESTION)
    assert (prompt.request.choices, prompt.gold_indices, prompt.messages[0].content) == (("3", "4", "5", "6"), (1,), "Question: 2 + 2?")


def test_basic_setup_with_the_methods_that_follow_it() -> None:
    task = run(GUIDE, 1)["MultipleChoiceTask"]
    hooks = {name: hook for position in (2, 3, 4) for name, hook in run(GUIDE, position).items()}
    assert set(hooks) == {"_get_instruction_text", "_get_ground_truth", "_get_possible_completions"}
    prompt = render(type("Whole", (task,), hooks), QUESTION)
    assert (prompt.request.prompt, prompt.request.choices, prompt.gold_indices) == ("Question: 2 + 2?", ("3", "4", "5", "6"), (1,))


def test_patterns() -> None:
    standard = render(run(GUIDE, 5)["StandardMCQTask"], QUESTION, OTHER, fewshot=1)
    assert standard.request.prompt == "Question: 2 + 3?\nAnswer:5\n\nQuestion: 2 + 2?\nAnswer:"
    assert (standard.request.choices, standard.gold_indices) == ((" 3", " 4", " 5", " 6"), (1,))
    labelled = render(run(GUIDE, 6)["MMLUStyleTask"], QUESTION, OTHER, fewshot=1)
    assert labelled.request.prompt.endswith("D. 6\nAnswer: C\n\nQuestion: 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:")
    assert (labelled.request.choices, labelled.gold_indices) == ((" A", " B", " C", " D"), (1,))
    claim = render(run(GUIDE, 7)["TrueFalseTask"], {"statement": "4 is even.", "is_true": False})
    assert (claim.request.choices, claim.gold_indices) == ((" True", " False"), (1,))
    unsure = run(GUIDE, 8)["ExistingTask_IDK"]
    prompt = render(unsure, {})
    assert (prompt.request.choices, prompt.gold_indices) == ((" yes", " no", " I don't know."), (0,))
    assert prompt.messages[0].content.endswith("\n\nSure?")
    assert list(unsure.METRICS) == [TernaryScore, DistributionalCorrectnessScore]


def test_advanced_customization() -> None:
    assert task_with(**run(GUIDE, 9))._get_fewshot_target_text(QUESTION) == "B"
    system, user = task_with(**run(GUIDE, 10))._get_messages(QUESTION)
    assert (system.role, user.role) == (Role.SYSTEM, Role.USER)
    assert user.content.endswith("\n\nSure?")
    defined = run(GUIDE, 11)
    subjects, task = defined["MMLUSubject"], defined["MMLUTask"]
    assert issubclass(subjects, Enum)
    assert list(task.SUBJECTS) == list(subjects)
    assert "Abstract Algebra" in task()._get_instruction_text({**QUESTION, "subject": "abstract_algebra"})


def test_metrics() -> None:
    defined = run(GUIDE, 12)
    assert list(defined["YourTask"].METRICS) == [TheirAccuracy]
    # Those that are presupposed above are imported here again, and are the same.
    assert {name for name, value in defined.items() if value.__module__.startswith("eval_dagster")} == {
        "AccuracyLoglikelihood",
        "AccuracyNormLoglikelihood",
        "ConfidenceWeightedAccuracy",
        "ProbabilityMass",
        "ProbabilityMassNorm",
    }


def test_complete_example() -> None:
    defined = run(GUIDE, 13)
    task = defined["ScienceQuizTask"]
    prompt = render(task, QUESTION, OTHER, subject=defined["ScienceSubject"].PHYSICS.value, fewshot=1)
    assert [message.role for message in prompt.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert prompt.messages[2].content == "C"
    assert "Question:\n2 + 3?\n\nA. 3\nB. 4\nC. 5\nD. 6\n\nAnswer:C\n\nScience (Physics)" in prompt.request.prompt
    assert (prompt.request.choices, prompt.gold_indices) == ((" A", " B", " C", " D"), (1,))


# ---- the guide's tasks, evaluated word for word

ANSWERED = {"2 + 2?": " 4", "2 + 3?": " 5"}
LETTERS = {"2 + 2?": " B", "2 + 3?": " C"}
CLAIMS: list[Row] = [{"statement": "4 is even.", "is_true": True}, {"statement": "4 is odd.", "is_true": False}]


def scored_block(folder: Path, position: int, name: str, rows: Mapping[str, Sequence[Row]], answers: Mapping[str, str]) -> Scored:
    code = f"{IMPORTS}\n{blocks_of(GUIDE)[position]}\n"
    if name == "ExistingTask_IDK":  # the document presupposes the class
        code = code.replace(
            "class ExistingTask_IDK", f"{blocks_of(GUIDE)[7]}\n\n\nExistingTask = TrueFalseTask\n\n\nclass ExistingTask_IDK", 1
        )
    return scored(project_of(folder, code, name, data=rows, answers=answers))


@pytest.mark.long
@pytest.mark.parametrize(
    ("position", "name", "rows", "answers"),
    [
        (0, "YourLoglikelihoodTask", {"default": [QUESTION, OTHER]}, ANSWERED),
        (6, "MMLUStyleTask", dict.fromkeys(("abstract_algebra", "anatomy", "astronomy"), (QUESTION, OTHER)), LETTERS),
        (7, "TrueFalseTask", {"facts": CLAIMS}, {"4 is even": " True", "4 is odd": " False"}),
        (8, "ExistingTask_IDK", {"facts": CLAIMS}, {"4 is even": " True", "4 is odd": " False"}),
        (13, "ScienceQuizTask", dict.fromkeys(("physics", "chemistry", "biology"), (QUESTION, OTHER)), LETTERS),
    ],
)
def test_a_task_of_the_guide_scores_as_its_reader_expects(
    tmp_path: Path, position: int, name: str, rows: Mapping[str, Sequence[Row]], answers: Mapping[str, str]
) -> None:
    found = scored_block(tmp_path, position, name, rows, answers)
    assert found.errors == 0
    assert max(found.values.values()) == 1.0
    assert all(0 < value <= 1 for value in found.values.values()), found.values
    assert not any("gold_is_no_choice" in warning for warning in found.warnings)


@pytest.mark.long
def test_the_slip_of_the_first_pattern_is_told(tmp_path: Path) -> None:
    """The model's best choice is the gold one each time; the pattern's gold answer lacks the space of its choices."""
    rows = [{**QUESTION, "question": f"{question} {number}"} for number in range(12) for question in ["2 + 2?"]]
    found = scored_block(tmp_path, 5, "StandardMCQTask", {"general": rows}, ANSWERED)
    assert (found.values, found.errors) == ({"Accuracy Loglikelihood": 0.0}, 0)
    [warning] = [each for each in found.warnings if "gold_is_no_choice" in each]
    assert "in 12 of 12 samples, the gold answer '4' is none of the choices (' 3', ' 4', ' 5', ' 6')" in warning
    assert "did you mean ' 4'? Let _get_ground_truth return that" in warning


@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_every_choice_of_metrics_of_the_guide_is_computed(tmp_path: Path, number: int) -> None:
    """Each line of METRICS, most of which are comments in the document, on the task with true and false statements."""
    lines = re.findall(r"^    (?:# )?(METRICS = \[.*\])$", blocks_of(GUIDE)[12], re.MULTILINE)
    assert len(lines) == 6
    last = "IDK" if "TernaryScore" in lines[number] else ""
    code = f"{IMPORTS}\n{blocks_of(GUIDE)[7]}\n".replace("METRICS = [AccuracyLoglikelihood]", lines[number])
    code = code.replace('[" True", " False"]', '[" True", " False", " I don\'t know."]') if last else code
    found = scored(
        project_of(tmp_path, code, "TrueFalseTask", data={"facts": CLAIMS}, answers={"4 is even": " True", "4 is odd": " False"})
    )
    assert found.errors == 0
    assert all(0 < value <= 1 for value in found.values.values()), found.values


# ---- the overview


def test_core_data_types() -> None:
    names = {"Completion", "Loglikelihood", "RawCompletion", "RawLoglikelihood"}
    defined = run(OVERVIEW, 0)
    assert names <= defined.keys()
    for name in names:  # the fields that the document's types have are fields of ours
        import_line = f"from eval_framework.shared.types import {name}"
        ours: dict[str, Any] = {}
        with aliases():
            exec(import_line, ours)
        assert set(defined[name].model_fields) <= set(ours[name].__dataclass_fields__)
        # An object that is made as the document writes it has what it was made of, and writes it as the document's does.
        values = {field: [-0.5, -1.2] if field == "loglikelihoods" else "a text" for field in defined[name].model_fields}
        theirs, made = defined[name](**values), ours[name](**values)
        assert {field: getattr(made, field) for field in values} == values
        written = made.model_dump()
        assert {field: written.get(field, getattr(made, field)) for field in values} == theirs.model_dump()
        assert {field: getattr(made.model_copy(update=values), field) for field in values} == values


def test_log_probabilities_in_a_list_are_those_of_the_choices_in_their_order() -> None:
    scored = {"loglikelihoods": [-0.5, -1.2], "ground_truth": " A"}
    ours: dict[str, Any] = {}
    with aliases():
        exec("from eval_framework.shared.types import Loglikelihood", ours)
    (right,) = TheirAccuracy().calculate(ours["Loglikelihood"](**scored, choices=[" A", " B"]))
    assert right.value == 1.0
    with pytest.raises(DataError, match=r"has 2 loglikelihoods and 0 choices; .* give choices="):
        TheirAccuracy().calculate(ours["Loglikelihood"](**scored))


def test_message_structure() -> None:
    defined = run(OVERVIEW, 1)["Message"]
    assert set(defined.model_fields) == set(Message.__dataclass_fields__)
    theirs, ours = (kind(role=Role.USER, content="x") for kind in (defined, Message))
    assert (ours.role, ours.content) == (theirs.role, theirs.content)
    assert ours.model_dump() == theirs.model_dump() == {"role": Role.USER, "content": "x"}
    assert ours.model_dump(mode="json") == theirs.model_dump(mode="json")
    assert ours.model_dump_json() == theirs.model_dump_json()
    assert Message.model_validate(theirs.model_dump(mode="json")) == ours
    assert ours.model_copy(update={"content": "y"}) == Message(Role.USER, "y")


def test_task_implementation_pattern() -> None:
    given = {"SAMPLE_SPLIT": "test", "SUBJECTS": ["all"]}
    generated = render(type("Text", (run(OVERVIEW, 2)["MyCompletionTask"],), {**given, "METRICS": [ExactMatch]}), QUESTION)
    assert (generated.messages[0].content, generated.ground_truths) == ("Question: 2 + 2?", ("B",))
    assert generated.request.generation is not None
    ranked = render(type("Ranked", (run(OVERVIEW, 3)["MyLoglikelihoodTask"],), {**given, "METRICS": [AccuracyLoglikelihood]}), QUESTION)
    assert (ranked.request.choices, ranked.gold_indices) == (("3", "4", "5", "6"), (1,))


def test_fewshot_example_construction() -> None:
    construct: Callable[[Any, Row], list[Message]] = run(OVERVIEW, 4)["construct_prompt"]
    task = run(GUIDE, 13)["ScienceQuizTask"](num_fewshot=1)
    item, example = ({**row, "subject": "physics"} for row in (QUESTION, OTHER))
    task.dataset = {str(task.FEWSHOT_SPLIT): [example]}
    assert construct(task, item) == task._get_messages(item)
    assert task.examples_used == [example]


def test_geography_quiz() -> None:
    messages = run(OVERVIEW, 5)["messages"]
    roles = [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    assert [(type(message), message.role) for message in messages] == [(Message, role) for role in roles]
    first, second, third = (message.content for message in messages[2::2])
    prompt = ConcatFormatter().format(messages)
    # The examples' answers begin with the cue, which the continuations that the document names follow with their space.
    assert first.startswith(f"{third} ")
    assert second.startswith(f"{third} ")
    assert prompt.endswith(f"\n{second}\n\n{messages[5].content}\n{third}")


# ---- lighteval


def doc_of(position: int) -> Doc:
    found: Doc = run(DOC, position)["doc"]
    assert isinstance(found, Doc)
    return found


def rendered(doc: Doc, **settings: Any) -> RenderedPrompt:
    task = doc_task(dataset_path="x", sample_split="test", **{"metrics": [AccuracyLoglikelihood], **settings})(lambda row: doc)
    return render(task, {"row": 1})


def test_docs() -> None:
    choice = rendered(doc_of(0))
    (message,) = choice.messages  # the instruction is "typically prepended to the query"
    assert message.role is Role.USER
    assert message.content.startswith(str(doc_of(0).instruction))
    assert [each.strip() for each in choice.request.choices or ()] == doc_of(0).choices
    assert choice.gold_indices == (1,)
    tale = rendered(doc_of(1), metrics=[ExactMatch])
    settings = tale.request.generation
    assert settings is not None
    assert (settings.max_tokens, tale.ground_truths) == (100, ())
    assert settings.stop_sequences == ("\nEnd",)
    shots = rendered(doc_of(2))
    assert [message.content for message in shots.messages[1::2]] == [each.choices[0] for each in doc_of(2).fewshot_samples]
    assert len(shots.messages) == 5
    assert shots.ground_truths == (doc_of(2).choices[0],)
    seen = doc_task(dataset_path="x", sample_split="test", metrics=[AccuracyLoglikelihood])(lambda row: doc_of(3))
    (sample,) = seen()._create_samples({}, 0, "all")
    assert len(sample.images) == 1
    assert (sample.possible_completions, sample.gold_indices) == (doc_of(3).choices, [0])


def test_the_signature_of_a_doc() -> None:
    text = (SEEDS / DOC).read_text()
    (signature,) = re.findall(r"< source >\( (.*) \)$", text, re.MULTILINE)
    named = re.findall(r"(\w+): ", signature)
    assert [*named, "given_id"] == list(inspect.signature(Doc).parameters)  # what is more comes last, so that positions mean the same


def test_the_signature_of_a_response() -> None:
    (signature,) = re.findall(r"^\( (input: .*) \)$", (SEEDS / RESPONSE).read_text(), re.MULTILINE)
    assert set(re.findall(r"(\w+): ", signature)) <= set(inspect.signature(ModelResponse).parameters)
    assert callable(ModelResponse.post_process)


@pytest.mark.parametrize(
    ("position", "fields"),
    [
        (0, {"text", "input_tokens", "output_tokens"}),
        (1, {"logprobs", "argmax_logits_eq_gold", "input_tokens", "output_tokens"}),
        (2, {"text", "logprobs", "input_tokens", "output_tokens"}),
        (3, {"text", "logprobs", "unconditioned_logprobs", "input_tokens", "output_tokens"}),
    ],
)
def test_responses(position: int, fields: set[str]) -> None:
    response = run(RESPONSE, position)["response"]
    assert type(response) is ModelResponse
    assert {name for name in ModelResponse.__dataclass_fields__ if getattr(response, name) != getattr(ModelResponse(), name)} == fields
    response.post_process()  # as the document has it: a step of its own, after which the object has the processed texts
    assert response.text_post_processed == response.final_text == list(response.text)
    if "unconditioned_logprobs" in fields:
        assert len(response.unconditioned_logprobs) == len(response.logprobs)
