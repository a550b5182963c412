"""Programs that do not solve their task and try to pass its tests: none does, while programs that solve theirs pass."""

import textwrap
from collections.abc import Callable

import pytest

from eval_dagster.sandbox import SandboxResult

Run = Callable[..., SandboxResult]


GIVEN = '''
import math

def poly(xs, x):
    return sum(c * math.pow(x, i) for i, c in enumerate(xs))

def solve(x, report=None):
    """Solve."""
'''
RIGHT = GIVEN + "    report and report(x)\n    return 2 * x\n"
EQUAL, NEAR = "assert solve(2) == 4", "assert abs(solve(2) - 4) < 1e-6"

FORGERIES = {
    "equal to everything": ("class Any:\n    __eq__ = lambda *_: True\ndef solve(*_):\n    return Any()", EQUAL),
    "a number equal to everything": ("class Any(int):\n    __eq__ = lambda *_: True\ndef solve(*_):\n    return Any(1)", EQUAL),
    "a list of such": ("class Any(int):\n    __eq__ = lambda *_: True\ndef solve(*_):\n    return [Any(1)]", "assert solve(2) == [4]"),
    "a list equal to everything": (
        "class Any(list):\n    __eq__ = lambda *_: True\ndef solve(*_):\n    return Any()",
        "assert [4] == solve(2)",
    ),
    "a number at no distance": ("class Near(float):\n    __sub__ = lambda *_: 0.0\ndef solve(*_):\n    return Near(7)", NEAR),
    "an object at no distance": (
        "class Near:\n    __sub__ = __abs__ = lambda self, *_: self\n    __lt__ = lambda *_: True\ndef solve(*_):\n    return Near()",
        NEAR,
    ),
    "a container of everything": (
        "class All:\n    __contains__ = lambda *_: True\ndef solve(*_):\n    return All()",
        "assert 4 in solve(2)",
    ),
    "what the standard library has for it": ("import unittest.mock\ndef solve(*_):\n    return unittest.mock.ANY", EQUAL),
    "its class": ("import unittest.mock\nsolve = type(unittest.mock.ANY)", "assert solve() == 4"),
    "built-in functions": (
        "import builtins\nbuiltins.all = lambda *_: True\ndef solve(*_):\n    return 0",
        "assert all(solve(x) == y for x, y in [(2, 4)])",
    ),
    "names of built-in functions": (
        "all = lambda *_: True\ndef solve(*_):\n    return 0",
        "assert all(solve(x) == y for x, y in [(2, 4)])",
    ),
    "another library": (
        "import math\nmath.fabs = lambda *_: 0\ndef solve(*_):\n    return 0",
        "import math\nassert math.fabs(solve(2) - 4) < 1e-6",
    ),
    "another library of the same name": (
        "import sys, types\nmath = sys.modules['math'] = types.SimpleNamespace(fabs=lambda *_: 0)\ndef solve(*_):\n    return 0",
        "import math\nassert math.fabs(solve(2) - 4) < 1e-6",
    ),
    "other functions of the prompt": (
        "poly = lambda *_: 0\ndef solve(*_):\n    return 0",
        "def check(candidate):\n    assert abs(poly([candidate(1), 1], -2)) < 1e-6\n\ncheck(solve)",
    ),
    "the end of every loop": (
        "def solve(*_):\n    raise StopIteration",
        "for value, expected in zip(map(solve, [5]), [10]):\n    assert value == expected",
    ),
    "the caller's variables": (
        "import sys\ndef solve(*_):\n    return sys._getframe(1).f_locals['expected']",
        "def check(candidate):\n    expected = 4\n    assert candidate(2) == expected\n\ncheck(solve)",
    ),
    "the caller's constants": (
        "import sys\ndef solve(*_):\n    return sys._getframe(1).f_code.co_consts[2]",
        "def check(candidate):\n    assert candidate(2) == 4\n\ncheck(solve)",
    ),
    "what a function of the tests knows": (
        "def solve(x, report):\n    return report.__globals__['EXPECTED']",
        "EXPECTED = 4\ndef report(x):\n    pass\nassert solve(2, report) == EXPECTED",
    ),
    "a jump over the tests": (
        """
        import sys
        def solve(*_):
            return 0
        def trace(frame, event, argument):
            if frame.f_code.co_name != "check":
                return None
            def jump(frame, event, argument):
                if event == "line" and frame.f_lineno == frame.f_code.co_firstlineno + 1:
                    frame.f_lineno += 1
                return jump
            return jump
        sys.settrace(trace)
        """,
        "def check(candidate):\n    assert candidate(2) == 4\n    return\n\ncheck(solve)",
    ),
    "every secret handed back": (
        """
        import os
        def solve(*_):
            for source in range(3, 64):
                try:
                    os.set_blocking(source, False)
                    secret = os.read(source, 64)
                except OSError:
                    continue
                for target in range(3, 64):
                    try:
                        os.write(target, secret)
                    except OSError:
                        pass
            os._exit(0)
        """,
        EQUAL,
    ),
}
"""Programs with tests that they pass where both run in one process."""

