"""Model backends of other packages and in files: found, versioned, and harmless to everything else where they are broken."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eval_dagster as ed
from eval_dagster.cli.main import main
from eval_dagster.errors import ConfigError, UsageError
from eval_dagster.lake.format.parquet_files import read_rows as read_table_rows
from eval_dagster.models import registry
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

BACKEND = """
    from typing import Literal

    from eval_dagster.config.models import ModelSection
    from eval_dagster.models.scripted import ScriptedHandle

    class ParrotSection(ModelSection):
        backend: Literal["parrot"]
        word: str

    class Parrot(ScriptedHandle):
        SECTION = ParrotSection

        @classmethod
        def open(cls, name, config, *, folder, home):
            return cls(name, default=config.word)
"""
CONFIG = """
    models:
      polly: {{backend: parrot, {keys}}}
      sevens: {{backend: scripted, default: " 7"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 0, limit: 2}}
"""

Install = Callable[..., None]
"""Code, value of the entry point, and its name."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one module and one entry point where Python finds it."""

    def put(code: str, value: str, *, name: str = "parrot", package: str = "parrots") -> None:
        folder = tmp_path / "site"
        information = folder / f"{package}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / "parrots.py").write_text(textwrap.dedent(code))
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(folder))
        registry._entries.cache_clear()

    yield put
    monkeypatch.undo()
    registry._entries.cache_clear()
    sys.modules.pop("parrots", None)


def project(folder: Path, keys: str = 'word: " 7"') -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(keys=keys)))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def outcomes(opened: Project) -> dict[str, list[StageResult | StageFailure]]:
    found: dict[str, list[StageResult | StageFailure]] = {}
    partitions = [("sums", model) for model in opened.config.models]
    for outcome in evaluate(opened, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()):
        found.setdefault(str(outcome.model), []).append(outcome)
    return found


def test_a_backend_has_its_own_keys_and_answers(install: Install, tmp_path: Path) -> None:
    install(BACKEND, "parrots:Parrot")
    opened = project(tmp_path)
    assert type(opened.handle("polly")).__name__ == "Parrot"
    assert all(isinstance(outcome, StageResult) for outcome in outcomes(opened)["polly"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("wrd: x", "models.polly.wrd: found an unknown key; expected one of backend, prompt_format, .*word; did you mean 'word'"),
        ("word: 7", "models.polly.word: found 7; expected text"),
        ("generation: {}", "models.polly.word: found nothing; expected text"),
    ],
)
def test_wrong_keys_are_named(install: Install, tmp_path: Path, keys: str, message: str) -> None:
    install(BACKEND, "parrots:Parrot")
    with pytest.raises(ConfigError, match=message):
        project(tmp_path, keys)


def test_an_unknown_backend_lists_what_exists(install: Install, tmp_path: Path) -> None:
    install(BACKEND, "parrots:Parrot")
    (tmp_path / "evals.yaml").write_text("models: {m: {backend: parot}}\nevals: {sums: {task: arithmetic}}\n")
    expected = (
        r"models\.m\.backend: found 'parot'; expected 'transformers' or 'vllm'"
        r" or 'scripted' or 'openai' or 'imported' or 'parrot'; did you mean 'parrot'"
    )
    with pytest.raises(ConfigError, match=expected):
        Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


BROKEN = {
    "import": ("import no_such_library", "parrots:Parrot", "cannot be imported from parrots:Parrot .*No module named 'no_such_library'"),
    "name": ("", "parrots:Parrot", "cannot be imported from parrots:Parrot .*AttributeError"),
    "exit": ("raise SystemExit(3)", "parrots:Parrot", "cannot be imported from parrots:Parrot .SystemExit: 3"),
    "no class": ("Parrot = 7", "parrots:Parrot", "is parrots:Parrot, which is no backend; expected a class with a SECTION"),
    "no open": (BACKEND.replace("Parrot(ScriptedHandle)", "Parrot").replace("def open", "def start"), "parrots:Parrot", "is no backend"),
    "other name": (BACKEND.replace('Literal["parrot"]', 'Literal["bird"]'), "parrots:Parrot", 'expected `backend: Literal."parrot".`'),
}


