"""The process of a package in an environment of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval_dagster.errors import DataError, MachineError, RequirementError, TaskDefinitionError
from eval_dagster.peers.processes.benchmark import ProcessBenchmark
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.records import Row
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, RenderSettings, ScoreError
from tests.eval_dagster.peers.conftest import QuizEnvironment
from tests.eval_dagster.peers.quiz_registry import QuizRegistry

SETTINGS = RenderSettings(num_fewshot=0, seed=0, examples_per_sample=False, formatter=ConcatFormatter())
ROOT = Path(__file__).resolve().parents[3]


def benchmark(quiz: QuizEnvironment, name: str = "sums") -> ProcessBenchmark:
    return QuizRegistry().within(quiz.python).benchmark(name, Path())


def read(of: ProcessBenchmark) -> BenchmarkRows:
    return of.read("all", lambda _: [], fewshot=False)


def answered(rows: BenchmarkRows, *texts: str) -> list[tuple[Row, list[Answer]]]:
    return [(row, [Answer(prompt="", texts=[text])]) for row, text in zip(rows.evaluated, texts, strict=False)]


def test_rows_prompts_values_and_aggregates_come_from_the_environment(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    rows = read(sums)
    assert rows.evaluated[0] == {"question": "0 + 1", "answer": "1"}
    asked = [questions[0] for questions in sums.render("all", rows, SETTINGS)]
    assert [(question.prompt, question.max_tokens, question.ground_truth) for question in asked][1] == ("1 + 1 =", 8, "2")
    assert list(sums.score_all("all", rows, answered(rows, "1", "9"))) == [
        {"right": 1.0, "longest": {"text": "1"}},
        {"right": 0.0, "longest": {"text": "9"}},
    ]
    longest = sums.metrics[1].aggregate
    assert longest is not None
    assert longest([{"text": "1"}, {"text": "12345"}]) == 5


def test_questions_come_in_batches_and_only_as_many_as_are_wanted(quiz: QuizEnvironment) -> None:
    many = benchmark(quiz, "many")
    rows = read(many)
    assert len(list(many.render("all", rows, SETTINGS))) == 500
    some = many.render("all", rows, SETTINGS)
    assert next(some)[0].prompt == "0 + 1 ="
    some.close()  # type: ignore[attr-defined]
    assert len(read(many).evaluated) == 500


def test_what_the_package_prints_is_no_answer(quiz: QuizEnvironment) -> None:
    assert benchmark(quiz).description == "A quiz."  # describe prints two lines


def test_a_row_that_fails_has_the_reason_and_the_others_have_values(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    first, second, third = sums.score_all("all", read(sums), answered(read(sums), "raise", "2", ""))
    assert isinstance(first, DataError)
    assert "ValueError: this answer cannot be scored" in str(first)
    assert isinstance(second, dict)
    assert second["right"] == 1.0
    assert isinstance(third, dict)
    assert third["right"] == ScoreError("no text")


def test_a_process_that_dies_is_an_error_of_the_machine_and_starts_again(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    rows = read(sums)
    with pytest.raises(MachineError, match=r"the process of quiz .* ended with status 7"):
        sums.score_all("all", rows, answered(rows, "crash"))
    assert sums.score_all("all", rows, answered(rows, "1"))[0]["right"] == 1.0  # type: ignore[index]


def test_a_worker_asks_for_a_function_while_it_scores(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    first, second, third = sums.score_all("all", read(sums), answered(read(sums), "ask moon", "ask nothing", "3"))
    assert first == {"right": 1.0, "longest": {"text": "moonmoon"}}
    assert isinstance(second, DataError)
    assert "RefusedError: nothing cannot be doubled" in str(second)
    assert third["right"] == 1.0  # type: ignore[index]


def test_a_requirement_of_what_a_worker_asks_for_ends_the_call_and_the_process_starts_again(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    rows = read(sums)
    with pytest.raises(RequirementError, match="cannot double so much"):
        sums.score_all("all", rows, answered(rows, "ask much"))
    assert sums.score_all("all", rows, answered(rows, "1"))[0]["right"] == 1.0  # type: ignore[index]


def test_garbage_of_a_process_is_an_error_of_the_machine_and_it_starts_again(quiz: QuizEnvironment) -> None:
    sums = benchmark(quiz)
    rows = read(sums)
    with pytest.raises(MachineError, match=r"the process of quiz .* wrote 'no answer.*; expected an answer, one JSON object a line"):
        sums.score_all("all", rows, answered(rows, "garbage"))
    assert sums.score_all("all", rows, answered(rows, "1"))[0]["right"] == 1.0  # type: ignore[index]


def test_the_error_of_a_process_that_does_not_start_has_its_last_lines(quiz: QuizEnvironment) -> None:
    (quiz.site_packages / "broken.pth").write_text(
        "import sys; sys.stderr.write('cannot go on\\n'); sys.stderr.flush(); import os; os._exit(3)\n"
    )
    with pytest.raises(MachineError, match=r"status 3(?s:.*)cannot go on"):
        benchmark(quiz)


@pytest.mark.long
def test_the_process_ends_when_ours_is_killed_in_the_middle_of_a_call(quiz: QuizEnvironment, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        from tests.eval_dagster.peers.test_processes import answered, read
        from tests.eval_dagster.peers.quiz_registry import QuizRegistry
        sums = QuizRegistry().within(Path({str(quiz.python)!r})).benchmark("sums", Path())
        rows = read(sums)
        print(sums._process._process.pid, flush=True)
        sums.score_all("all", rows, answered(rows, "slow"))
        """)
    )
    ours = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ours.stdout is not None
    worker = int(ours.stdout.readline())
    time.sleep(0.5)
    assert is_running(worker)
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    ours.stdout.close()
    deadline = time.monotonic() + 20
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(worker)