_FRAME = """
import json, os, struct
def tell(*messages):
    for descriptor in range(3, 64):
        for message in messages:
            text = json.dumps(message).encode()
            try:
                os.write(descriptor, struct.pack(">Q", len(text)) + text)
            except OSError:
                pass
"""
ATTEMPTS = {
    "early exit": "import os\ndef solve(*_):\n    os._exit(0)",
    "exit by exception": "import sys\ndef solve(*_):\n    sys.exit(0)",
    "at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(*_):\n    raise SystemExit(0)",
    "a failure of another name": "def solve(*_):\n    raise AssertionError('passed')",
    "an empty answer": "def solve(*_):\n    return []",
    "nothing": "pass",
    "broken built-in functions": """
        import builtins
        def solve(*_):
            for name in ("len", "isinstance", "type", "map", "list"):
                setattr(builtins, name, lambda *_: True)
            return 0
    """,
    "every descriptor told that it passed": """
        import os
        def solve(*_):
            for descriptor in range(3, 64):
                for text in (b"passed", b'{"exit_code": 0, "completed": true}', b"\\n"):
                    try:
                        os.write(descriptor, text)
                    except OSError:
                        pass
            os._exit(0)
    """,
    "answers before the questions": _FRAME
    + 'tell(["done", ["dict", ["solve", 0]], []], ["done", 4, []], ["done", 4, []])\ndef solve(*_):\n    return 0',
    "messages of another kind": _FRAME
    + """
def solve(*_):
    for message in (["ask", "names", 0, ["check"]], ["ask"], {"a": 1}, [], 3, ["raised", ["SystemExit"], ""], ["done", ["x"] * 9, [[1]]]):
        tell(message)
    return 0
""",
    "the tests' own names": _FRAME
    + """
def solve(x, report=None):
    tell(["ask", "get", 1, "__globals__"], ["ask", "get", 1, "__code__"], ["ask", "set", 1, "__code__", 0], ["ask", "call", 1, [], {}])
    return 0
""",
    "signals to all": """
        import os, signal
        def solve(*_):
            for process in range(2, 50):
                if process != os.getpid():
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL):
                        try:
                            os.kill(process, number)
                        except OSError:
                            pass
            return 0
    """,
    "a module where the tests would look": """
        for name in ("math", "sitecustomize", "usercustomize", "json", "tests"):
            with open(f"/tmp/{name}.py", "w") as file:
                file.write("import os\\nos.write(5, b'passed')\\nfabs = lambda *_: 0")
        def solve(*_):
            return 0
    """,
}
"""Programs that know how the sandbox works."""
CHECK = """
import math
def check(candidate):
    def report(x):
        pass
    assert candidate(2, report) == 4
    assert math.fabs(candidate(3) - 6) < 1e-6
check(solve)
"""