@pytest.mark.parametrize(("code", "value", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_backend_is_named_once_and_other_models_stay_usable(
    install: Install, tmp_path: Path, code: str, value: str, message: str
) -> None:
    install(code, value)
    opened = project(tmp_path)
    with pytest.raises(Exception, match=message) as raised:
        opened.check(["sums"], ["polly", "sevens"])
    assert str(raised.value).count("the model backend 'parrot' of parrots") == 1
    assert "correct or uninstall that package" in str(raised.value)
    opened.check(["sums"], ["sevens"])


@pytest.mark.long
def test_the_models_of_other_backends_are_evaluated(install: Install, tmp_path: Path) -> None:
    install(*BROKEN["import"][:2])
    results = outcomes(project(tmp_path))
    assert [type(outcome) for outcome in results["polly"]] == [StageFailure]
    assert all(isinstance(outcome, StageResult) for outcome in results["sevens"])


@pytest.mark.long
def test_the_commands_say_it_in_one_line(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    install(*BROKEN["import"][:2])
    project(tmp_path)
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("os._exit", sys.exit)
    printed = {}
    for arguments, expected in ((["models"], 2), (["run"], 1)):
        monkeypatch.setattr(sys, "argv", ["eval-dagster", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == expected
        captured = capfd.readouterr()
        printed[arguments[0]] = captured.out + captured.err
    assert "Traceback" not in "".join(printed.values())
    problem = "the model backend 'parrot' of parrots cannot be imported"
    assert f"error: {problem}" in printed["models"]
    assert problem in printed["run"], "the other model is evaluated"
    assert "Leaderboard" in printed["run"]
    assert "refused" in printed["models"]
    assert "ready, version" in printed["models"]


BARE = """
    from typing import Literal

    from eval_dagster.config.models import ModelSection

    class ParrotSection(ModelSection):
        backend: Literal["parrot"]
        word: str

    class Parrot:
        SECTION = ParrotSection

        @classmethod
        def open(cls, name, config, *, folder, home):
            return cls()

        check = version = content_version = template_version = image_mark = apply_chat_template = load = lambda *_: ""
"""


def test_a_handle_without_the_members_of_its_base_class_is_refused(install: Install, tmp_path: Path) -> None:
    install(BARE, "parrots:Parrot")
    opened = project(tmp_path)
    expected = (
        "^Model 'polly': the backend 'parrot' opens a Parrot, which lacks members of a handle; expected an instance of a subclass of "
        "eval_dagster.ModelHandle"
    )
    with pytest.raises(ConfigError, match=expected):
        opened.handle("polly")
    opened.handle("sevens").check()


def test_a_handle_has_the_members_that_are_required_and_inherits_the_others(install: Install, tmp_path: Path) -> None:
    base = BARE.replace("class Parrot:", "class Parrot(ModelHandle):").replace(
        "from typing", "from eval_dagster import ModelHandle\n    from typing"
    )
    install(base, "parrots:Parrot")
    handle = project(tmp_path).handle("polly")
    assert (handle.takes_messages(), handle.answers_vary(), handle.must_ask(), handle.must_prepare(), handle.shares()) == (False,) * 5
    assert (handle.engine(), handle.declared_versions()) == ("", None)


def test_no_package_replaces_a_backend_of_this_one(install: Install, tmp_path: Path) -> None:
    install(BACKEND, "parrots:Parrot", name="scripted")
    (tmp_path / "evals.yaml").write_text("models: {m: {backend: scripted}}\nevals: {sums: {task: arithmetic}}\n")
    handle = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home").handle("m")
    assert type(handle) is ScriptedHandle


@pytest.mark.long
def test_a_backend_that_two_packages_register_is_used_of_neither(install: Install, tmp_path: Path) -> None:
    install(BACKEND, "parrots:Parrot")
    install(BACKEND, "parrots:Other", package="cockatoos")
    found = outcomes(project(tmp_path))
    assert [each.message for each in found["polly"] if isinstance(each, StageFailure)] == [
        "the model backend 'parrot' is registered 2 times, as parrots:Other and parrots:Parrot; uninstall all packages with it but one"
    ]
    assert not any(isinstance(each, StageFailure) for each in found["sevens"])


# ---- a class in a file

IN_FILE = """
    from eval_dagster import ModelSection
    from eval_dagster.models.scripted import ScriptedHandle
    from words import ENDING

    class Keys(ModelSection):
        word: str

    class Parrot(ScriptedHandle):
        SECTION = Keys

        @classmethod
        def open(cls, name, config, *, folder, home):
            return cls(name, default=config.word + ENDING)
"""


def in_file(
    folder: Path, code: str = IN_FILE, *, ending: str = "", backend: str = "backends/parrot.py:Parrot", keys: str = 'word: " 7"'
) -> Project:
    (folder / "backends").mkdir(exist_ok=True)
    (folder / "backends/parrot.py").write_text(textwrap.dedent(code))
    (folder / "backends/words.py").write_text(f"ENDING = {ending!r}\n")
    text = textwrap.dedent(CONFIG.format(keys=keys)).replace("backend: parrot", f'backend: "{backend}"')
    (folder / "evals.yaml").write_text(text)
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def answers(project: Project) -> tuple[set[str], int]:
    """The texts of polly, and how many requests were sent."""
    outcomes = list(evaluate(project, [("sums", "polly")], stages=set(STAGES), run_id="r", reporter=SilentReporter()))
    assert not [each for each in outcomes if isinstance(each, StageFailure)], outcomes
    [outputs] = [each for each in outcomes if isinstance(each, StageResult) and each.stage == "model_outputs"]
    texts = {row["text"][0] for row in read_table_rows(outputs.file.path)}
    return texts, 0 if outputs.cached else int(outputs.file.info.counts["requests_computed"])


@pytest.mark.long
def test_a_backend_is_a_class_in_a_file(tmp_path: Path) -> None:
    """Its code, and that of its neighbour, are part of the model's version: an edit asks again, and nothing else does."""
    first = in_file(tmp_path)
    texts, sent = answers(first)
    assert texts == {" 7"}
    assert sent > 0
    assert answers(in_file(tmp_path)) == (texts, 0)
    version, content = first.handle("polly").version(), first.handle("polly").content_version()
    assert first.handle("polly").version() == version
    edited = in_file(tmp_path, ending="!")
    assert edited.handle("polly").version() != version
    assert answers(edited) == ({" 7!"}, sent)
    reworded = in_file(tmp_path, IN_FILE.replace("config.word + ENDING", "ENDING + config.word"))
    assert reworded.handle("polly").version() not in (version, edited.handle("polly").version())
    assert reworded.handle("polly").content_version() == content, "the code is the engine, not the model"
    assert isinstance(first.handle("polly"), ScriptedHandle)


def test_the_keys_of_a_backend_in_a_file_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evals.yaml:3: models.polly.wort?d?: found"):
        in_file(tmp_path, keys="wort: 7")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "backends/parot.py:Parrot"}, r"Model 'polly': there is no file .*parot\.py .*; a path is relative to the folder"),
        ({"backend": "backends/parrot.py:Parot"}, r"Model 'polly': .*parrot\.py defines no 'Parot'; expected the name of a class"),
        ({"backend": "backends/parrot.py:ENDING"}, r"Model 'polly': ENDING in .*parrot\.py is no backend; expected a class with a SECTION"),
        ({"code": "raise OSError('no disk')"}, r"Model 'polly': .*parrot\.py cannot be run \(OSError: no disk\)"),
        ({"code": "import sys; sys.exit(3)"}, r"Model 'polly': .*cannot be run \(SystemExit: 3\)"),
    ],
)
def test_a_broken_file_is_named_and_other_models_work(tmp_path: Path, change: dict[str, str], message: str) -> None:
    opened = in_file(tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        opened.handle("polly")
    opened.handle("sevens").check()
    with pytest.raises(UsageError, match=message):
        opened.check(["sums"], ["polly"])


@pytest.mark.long
def test_a_call_from_python_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    monkeypatch.delenv("EVAL_DAGSTER_HOME", raising=False)
    model = {"backend": "backends/parrot.py:Parrot", "word": "7"}
    found = ed.evaluate("arithmetic", model, limit=2, num_fewshot=0, progress=False)
    assert set(found.scores["model"]) == {"parrot"}
