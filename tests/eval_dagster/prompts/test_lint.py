"""Faults that are put into a benchmark are found, and a benchmark without them is clean."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.prompts import lint as linting
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.lint import lint
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.prompts.row_sample import RowSample
from eval_dagster.records import Check, Finding, Message, ResponseType, Role, Row, Status
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import build_samples

TEAMS = ("billing", "network", "hardware", "access")
WORDS = (
    *("amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jolly"),
    *("karst", "lilac", "maple", "noble", "ochre", "pearl", "quill", "raven", "sable", "tulip"),
)


class Quiz(BaseTask[str]):
    """Which word of four has a number; sound."""

    NAME = "Quiz"
    DATASET_PATH = "quiz"
    SAMPLE_SPLIT, FEWSHOT_SPLIT = "test", "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)
    SUBJECTS: Sequence[str] = ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: which word has the number {item['number']}?\nAnswer:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {choice}" for choice in item["choices"]]

    def _get_ground_truth(self, item: Row) -> Any:
        return f" {item['choices'][item['gold']]}"


class Written(Quiz):
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)  # type: ignore[assignment]

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return None


class Tickets(BaseTask[str]):
    """A team for a ticket. The subject is the ticket's product."""

    NAME = "Tickets"
    DATASET_PATH = "tickets"
    SAMPLE_SPLIT, FEWSHOT_SPLIT = "test", "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)
    SUBJECT_FIELD = "product"
    SUBJECTS: Sequence[str] = ("phone", "desk", "cloud", "van")

    def _get_instruction_text(self, item: Row) -> str:
        return f"Ticket: {item['text']}\nTeam:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {team}" for team in TEAMS]

    def _get_ground_truth(self, item: Row) -> Any:
        return f" {item['team']}"


class Leaking(Tickets):
    """The subject is the class."""

    SUBJECT_FIELD = "team"
    SUBJECTS = TEAMS


def rows(count: int = 40, start: int = 0) -> list[Row]:
    return [
        {"number": number, "choices": [WORDS[(number * 7 + place * 3) % 20] for place in range(4)], "gold": number * number * 3 % 7 % 4}
        for number in range(start, start + count)
    ]


