"""Which texts the package of BFCL may evaluate when it reads calls in them."""

import pytest

from eval_dagster.peers.workers.bfcl_texts import may_be_evaluated


@pytest.mark.parametrize(
    ("text", "has_tag", "expected"),
    [
        ("[f(a=1, b=[-2, {'c': g(d=None)}]), g.h(b='x + y')]", False, False),
        ("f(a=1),\n g(b=2)", False, False),
        ("`[f(a=1)]`\n", False, False),
        ("I call <TOOLCALL>[f(a=1)]</TOOLCALL> (1 + 1)", True, False),
        ("[f(a=print() or 1 + 1)]", False, True),
        ("[f(a=[{'b': (lambda: 1)}])]", False, True),
        # Without the tag in the format, the package reads the text around it.
        ("[f(a=(print() or 1) + 1), #<TOOLCALL>x()</TOOLCALL>\n g(b=1)]", False, True),
        ("<TOOLCALL>[f(a=1 + 1)]</TOOLCALL>", True, True),
        ("<TOOLCALL>[f(a=1)]</TOOLCALL><TOOLCALL>[f(a=1 + 1)]</TOOLCALL>", True, True),
        # A comment without the first quotation mark, and a call with it.
        ("'#'.f(a=(print() or 1) + 1)", False, True),
        ("I cannot.", False, True),
        ("I cannot.", True, True),
        ("(" * 100_000, False, True),
        ([{"f": "{}"}], False, True),
    ],
)
def test_only_calls_with_plain_arguments_are_known_to_be_harmless(text: object, has_tag: bool, expected: bool) -> None:
    assert may_be_evaluated(text, has_tag=has_tag) is expected