OWN_SERVER = """
import json, os, stat, struct
def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
channel = next(filter(is_socket, range(3, 64)))
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(channel, size - len(data)) or os._exit(0)
    return data
while True:
    message = json.loads(read(struct.unpack(">Q", read(8))[0]))
    fake = {"names": ["dict", *([name, ["mine", 7]] for name in NAMES)], "len": 1, "next": 4, "get": ["mine", 8, "typing", "sys"]}
    answer = json.dumps(["done", fake.get(message[1], True), [["solve"]] if message[1] == "names" else []]).encode()
    os.write(channel, struct.pack(">Q", len(answer)) + answer)
"""
"""Answers whatever the tests ask: that every name is its own, and every call true."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "tests"),
    [
        (["solve", "all"], "assert all(solve(x) == y for x, y in [(2, 4)])"),
        (["solve", "check"], "def check(candidate):\n    assert candidate(2) == 4\n\ncheck(solve)"),
        (["solve", "poly", "math"], "def check(candidate):\n    assert math.fabs(poly([candidate(1), 1], -2)) < 1e-6\n\ncheck(solve)"),
        (["solve", "__builtins__", "__name__", "wrong"], "assert solve(2) == 4 and __name__ == 'tests'"),
    ],
)
def test_a_program_that_answers_by_itself_does_not_pass(run_program: Run, names: list[str], tests: str) -> None:
    assert not passes(run_program, f"NAMES = {names}\n{OWN_SERVER}", tests)
    assert passes(run_program, f"NAMES = {names}\n{OWN_SERVER}", "assert solve(2) is True")


def passes(run_program: Run, code: str, tests: str) -> bool:
    return run_program(code, tests=tests, given=GIVEN, entry="solve", name="program", timeout_s=3).completed


@pytest.mark.long
@pytest.mark.parametrize("what", FORGERIES)
def test_a_forgery_does_not_pass(run_program: Run, what: str) -> None:
    code, tests = map(textwrap.dedent, FORGERIES[what])
    assert not passes(run_program, code, tests)


@pytest.mark.parametrize("what", ATTEMPTS)
def test_an_attempt_does_not_pass(run_program: Run, what: str) -> None:
    assert not passes(run_program, textwrap.dedent(ATTEMPTS[what]), CHECK)


def test_a_program_that_solves_its_task_passes(run_program: Run) -> None:
    for tests in (CHECK, EQUAL, NEAR, "assert abs(poly([solve(1), 1], -2)) < 1e-6"):
        assert passes(run_program, RIGHT, tests)
        assert passes(run_program, "def solve(x, report=None):\n    return 2 * x", tests)


def test_the_tests_are_not_to_be_read(run_program: Run) -> None:
    """The expected values are nowhere in the program's process."""
    code = """
    import gc
    def solve(x):
        found = [text for text in gc.get_objects() + [str(each) for each in gc.get_objects()] if isinstance(text, str)]
        print("".join(["SECRET", "VALUE"]) in "".join(found))
        return 1
    """
    result = run_program(textwrap.dedent(code), tests="assert solve(0) == 1, 'SECRETVALUE'", name="program")
    assert (result.completed, result.stdout) == (True, "False\n")


