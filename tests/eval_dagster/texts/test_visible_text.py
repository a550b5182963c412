"""Texts as people and parsers are shown them."""

import io
import json
import unicodedata

import pytest
from hostile_texts import DANGEROUS, FORMULAS, HALVES, STORABLE
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from eval_dagster.texts.terminal import PlainConsole
from eval_dagster.texts.visible_text import (
    is_storable,
    json_text,
    markdown_text,
    message_text,
    one_line,
    spreadsheet_text,
    starts_formula,
    storable,
    visible,
)

ANY_TEXT = st.text(st.characters(codec=None))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m", r"\x9b31m"),
        ("a\r\x08\x00\x7f", r"a\r\x08\x00\x7f"),
        ("\u202ecod.exe", r"\u202ecod.exe"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud83d", r"\ud83d"),
        ("\u2028\u200b\ufeff\u00ad\u3164", r"\u2028\u200b\ufeff\xad\u3164"),
        ("a\nb\tc", "a\nb\tc"),
        ("\U0001faea, of a later Unicode", "\U0001faea, of a later Unicode"),
        ("naïve 漢字 नमस्ते שלום 👩‍👩‍👧", "naïve 漢字 नमस्ते שלום 👩‍👩‍👧"),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(ANY_TEXT)
def test_no_hidden_character_is_left(text: str) -> None:
    shown = visible(text)
    assert not DANGEROUS.search(shown)
    assert all(unicodedata.category(letter) not in ("Cc", "Cs", "Co", "Zl", "Zp") or letter in "\n\t" for letter in shown)
    assert visible(shown) == shown
    assert "\n" not in one_line(text)


@given(ANY_TEXT)
def test_json_holds_the_same_and_hides_nothing(text: str) -> None:
    written = json_text({text: [text, 1]}, indent=1)
    assert json.loads(written) == {text: [text, 1]}
    assert not DANGEROUS.search(written)
    assert is_storable(written)


def test_json_is_json_whatever_the_numbers_and_keys() -> None:
    values = {"a": [float("nan"), {"b": float("-inf")}], ("k", 1): 2**80}
    assert json.loads(json_text(values), parse_constant=pytest.fail) == {"a": [None, {"b": None}], "('k', 1)": 2**80}


@given(ANY_TEXT)
def test_a_text_can_be_stored_and_stays_what_it_is_where_it_can_be(text: str) -> None:
    kept = storable(text)
    assert is_storable(kept)
    assert (kept == text) == is_storable(text)


def test_half_a_character_stands_as_its_escape() -> None:
    assert [storable(text) for text in HALVES] == [r"half \ud83d of one", r"\udcff", r"\udc00\ud800"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_cell_that_a_spreadsheet_would_compute_is_a_text(text: str) -> None:
    assert starts_formula(text)
    assert spreadsheet_text(text).startswith("'")


@pytest.mark.parametrize("text", ["-7", "+3.5e-2", "12", "a=b", "x@y.z"])
def test_numbers_and_other_texts_stay_in_a_spreadsheet(text: str) -> None:
    assert spreadsheet_text(text) == text


def test_markdown_is_nothing_but_text() -> None:
    hostile = "a|b\n`c` <img src=x> ![i](http://e.example) www.e.example @team a@b.example &lt;b&gt; $x$ \x1b"
    assert markdown_text(hostile) == (
        r"a\|b \`c\` &lt;img src=x&gt; !\[i\](http\://e.example) www\.e.example \@<!-- -->team a\@b.example &amp;lt;b&amp;gt; \$x\$ \\x1b"
    )


def test_a_message_calls_nobody() -> None:
    hostile = "<!channel> @everyone <@U1> <http://e.example|click> [click](http://e.example) p < 0.05, pass@1 a@b.example \u202e"
    assert message_text(hostile) == (
        r"‹!channel> @ everyone ‹@ U1> ‹http://e.example|click> [click] (http://e.example) p < 0.05, pass@1 a@ b.example \u202e"
    )
    # as errors of servers hold them, between marks and within words
    assert message_text("_@everyone_ Error@everyone @**all** <users/all> <at id=1>") == (
        "_@ everyone_ Error@ everyone @ **all** ‹users/all> ‹at id=1>"
    )


@pytest.mark.parametrize("text", STORABLE)
def test_a_console_prints_any_text_as_text(text: str) -> None:
    output = io.StringIO()
    console = PlainConsole(file=output, force_terminal=True, color_system=None, width=1000)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(one_line(text))
    console.print(text, Text(text), soft_wrap=True)
    console.print(table)
    console.rule(one_line(text))
    shown = output.getvalue()
    assert not DANGEROUS.search(shown)
    assert visible(text).partition("\t")[0] in shown


def test_a_ci_system_is_given_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "::error::x\n  ::add-mask::y\na ##vso[task.setvariable]z\n##[error]e\n## Title, foo::bar"
    for variable in ("CI", "GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    assert printed(hostile) == hostile
    monkeypatch.setenv("CI", "true")
    assert printed(hostile) == "|::error::x\n|  ::add-mask::y\na \\x23#vso[task.setvariable]z\n\\x23#[error]e\n## Title, foo::bar"


def printed(text: str) -> str:
    output = io.StringIO()
    PlainConsole(file=output).print(text, soft_wrap=True)
    return output.getvalue().removesuffix("\n")


@pytest.mark.long
@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["-" + "1" * 200_000 + "x", " " * 200_000 + "1", "<" + "a" * 200_000, "@<::#" * 40_000, "\x1b[" * 100_000])
def test_a_long_text_takes_time_in_proportion(text: str) -> None:
    """A model could choose an answer by which a pattern that goes back and forth takes hours."""
    for write in (visible, one_line, storable, json_text, markdown_text, message_text, spreadsheet_text, printed):
        assert write(text)