def tickets(count: int = 40) -> list[Row]:
    return [
        {
            "text": f"the {WORDS[number % 20]} does not work, {number}",
            "team": TEAMS[number % 4],
            "product": ("phone", "desk", "cloud", "van")[number // 4 % 4],
        }
        for number in range(count)
    ]


def prompts_of(task: type[BaseTask[Any]], splits: dict[str, list[Row]], shots: int = 0) -> list[RenderedPrompt]:
    made, found = task(num_fewshot=shots), []
    for subject in task.SUBJECTS:
        chosen = {
            split: [row for row in of_split if task.SUBJECT_FIELD is None or row[task.SUBJECT_FIELD] == subject]
            for split, of_split in splits.items()
        }
        samples = build_samples(chosen, subject)
        pool = fewshot_pool(made, [sample for sample in samples if sample.split == task.FEWSHOT_SPLIT])
        for sample in samples:
            if sample.split == task.SAMPLE_SPLIT:
                found += render_sample(Rendering(task=made, formatter=ConcatFormatter(), num_fewshot=shots), sample, pool)
    return found


def flat(prompts: Sequence[RenderedPrompt]) -> list[RenderedPrompt]:
    """The same prompts as another package gives them: one text."""
    return [replace(each, messages=(replace(each.messages[-1], content=each.request.prompt),)) for each in prompts]


def found(prompts: Sequence[RenderedPrompt], shots: int = 0, **settings: Any) -> dict[Check, Finding]:
    return {each.check: each for each in lint(prompts, num_fewshot=shots, **settings) if each.status is Status.FOUND}


@pytest.mark.parametrize("shots", [0, 3])
@pytest.mark.parametrize("shape", [list, flat])
@pytest.mark.parametrize("task", [Quiz, Written, Tickets])
def test_a_sound_benchmark_is_clean(task: type[BaseTask[Any]], shape: Callable[..., Any], shots: int) -> None:
    splits = {"test": tickets(80), "train": tickets(80)[::-1]} if task is Tickets else {"test": rows(), "train": rows(start=100)}
    looked = lint(shape(prompts_of(task, splits, shots)), num_fewshot=shots)
    assert {each.check: str(each) for each in looked if each.status is not Status.CLEAN} == {}
    expected = {Check.DUPLICATES, Check.CONTRADICTIONS, Check.ANSWER_IN_PROMPT}
    if shots:
        expected |= {Check.EXAMPLES_TELL_GOLD, Check.EXAMPLE_IS_QUESTION}
    assert {each.check for each in looked} >= expected
    assert all(each.n == 0 and each.n_of == len(prompts_of(task, splits)) for each in looked)


@pytest.mark.parametrize("shape", [list, flat])
def test_examples_that_tell_the_class(shape: Callable[..., Any]) -> None:
    leaking = shape(prompts_of(Leaking, {"test": tickets(80), "train": tickets(160)[80:]}, 3))
    finding = found(leaking, 3)[Check.EXAMPLES_TELL_GOLD]
    assert (finding.n, finding.n_of) == (80, 80)
    assert (
        finding.seen == "all examples of 4 of 4 subjects have one answer, which is the gold answer of all their samples (80 of 80 samples)"
    )
    assert finding.sample_id == leaking[0].sample_id
    assert found(leaking, 3).keys() == {Check.EXAMPLES_TELL_GOLD}


def test_half_of_the_subjects_may_leak() -> None:
    class Half(Leaking):
        SUBJECT_FIELD = "half"
        SUBJECTS = ("billing", "network", "others")

    def halved(given: list[Row]) -> list[Row]:
        return [{**row, "half": row["team"] if row["team"] in ("billing", "network") else "others"} for row in given]

    splits = {"test": halved(tickets(80)), "train": halved(tickets(160)[80:])}
    finding = found(prompts_of(Half, splits, 3), 3)[Check.EXAMPLES_TELL_GOLD]
    assert (finding.n, finding.n_of) == (40, 80)
    assert "2 of 3 subjects" in finding.seen


def test_examples_of_the_gold_by_chance_are_none() -> None:
    """With one sample and one example a subject, some are told by chance."""

    class Single(Tickets):
        SUBJECT_FIELD = "number"
        SUBJECTS = tuple(map(str, range(20)))

    given = [{**row, "number": str(number)} for number, row in enumerate(tickets(20))]
    examples = [{**row, "number": str(number * 3 % 20)} for number, row in enumerate(tickets(40)[20:])]
    assert found(prompts_of(Single, {"test": given, "train": examples}, 1), 1) == {}


def test_one_class_alone_is_not_checked() -> None:
    one = [{**row, "team": "billing"} for row in tickets(20)]
    looked = {each.check: each for each in lint(prompts_of(Tickets, {"test": one, "train": one[::-1]}, 2), num_fewshot=2)}
    assert looked[Check.EXAMPLES_TELL_GOLD].status is Status.NOT_CHECKED
    assert "have the same gold answer" in looked[Check.EXAMPLES_TELL_GOLD].seen


@pytest.mark.parametrize("position", [0, 3])
def test_the_gold_at_one_position(position: int) -> None:
    prompts = prompts_of(Quiz, {"test": [{**row, "gold": position} for row in rows()]})
    finding = found(prompts)[Check.GOLD_POSITION]
    assert finding.seen == f"the gold answer is choice {position + 1} in 40 of 40 samples"
    nearly = prompts_of(Quiz, {"test": [{**row, "gold": position if row["number"] else 1} for row in rows()]})
    assert (found(nearly)[Check.GOLD_POSITION].n, found(nearly)[Check.GOLD_POSITION].n_of) == (39, 40)


def test_few_samples_are_too_few_for_a_position() -> None:
    (position,) = [
        each
        for each in lint(prompts_of(Quiz, {"test": [{**row, "gold": 0} for row in rows(5)]}), num_fewshot=0)
        if each.check is Check.GOLD_POSITION
    ]
    assert (position.status, position.seen) == (Status.NOT_CHECKED, "5 samples are too few to tell a fault from chance")


def test_duplicate_rows() -> None:
    again = [{**row, "note": "again"} for row in rows(3)]
    finding = found(prompts_of(Quiz, {"test": [*rows(), *again]}))[Check.DUPLICATES]
    assert (finding.n, finding.n_of) == (3, 43)
    shuffled = [{**row, "choices": row["choices"][::-1], "gold": 3 - row["gold"]} for row in rows(3)]
    assert found(prompts_of(Quiz, {"test": [*rows(), *shuffled]}))[Check.DUPLICATES].n == 3


def test_duplicate_rows_with_other_gold_answers() -> None:
    torn = [{**row, "gold": (row["gold"] + 1) % 4} for row in rows(2)]
    looked = found(prompts_of(Quiz, {"test": [*rows(), *torn]}))
    assert looked.keys() == {Check.CONTRADICTIONS}
    assert (looked[Check.CONTRADICTIONS].n, looked[Check.CONTRADICTIONS].n_of) == (4, 42)


@pytest.mark.parametrize("shape", [list, flat])
@pytest.mark.parametrize("change", [str, str.upper, lambda text: text.replace(" ", "  ")])
def test_an_example_that_is_the_question(change: Callable[[str], str], shape: Callable[..., Any]) -> None:
    class Drawn(Quiz):
        """Writes its examples by itself; `FewshotPool` would leave the question out."""

        def _get_instruction_text(self, item: Row) -> str:
            return f"Question: {item['text']}\nAnswer:"

        def _get_example_messages(self, item: Row) -> list[Message]:
            shown = change(item["text"]) if item["number"] % 2 else "which word has none?"
            pairs = [("which word has 99?", " quill"), (shown, self._get_ground_truth(item))]
            turns = [(Message(Role.USER, f"Question: {text}\nAnswer:"), Message(Role.ASSISTANT, answer)) for text, answer in pairs]
            return [message for turn in turns for message in turn]

    given = [{**row, "text": f"which word has {row['number']}?"} for row in rows(20)]
    finding = found(shape(prompts_of(Drawn, {"test": given}, 2)), 2)[Check.EXAMPLE_IS_QUESTION]
    assert (finding.n, finding.n_of) == (10, 20)


@pytest.mark.parametrize("task", [Quiz, Written])
@pytest.mark.parametrize("shots", [0, 2])
def test_an_answer_that_stands_in_the_prompt(task: type[Quiz], shots: int) -> None:
    class Telling(task):  # type: ignore[misc, valid-type]
        def _get_instruction_text(self, item: Row) -> str:
            return f"Question: which word has the number {item['number']}? (key: {item['choices'][item['gold']]})\nAnswer:"

    prompts = prompts_of(Telling, {"test": rows(), "train": rows(start=100)}, shots)
    finding = found(prompts, shots)[Check.ANSWER_IN_PROMPT]
    assert (finding.n, finding.n_of) == (40, 40)
    assert "each time after 'y: '" in finding.seen


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("Ticket: {text} [{team}]\nTeam:", "each time between '[' and ']'"),
        ("Ticket: {text} ({team}) {text}\nTeam:", "each time between '(' and ')'"),
        ("Ticket {team}_{number}: {text}\nTeam:", "each time after 'et '"),
        ("{text} {team}{number}, {text}\nTeam:", "and the wrong ones do not"),
        ("{text}: {team}\nTeam:", "each time before ' te'"),
        ("{text} for {team} since {text}\nTeam:", "each time after 'or '"),
    ],
)
@pytest.mark.parametrize("shots", [0, 3])
def test_an_answer_that_stands_in_the_prompt_in_any_form(form: str, where: str, shots: int) -> None:
    class Telling(Tickets):
        def _get_instruction_text(self, item: Row) -> str:
            text = str(item["text"])
            return form.format(text=text[: 18 + len(text) % 5], team=item["team"], number=text.rpartition(" ")[2])

    finding = found(prompts_of(Telling, {"test": tickets(30), "train": tickets(160)[80:]}, shots), shots)[Check.ANSWER_IN_PROMPT]
    assert (finding.n, finding.n_of) == (30, 30)
    assert where in finding.seen