ORDINARY = {
    "copies of plain values": """
        import collections, datetime, decimal, fractions
        def f(x):
            return x
        """,
    "what a function does to its argument": "def f(x):\n    x.sort()\n    x.append(x)\n    return None",
    "a class": """
        class f:
            count = 0
            def __init__(self, start):
                self.start = start
            def add(self, other):
                return f(self.start + other.start)
            def __eq__(self, other):
                return self.start == other.start
            def __iter__(self):
                yield from range(self.start)
            def __len__(self):
                return self.start
    """,
    "a generator": "def f(n):\n    for i in range(n):\n        yield [i]",
    "exceptions": "def f(x):\n    if x < 0:\n        raise ValueError(f'{x} is negative')\n    return {}[x]",
    "subclasses of plain classes": """
        import collections, enum
        Point = collections.namedtuple("Point", "x y")
        class Color(enum.IntEnum):
            RED = 1
        class Text(str):
            pass
        def f(kind):
            return {"point": Point(1, 2), "color": Color.RED, "text": Text("a"), "keys": {1: 2}.keys(), "true": 1 == 1}[kind]
    """,
    "functions of the tests": "def f(function, values):\n    return sorted(values, key=function), list(map(function, values)), function",
    "a coroutine": "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return [x]",
    "deep and large values": "def f(x):\n    return [x] * 10**5",
    "names of the program": "import math\nfrom collections import Counter\nLIMIT = {'a': (1, 2)}\ndef f(x):\n    return Counter(x)",
}
TESTS_OF_ORDINARY = {
    "copies of plain values": """
        import collections, datetime, decimal, fractions, math
        values = [None, True, 0, -1, 2**53, -(10**400), 0.1, -0.0, 1e308, float("inf"), 1j, "a\\n\\u00e9\\ud800", b"\\xff"]
        values += [(), (1, [2]), {1, 2}, frozenset([(1,)]), {"a": {(1, 2): [None]}}]
        values += [range(3), slice(1, None), bytearray(b"x"), Ellipsis, int, ValueError, len]
        values += [fractions.Fraction(1, 3), decimal.Decimal("0.10"), datetime.date(2024, 2, 29), datetime.timedelta(-1, 0, 5)]
        values += [collections.Counter("abca"), collections.deque([1], 3), collections.OrderedDict(b=1, a=2)]
        values += [collections.defaultdict(list, a=[1])]
        for value in values:
            found = f(value)
            assert found == value and type(found) is type(value), (found, value)
        assert math.isnan(f(float("nan"))) and math.copysign(1, f(-0.0)) == -1
        assert f(collections.deque([1], 3)).maxlen == 3 and f(collections.defaultdict(list))["x"] == []
        shared = [1]
        twice = f([shared, shared])
        assert twice[0] is shared and twice[1] is shared
        around = []
        around.append(around)
        assert f(around) is around
    """,
    "what a function does to its argument": """
        values = [3, 1, 2]
        kept = values
        assert f(values) is None
        assert kept is values and values[:3] == [1, 2, 3] and values[3] is values and len(values) == 4
    """,
    "a class": """
        one, two = f(1), f(2)
        assert one.start == 1 and one.add(two).start == 3
        assert one.add(two) == f(3) and one != two and not (one == 1)
        assert list(f(3)) == [0, 1, 2] and len(two) == 2 and 1 in two and 5 not in two
        assert isinstance(one, f) and not isinstance(1, f) and f.count == 0
        one.start = 9
        assert one.start == 9 and f.__name__ == "f" and not hasattr(one, "missing")
        assert [one, two] == [one, two] and {one: 1}[one] == 1
    """,
    "a generator": """
        assert list(f(3)) == [[0], [1], [2]]
        steps = f(1)
        assert next(steps) == [0]
        try:
            next(steps)
        except StopIteration:
            pass
        else:
            assert False
        assert sorted(f(2), reverse=True) == [[1], [0]]
    """,
    "exceptions": """
        for value, kind in ((-1, ValueError), (1, KeyError), ("a", TypeError)):
            try:
                f(value)
            except kind as problem:
                assert kind is not ValueError or str(problem) == "-1 is negative"
            else:
                assert False
    """,
    "subclasses of plain classes": """
        assert f("point") == (1, 2) and f("color") == 1 and f("text") == "a" and f("keys") == {1} and f("true") is True
    """,
    "functions of the tests": """
        def negative(x):
            return -x
        assert f(negative, [1, 3, 2]) == ([3, 2, 1], [-1, -3, -2], negative)
        assert f(abs, [-3, 1])[0] == [1, -3]
        def failing(x):
            raise KeyError(x)
        try:
            f(failing, [1])
        except KeyError:
            pass
        else:
            assert False
    """,
    "a coroutine": """
        import asyncio
        async def main():
            return await f(1)
        assert asyncio.run(main()) == [1]
    """,
    "deep and large values": "deep = []\nfor _ in range(100):\n    deep = [deep]\nassert f(deep) == [deep] * 10**5\n"
    "for one in (1, -(2**60), 0.5, 'a', None, True, [1]):\n    assert f(one) == [one] * 10**5 and type(f(one)[-1]) is type(one)",
    "names of the program": """
        assert LIMIT["a"] == (1, 2) and f("aab") == Counter(a=2, b=1) and math.isclose(math.pi, 3.14159265, abs_tol=1e-6)
        assert isinstance(f("a"), Counter)
    """,
}


@pytest.mark.long
@pytest.mark.parametrize("what", ORDINARY)
def test_what_tests_do_with_a_program_works_across_processes(run_program: Run, what: str) -> None:
    code, tests = textwrap.dedent(ORDINARY[what]), textwrap.dedent(TESTS_OF_ORDINARY[what])
    result = run_program(code, tests=tests, name="program")
    assert result.completed, result.stderr
    assert not run_program(code, tests=f"{tests}\nassert f is None", name="program").completed


def test_what_both_print_is_kept(run_program: Run) -> None:
    result = run_program(
        "print('of the program', end='')\ndef f():\n    print('called')", tests="print('of the tests')\nf()\nassert 0", name="program"
    )
    for text in ("of the program", "called\n", "of the tests\n"):
        assert text in result.stdout
    assert result.stderr.endswith("AssertionError\n")


def test_a_program_that_fails_before_its_tests(run_program: Run) -> None:
    result = run_program("raise KeyError('early')", tests="pass\nf", name="program")
    assert not result.completed
    assert "KeyError: 'early'" in result.stderr
    assert "the program ended before its tests" in result.stderr
