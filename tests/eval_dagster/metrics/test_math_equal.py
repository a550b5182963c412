"""Mathematics compared by the package math-verify in a process of its own."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from busy_processor import busy_processor
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_dagster.errors import DataError, MachineError, RequirementError
from eval_dagster.metrics import math_equal
from eval_dagster.metrics.math_equal import MathEqual
from eval_dagster.metrics.repeated import maj_at_k
from eval_dagster.records import Completion


def value(text: str, *truths: str) -> float:
    return MathEqual().calculate(Completion(completion_text=text, ground_truths=truths))


COLUMN = r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"


@pytest.mark.parametrize(
    ("text", "truth", "expected"),
    [
        # The same number in other forms.
        (r"\boxed{\frac{1}{2}}", "0.5", 1),
        ("1/2", r"\frac{1}{2}", 1),
        (r"\dfrac12", r"\frac{1}{2}", 1),
        ("50%", "0.5", 1),
        ("1,234", "1234", 1),
        ("2^{10}", "1024", 1),
        (r"\sqrt{8}", r"2\sqrt{2}", 1),
        (r"3\sqrt{2}", "3", 0),
        ("-5", "5", 0),
        ("1/3", "0.333", 0),
        (r"\pi", "3.14", 0),
        # Expressions, sets, points and intervals.
        ("(x+1)^2", "x^2+2x+1", 1),
        ("x+1", "x+2", 0),
        (r"\{1,2\}", r"\{2,1\}", 1),
        ("(1,2)", "(2,1)", 0),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", 1),
        ("[1,2)", "[1, 2]", 0),
        (r"x \geq 2", r"2 \leq x", 1),
        ("$x=5$", "5", 1),
        # Matrices as the answers of MATH have them: in an environment, without dollars.
        (rf"So it is $${COLUMN}$$", COLUMN, 1),
        (rf"\boxed{{{COLUMN}}}", COLUMN, 1),
        (r"\begin{pmatrix} 2/2 \\ 2 \end{pmatrix}", COLUMN, 1),
        (r"$\begin{pmatrix} 1 \\ 3 \end{pmatrix}$", COLUMN, 0),
        (rf"${COLUMN}$", COLUMN.replace(" ", "\n"), 1),
        (r"$$\begin{pmatrix} 1 \\[2pt] 2 \end{pmatrix}$$", COLUMN, 1),
        ("2", COLUMN, 0),
        # What the text boxes or calls its answer, else the last there is.
        (r"First 7, then $8$. So \boxed{7}. That was 9 lines.", "7", 1),
        ("The answer is 42.", "42", 1),
        ("first 7 then 8", "8", 1),
        ("first 7 then 8", "7", 0),
        (r"\begin{align*} x &= 5 \end{align*}", "5", 1),
        (r"\[ x = 5 \]", "5", 1),
        ("答案是 5", "5", 1),
        # A text equal to the correct one needs no mathematics.
        (r" \text{even} ", r"\text{even}", 1),
        ("even", "odd", 0),
        ("no mathematics", "5", 0),
        ("", "5", 0),
        ("\ud800", "5", 0),
    ],
)
def test_equal_or_not(text: str, truth: str, expected: float) -> None:
    assert value(text, truth) == expected


def test_one_of_several_correct_answers_is_enough() -> None:
    assert value("$4$", "3", "2^2") == 1
    assert value("$5$", "3", "2^2") == 0


@pytest.mark.parametrize("truth", ["", "  ", "$$"])
def test_a_gold_answer_without_mathematics_raises(truth: str) -> None:
    with pytest.raises(DataError, match="holds no mathematical expression; expected one for the metric math_equal"):
        value("5", "5", truth)
    with pytest.raises(DataError, match="no gold answer"):
        value("5")


def test_texts_vote_with_what_they_say() -> None:
    texts = [Completion(completion_text=text, ground_truths=["1/2"]) for text in ("$2$", r"So \boxed{1/2}", r"$\frac{1}{2}$")]
    assert maj_at_k(MathEqual, 3)().calculate_all(texts) == 1
    assert MathEqual().answer_of("nothing") is None


class Hurried(MathEqual):
    NAME = "hurried"
    TIMEOUT_S = 1.0


@pytest.mark.long
def test_what_takes_too_long_is_wrong_and_hurts_no_other() -> None:
    tower = Completion(completion_text=r"\boxed{9^{9^{9^{9^{9}}}}}", ground_truths=["5"])
    assert Hurried().calculate(tower) == 0
    assert value("5", "5.0") == 1


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are held to a processor by Linux alone")
def test_a_busy_machine_makes_no_right_answer_wrong() -> None:
    assert value("2/4", "1/2") == 1
    process = math_equal._worker._process
    assert process is not None
    allowed = os.sched_getaffinity(process.pid)
    # About 0.3 s of computer algebra: twice as long as the limit on a processor that six share.
    power = Completion(completion_text=r"\boxed{(a+b+c+d)^{8}-1}", ground_truths=["((a+b+c+d)^4-1)((a+b+c+d)^4+1)"])
    with busy_processor() as processor:
        os.sched_setaffinity(process.pid, {processor})
        begin = time.monotonic()
        found = Hurried().calculate(power)
        took = time.monotonic() - begin
    os.sched_setaffinity(process.pid, allowed)
    assert found == 1
    assert took > Hurried.TIMEOUT_S


@pytest.mark.long
def test_a_worker_that_the_machine_ends_is_a_failure_of_the_machine_and_not_of_the_answer() -> None:
    endless = Completion(completion_text=r"\boxed{9^{9^{9^{9^{9}}}}}", ground_truths=["5"])
    assert value("2/4", "1/2") == 1
    process = math_equal._worker._process
    assert process is not None
    killer = threading.Timer(0.5, process.kill)
    killer.start()
    with pytest.raises(MachineError, match="ended by SIGKILL, not by its limit of 10 s of processor time: the machine was too busy"):
        MathEqual().calculate(endless)
    assert value("2/4", "1/2") == 1


def test_a_worker_that_died_is_started_anew() -> None:
    assert value("2/4", "1/2") == 1
    process = math_equal._worker._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert [value("2/4", "1/2"), value("2/3", "1/2")] == [1, 0]


@pytest.mark.long
@pytest.mark.parametrize("missing", ["eval_dagster.metrics.math_equal._WORKER", "sys.executable"])
def test_a_worker_that_does_not_start_is_a_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    math_equal._worker.stop()
    with monkeypatch.context() as broken:
        broken.setattr(missing, "/no/such/file")
        with pytest.raises(MachineError, match="the process that reads mathematics"):
            value("2/4", "1/2")
    assert value("2/4", "1/2") == 1


def test_answers_of_threads_are_not_mixed_up() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: value(f"{number}/7", "3/7"), range(12))) == [float(number == 3) for number in range(12)]


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_equal, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(RequirementError, match=r"the metric math_equal needs .*'math_verify'.*pip install 'eval_dagster\[metrics\]'"):
        value("5", "5")


@settings(max_examples=25)
@given(top=st.integers(-99, 99), bottom=st.integers(1, 99), factor=st.integers(2, 9))
def test_fractions_are_equal_as_python_finds_them(top: int, bottom: int, factor: int) -> None:
    assert value(rf"\boxed{{\frac{{{top * factor}}}{{{bottom * factor}}}}}", f"{top}/{bottom}") == 1
    assert value(rf"\boxed{{\frac{{{top + 1}}}{{{bottom}}}}}", f"{top}/{bottom}") == 0


@settings(max_examples=25)
@given(text=st.text(max_size=30))
def test_any_text_is_right_or_wrong(text: str) -> None:
    assert value(text, "17/23") in (0, 1)
    assert value(f"{text}\nSo the answer is $17/23$", "17/23") == 1