def test_a_class_that_every_text_may_name_gives_nothing_away() -> None:
    """The classes are words of the texts, or answers are looked up in a text, as in reading comprehension."""

    class Mentioned(Tickets):
        def _get_instruction_text(self, item: Row) -> str:
            return f"Ticket: {item['text']}, {' or '.join(TEAMS)}?\nTeam:"

    class Looked(Written):
        def _get_instruction_text(self, item: Row) -> str:
            forms = (
                "{0} met {1} at {2}.",
                "At {2}, {0} was there. Later came {1}, and left.",
                "It was {1} whom {0} had {2}.",
                "{0}; {1}: {2}",
            )
            others = [choice for choice in item["choices"] if choice != item["choices"][item["gold"]]]
            text = forms[item["number"] % 4].format(others[0], item["choices"][item["gold"]], item["number"])
            return f"{text} Who is it?\nAnswer:"

    assert found(prompts_of(Mentioned, {"test": tickets(40)})) == {}
    assert found(prompts_of(Looked, {"test": rows()})) == {}


def test_choices_that_are_listed_in_the_prompt_give_nothing_away() -> None:
    class Listed(Quiz):
        def _get_instruction_text(self, item: Row) -> str:
            return f"Which of {', '.join(item['choices'])} has {item['number']}?\nAnswer:"

    class Lettered(Quiz):
        def _get_instruction_text(self, item: Row) -> str:
            lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", item["choices"], strict=True))
            return f"Which has {item['number']}?\n{lines}\nAnswer:"

        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return [" A", " B", " C", " D"]

        def _get_ground_truth(self, item: Row) -> Any:
            return f" {'ABCD'[item['gold']]}"

    for task in (Listed, Lettered):
        assert found(prompts_of(task, {"test": rows()})) == {}