def is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_two_threads_get_their_own_answers(quiz: QuizEnvironment) -> None:
    sums, many = benchmark(quiz), benchmark(quiz, "many")

    def prompts(of: ProcessBenchmark) -> list[str | None]:
        return [questions[0].prompt for questions in of.render("all", read(of), SETTINGS)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(prompts, [sums, many, sums, many]))
    assert found[0] == found[2] == ["0 + 1 =", "1 + 1 =", "2 + 1 ="]
    assert found[1] == found[3] == [f"{number} + 1 =" for number in range(500)]


def test_the_version_is_kept_until_the_package_changes(quiz: QuizEnvironment) -> None:
    first = benchmark(quiz)
    first._process.close()
    again = benchmark(quiz)
    assert again.version() == first.version()
    assert not again._process.is_alive()  # what the worker described is on disk
    quiz.write("2")
    changed = benchmark(quiz)
    assert changed.version() != first.version()
    assert changed.version() == benchmark(quiz).version()


def test_a_process_does_not_outlive_a_change_of_its_package(quiz: QuizEnvironment) -> None:
    first = benchmark(quiz)
    read(first)
    pid = first._process._process.pid  # type: ignore[union-attr]
    quiz.write("2")
    read(benchmark(quiz))
    assert benchmark(quiz)._process._process.pid != pid  # type: ignore[union-attr]


def test_an_environment_that_is_missing_or_lacks_the_package_says_what_to_do(quiz: QuizEnvironment, tmp_path: Path) -> None:
    advice = "`eval-dagster environments add quiz`"
    with pytest.raises(RequirementError, match=f"evals.yaml names none under `environments`; {advice}"):
        QuizRegistry().benchmark("sums", tmp_path)
    with pytest.raises(RequirementError, match=f"no such file; {advice}"):
        QuizRegistry().within(tmp_path / "no" / "python").benchmark("sums", tmp_path)
    (quiz.site_packages / "quizbook-1.dist-info").rename(quiz.site_packages / "other-1.dist-info")
    with pytest.raises(RequirementError, match=f"lacks the package quizbook, which tasks of quiz need; {advice}"):
        benchmark(quiz)


def test_another_release_than_the_supported_one_is_refused(quiz: QuizEnvironment) -> None:
    class Pinned(QuizRegistry):
        RELEASE = "2"

    with pytest.raises(RequirementError, match=r"tasks of quiz need quizbook 2, and the environment .* has 1"):
        Pinned().within(quiz.python).benchmark("sums", Path())


def test_any_release_from_the_oldest_supported_one_is_taken(quiz: QuizEnvironment) -> None:
    class From1(QuizRegistry):
        RELEASE = "2"
        OLDEST = "0.9"

    class From12(From1):
        OLDEST = "1.2"

    assert From1().within(quiz.python).benchmark("sums", Path()).description == "A quiz."
    with pytest.raises(RequirementError, match=r"tasks of quiz need quizbook 1\.2 or newer, and the environment .* has 1"):
        From12().within(quiz.python).benchmark("sums", Path())


def test_a_file_of_a_user_is_read_by_the_package_and_again_after_it_changed(quiz: QuizEnvironment, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("quiz = [('7 + 1', '8')]\n")
    first = QuizRegistry().within(quiz.python).benchmark("mine.py:quiz", tmp_path)
    assert read(first).evaluated == [{"question": "7 + 1", "answer": "8"}]
    file.write_text("quiz = [('8 + 1', '9')]\n")
    changed = QuizRegistry().within(quiz.python).benchmark("mine.py:quiz", tmp_path)
    assert read(changed).evaluated == [{"question": "8 + 1", "answer": "9"}]
    with pytest.raises(TaskDefinitionError, match=f"there is no task file {tmp_path / 'yours.py'}"):
        QuizRegistry().within(quiz.python).benchmark("yours.py:quiz", tmp_path)


def test_an_unknown_name_is_an_error_of_the_task(quiz: QuizEnvironment) -> None:
    with pytest.raises(TaskDefinitionError, match="quizbook has no quiz 'sum'"):
        benchmark(quiz, "sum")


def test_a_package_in_a_folder_of_its_own_is_described_each_time(quiz: QuizEnvironment) -> None:
    """Its files can change without a trace in the environment."""
    (quiz.site_packages / "quizbook-1.dist-info" / "direct_url.json").write_text('{"dir_info": {"editable": true}}')
    first = benchmark(quiz)
    first._process.close()
    assert benchmark(quiz)._process.is_alive()
