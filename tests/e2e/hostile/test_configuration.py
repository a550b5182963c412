"""An evals.yaml that somebody wrote to do harm, or by mistake: one clear message with its line, in little time and memory."""

import contextlib
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_dagster.config.loading import SMALLEST, load_config
from eval_dagster.errors import ConfigError
from eval_dagster.texts.visible_text import is_storable

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n" for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: v}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{below}'] * 9)}]}}\n" for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def problem_of(folder: Path, text: str | bytes) -> str:
    """The message about a configuration, which must say where."""
    path = folder / "evals.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert all(line.startswith(f"{path}:") for line in message.splitlines()), message
    return message.replace(f"{path}:", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LAUGHS, "6: the file has more than 100000 values"),
        (MERGES, "1: a: found an unknown key"),
        ("models: " + "[" * 20_000, "1: lists or mappings are nested too deep"),
        ("models: " + "{a: " * 5_000, "1: lists or mappings are nested too deep"),
        ("models: &a {<<: *a}", "1: "),
        ("models: &a [*a]", "1: "),
        ('models: {}\nevals: {a: {task: "\\ud83d"}}', "2: evals.a.task: found '\\ud83d', with half of a character"),
        (b"models: {}\n\nevals: \xff\n", "3: byte 19 of the file is no UTF-8"),
        ("models: {}\x00", "1: this is no YAML: the character U+0000 is not allowed"),
        ("models: {}\n\x1b[31m", "2: this is no YAML: the character U+001B is not allowed"),
        ("models:\n\ta: 1", "2: this is no YAML"),
        ("models: {}\nmodels: {}\nevals: {}", "2: models: found this key a second time"),
        (SMALLEST + "mlflow: {tracking_uri: htp://x}\n", "6: mlflow.tracking_uri: found something that is not repeated here"),
        (SMALLEST + "mlflow: {tracking_uri: 'http://'}\n", "it names no host; expected http://host:port"),
        (SMALLEST + "mlflow: {tracking_uri: 'http://a:99999999'}\n", "this is no address; expected http://host:port"),
        (SMALLEST + "mlflow: {tracking_uri: 'sqlite://'}\n", "it names no file, so that nothing would be kept"),
        (SMALLEST + "mlflow: {tracking_uri: './mlruns'}\n", "its scheme is ''"),
        (SMALLEST + 'datasets: {mirror: "a\\0b"}\n', "6: datasets.mirror: found 'a\\x00b', which cannot be looked at"),
        ('models: {"\\x9b\\u202e": {backend: scripted}}\nevals: {}', "1: models.'\\x9b\\u202e': found the name"),
    ],
    ids=lambda value: None if len(value) > 80 else ascii(value),
)
def test_one_message_says_where_and_what(tmp_path: Path, text: str | bytes, problem: str) -> None:
    started = time.monotonic()
    message = problem_of(tmp_path, text)
    assert problem in message
    assert is_storable(message)
    assert time.monotonic() - started < 20


def test_a_password_is_not_repeated(tmp_path: Path) -> None:
    message = problem_of(tmp_path, SMALLEST + "mlflow: {tracking_uri: 'htp://user:secret@host'}\n")
    assert "secret@" not in message
    assert "the scheme" not in message
    assert "its scheme is 'htp', did you mean 'http'" in message.replace("; did", ", did")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "https://u:p@host/path", "sqlite:///a.db", "postgresql+psycopg2://u:p@h/db"])
def test_addresses_of_mlflow_are_taken(tmp_path: Path, uri: str) -> None:
    (tmp_path / "evals.yaml").write_text(f"{SMALLEST}mlflow: {{tracking_uri: '{uri}'}}\n")
    assert load_config(tmp_path / "evals.yaml").mlflow.tracking_uri == uri


def test_the_smallest_configuration_of_the_message_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "evals.yaml")
    assert SMALLEST in str(caught.value)
    (tmp_path / "evals.yaml").write_text(SMALLEST)
    assert list(load_config(tmp_path / "evals.yaml").evals) == ["sums"]


def test_two_halves_are_a_character(tmp_path: Path) -> None:
    """JSON is YAML, and writes characters beyond U+FFFF so."""
    (tmp_path / "evals.yaml").write_text('\ufeff{"models": {"m": {"backend": "scripted", "default": "\\ud83d\\ude00"}}, "evals": {}}')
    model = load_config(tmp_path / "evals.yaml").models["m"]
    assert model.model_dump()["default"] == "\U0001f600"


WHOLE = textwrap.dedent("""\
    models: &all
      m: &m {backend: scripted, default: " 7", answers: {a: b}}
      n: {<<: *m, default: "8"}
    evals:
      e: {task: arithmetic, limit: 5, num_fewshot: 2}
    suites:
      s: {evals: [e], models: [m, n], cron: "0 2 * * *", gate: {alpha: 0.05}}
""")
PIECES = st.sampled_from(
    [*"{}[]:,&*!|>'\"%@`#-?~\n\t ", "<<: *m", "&m ", "*all", "\\ud83d", "\ufeff", "\x85", "9" * 400, "!!set", "---\n", "é"]
)


@pytest.mark.long
@settings(max_examples=300)
@given(edits=st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 6), PIECES | st.text(max_size=3)), min_size=1, max_size=4))
def test_a_changed_configuration_is_right_or_told_where_it_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int, str]]
) -> None:
    text = WHOLE
    for place, length, piece in edits:
        text = text[:place] + piece + text[place + length :]
    path = tmp_path_factory.getbasetemp() / "evals.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(ConfigError):
        assert is_storable(load_config(path).model_dump_json())
        return
    problem_of(path.parent, path.read_bytes())