@pytest.mark.parametrize(("stretched", "word"), [(True, "longest"), (False, "shortest")])
def test_choices_whose_length_tells(stretched: bool, word: str) -> None:
    def changed(row: Row) -> Row:
        long = "because it has long been so, as everybody says"
        return {
            **row,
            "choices": [
                f"{choice}, {long}" if (index == row["gold"]) == stretched else choice for index, choice in enumerate(row["choices"])
            ],
        }

    finding = found(prompts_of(Quiz, {"test": [changed(row) for row in rows()]}))[Check.LENGTH_TELLS_GOLD]
    assert finding.seen.startswith(f"the gold answer is the {word} choice in 40 of 40 samples, as a rule ")


def test_equal_choices() -> None:
    given = [{**row, "choices": [*row["choices"][:3], row["choices"][row["gold"] or 1]]} for row in rows(4)]
    assert Check.EQUAL_CHOICES in found(prompts_of(Quiz, {"test": [*given, *rows(20, 50)]}))


@pytest.mark.parametrize("shots", [0, 2])
def test_a_question_that_is_empty(shots: int) -> None:
    splits = {"test": tickets(30), "train": tickets(160)[80:]}
    splits["test"][7]["text"] = ""
    finding = found(prompts_of(Tickets, splits, shots), shots)[Check.BLANK_TEXTS]
    assert (finding.n, finding.n_of, finding.seen) == (1, 30, "in 1 of 30 samples, nothing stands after 'ticket:' in the question")

    class Bare(Tickets):
        def _get_instruction_text(self, item: Row) -> str:
            return str(item["text"])

    prompts = prompts_of(Bare, splits)
    assert found(prompts)[Check.BLANK_TEXTS].seen == "in 1 of 30 samples, the question is an empty text"


def test_a_gold_answer_that_is_empty() -> None:
    class Answered(Written):
        def _get_ground_truth(self, item: Row) -> Any:
            return " " if item["number"] == 3 else super()._get_ground_truth(item)

    finding = found(prompts_of(Answered, {"test": rows()}))[Check.BLANK_TEXTS]
    assert (finding.n, finding.n_of, finding.seen) == (1, 40, "in 1 of 40 samples, the gold answer is an empty text")


def test_a_gold_answer_that_is_no_choice() -> None:
    prompts = [replace(each, ground_truths=(each.ground_truths[0].strip(),)) for each in prompts_of(Quiz, {"test": rows()})]
    assert found(prompts) == {}, "metrics go by the position"
    finding = found(prompts, compares_texts=True)[Check.GOLD_IS_NO_CHOICE]
    gold = prompts[0].ground_truths[0]
    assert finding.seen.startswith(f"in 40 of 40 samples, the gold answer '{gold}' is none of the choices (' ")
    assert finding.advice == f"did you mean ' {gold}'? Let _get_ground_truth return that"
    lost = [replace(each, ground_truths=("elsewhere",), gold_indices=()) for each in prompts]
    assert found(lost)[Check.GOLD_IS_NO_CHOICE].advice == "let _get_ground_truth return the text of one"


def test_a_check_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setitem(linting._CHECKS, Check.DUPLICATES, broken)  # type: ignore[index]
    looked = {each.check: each for each in lint(prompts_of(Quiz, {"test": rows()}), num_fewshot=0)}
    assert looked[Check.DUPLICATES].status is Status.NOT_CHECKED
    assert looked[Check.DUPLICATES].seen == "the check raised ZeroDivisionError: nothing to divide by"
    assert looked[Check.GOLD_POSITION].status is Status.CLEAN


@pytest.mark.parametrize("task", [Tickets, Leaking])
def test_examples_that_blank_lines_part(task: type[BaseTask[Any]]) -> None:
    class Running(task):  # type: ignore[misc, valid-type]
        """Its questions have no common end."""

        def _get_instruction_text(self, item: Row) -> str:
            return str(item["text"])

    prompts = flat(prompts_of(Running, {"test": tickets(80), "train": tickets(160)[80:]}, 3))
    assert prompts[0].request.prompt.count("\n\n") == 3
    looked = lint(prompts, num_fewshot=3)
    assert {each.check for each in looked if each.status is Status.NOT_CHECKED} == set()
    assert found(prompts, 3).keys() == ({Check.EXAMPLES_TELL_GOLD} if task is Leaking else set())


def test_examples_that_cannot_be_told_from_the_question_are_not_checked() -> None:
    class Running(Quiz):
        def _get_instruction_text(self, item: Row) -> str:
            return f"one\n\n{item['number']} is\n\nthe number of"

    looked = {each.check: each for each in lint(flat(prompts_of(Running, {"test": rows(), "train": rows(start=100)}, 2)), num_fewshot=3)}
    for check in (Check.EXAMPLES_TELL_GOLD, Check.EXAMPLE_IS_QUESTION, Check.ANSWER_IN_PROMPT, Check.DUPLICATES, Check.CONTRADICTIONS):
        assert looked[check].status is Status.NOT_CHECKED
        assert looked[check].seen == "the prompt is one text, in which the examples cannot be told from the question"


def asked_of(count: int, repeated: int) -> list[RenderedPrompt]:
    """Prompts about rows, each of which asks something else but for the last ones, which ask what the first ones ask."""
    distinct = rows(count - repeated)
    return prompts_of(Quiz, {"test": [*distinct, *({**row, "note": "again"} for row in distinct[:repeated])]})


def linted(prompts: Sequence[RenderedPrompt], most: int) -> dict[Check, Finding]:
    chosen = RowSample(num_fewshot=0, most=most)
    for prompt in prompts:
        chosen.add(prompt)
    return {each.check: each for each in linting.lint_rows(chosen)}


def test_of_many_rows_an_even_sample_is_looked_at() -> None:
    prompts = asked_of(1000, 200)
    looked = linted(prompts, most=200)
    assert looked[Check.DUPLICATES].status is Status.FOUND
    kept = looked[Check.DUPLICATES].n_of
    assert 180 <= kept <= 202, "rows that ask the same are in the sample together"
    assert looked[Check.DUPLICATES].n / kept == pytest.approx(0.2, abs=0.07)
    assert looked[Check.DUPLICATES].seen.endswith(f", of {kept} of 1,000 rows")
    assert looked[Check.GOLD_POSITION].status is Status.CLEAN
    assert looked[Check.GOLD_POSITION].seen == f"of {kept} of 1,000 rows", "a check that is clean tells how much it saw"
    again = linted(prompts, most=200)
    assert looked == again
    reordered = linted([*prompts[500:], *prompts[:500]], most=200)
    assert reordered[Check.DUPLICATES].n == looked[Check.DUPLICATES].n, "the order of the rows does not decide which are looked at"


def test_so_many_rows_are_all_looked_at() -> None:
    prompts = asked_of(60, 6)
    assert list(linted(prompts, most=60).values()) == lint(prompts, num_fewshot=0)
    assert linted(prompts, most=60)[Check.DUPLICATES].n == 6


def test_rows_that_all_ask_the_same_are_chosen_among_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them stay. To choose again at each further row would take hours for many."""
    [prompt] = prompts_of(Quiz, {"test": rows(1)})
    chosen = RowSample(num_fewshot=0, most=10)
    choices: list[int] = []
    choose = RowSample._choose
    monkeypatch.setattr(RowSample, "_choose", lambda self: choices.append(self.n_kept) or choose(self))
    for number in range(1000):
        chosen.add(replace(prompt, sample_id=str(number), source_id=str(number)))
    assert len(chosen.prompts()) == 1000
    assert len(choices) <= 10


@pytest.mark.parametrize("part", ["images", "error"])
def test_rows_without_a_text_of_their_own_are_told_apart(part: str) -> None:
    [prompt] = prompts_of(Quiz, {"test": rows(1)})
    chosen = RowSample(num_fewshot=0, most=10)
    for number in range(1000):
        own = {"request": replace(prompt.request, images=(str(number).encode(),))} if part == "images" else {"error": "KeyError: 'text'"}
        chosen.add(replace(prompt, sample_id=str(number), source_id=str(number), **own))
    assert len(chosen.prompts()) == 10


def test_all_prompts_about_a_row_are_looked_at_or_none() -> None:
    several = [
        replace(prompt, sample_id=f"{prompt.sample_id}.{part}") for prompt in prompts_of(Quiz, {"test": rows(100)}) for part in range(3)
    ]
    looked = linted(several, most=20)
    assert looked[Check.GOLD_POSITION].n_of == 3 * 20
    assert looked[Check.GOLD_POSITION].seen == "of 20 of 100 rows"
