"""Scripted answers to all entries of BFCL, with the verdicts of the package's checkers. It runs in an environment with bfcl-eval.

`bfcl_itself.py FILE CATEGORY...` writes one JSON object a line: category, id, kind, valid, and result as in the package's files of results.
Each entry has four answers: right, with a wrong value, without a call, and with a call too many.
A verdict over several turns is made in a process of its own.
"""

import ast
import copy
import importlib.util
import json
import os
import sys
import tempfile
import types
from contextlib import nullcontext
from pathlib import Path

os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp()
models = types.ModuleType("bfcl_eval.constants.model_config")


class Models(dict):
    def __missing__(self, name):
        return types.SimpleNamespace(underscore_to_dot=True)


models.MODEL_CONFIG_MAPPING = Models()
sys.modules[models.__name__] = models

if importlib.util.find_spec("filelock") is None:  # the environment that is made for the tasks lacks it: nobody else writes its files
    sys.modules["filelock"] = types.ModuleType("filelock")
    sys.modules["filelock"].FileLock = nullcontext

from bfcl_eval import utils  # noqa: E402
from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.agentic_eval.agentic_checker import agentic_checker  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker  # noqa: E402
from bfcl_eval.model_handler.utils import convert_to_function_call  # noqa: E402

KINDS = ("right", "wrong", "missing", "extra")


def native(calls):
    """Calls as a server gives them: names without dots, arguments as JSON text."""
    return [{name.replace(".", "_"): json.dumps(arguments)} for name, arguments in calls]


def mutated(calls, kind):
    calls = copy.deepcopy(calls)
    if kind == "wrong":
        for _, arguments in calls:
            for name, value in arguments.items():
                arguments[name] = "nothing of the kind" if isinstance(value, str) else [value, 987654]
                return calls
    if kind == "missing":
        return calls[:-1]
    return [*calls, *calls[-1:]] if kind == "extra" else calls


def first(values):
    """The first of the right values of each key that is needed; the values of dictionaries have right values, too."""
    if isinstance(values, list):
        return [first(each) for each in values]
    if not isinstance(values, dict):
        return values
    needed = {key: several for key, several in values.items() if not (isinstance(several, list) and "" in several)}
    return {key: first(several[0]) if isinstance(several, list) and several else several for key, several in needed.items()}


def of_one_turn(entry, answer, kind):
    if answer is None:
        call = [[entry["function"][0]["name"], {}]] if entry["function"] else []
        return {"right": "There is no function for it.", "wrong": native(call), "missing": "", "extra": native([*call, *call])}[kind]
    calls = []
    for each in answer:
        [(name, values)] = each.items()
        calls.append([name, first(values)])
    return native(mutated(calls, kind))


def value(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def of_turns(entry, answer, kind):
    functions = [*entry["function"], *(each for several in entry.get("missed_function", {}).values() for each in several)]
    names = {each["name"]: list(each["parameters"]["properties"]) for each in functions}
    turns = []
    for texts in answer:
        calls = []
        for text in texts:
            call = ast.parse(text, mode="eval").body
            name = ast.unparse(call.func)
            given = {key: value(each) for key, each in zip(names.get(name, "abcdefgh"), call.args, strict=False)}
            calls.append([name, {**given, **{each.arg: value(each.value) for each in call.keywords}}])
        turns.append(calls)
    chosen = max(number for number, calls in enumerate(turns) if calls)
    turns[chosen] = mutated(turns[chosen], kind)
    return [[native(calls), "done"] if calls else ["done"] for calls in turns]


def judged(category, entry, answer, result):
    if "relevance" in category:
        is_call = isinstance(result, list) and result != []
        return is_call != ("irrelevance" in category)
    if "multi_turn" in category:
        decoded = [[convert_to_function_call(step) for step in turn if isinstance(step, list) and step] for turn in result]
        return multi_turn_checker(decoded, answer, entry, category, "model")["valid"]
    if "memory" in category:
        return agentic_checker(result[0][-1], answer)["valid"]
    language = Language.JAVA if utils.is_java(category) else Language.JAVASCRIPT if utils.is_js(category) else Language.PYTHON
    decoded = [{name: json.loads(text) for name, text in call.items()} for call in result]
    return ast_checker(entry["function"], decoded, answer, language, category, "model")["valid"]


def apart(function, *arguments):
    """The result of a function that is called in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"1" if function(*arguments) else b"0")
        os._exit(0)
    os.close(write)
    found = os.read(read, 1)
    os.close(read)
    os.waitpid(child, 0)
    return found == b"1"


def main(file, *categories):
    with Path(file).open("w", encoding="utf-8") as lines:
        for category in categories:
            entries = utils.load_dataset_entry(category, include_prereq=False, include_language_specific_hint=False)
            is_relevance = "relevance" in category
            answers = [None] * len(entries) if is_relevance else [each["ground_truth"] for each in utils.load_ground_truth_entry(category)]
            for entry, answer in zip(entries, answers, strict=True):
                for kind in KINDS:
                    if "memory" in category:
                        said = {"right": answer[0], "wrong": "I do not know", "missing": "", "extra": f"{answer[0]}. {answer[-1]}"}[kind]
                        result = [[said or "-"]]
                    else:
                        result = (of_turns if "multi_turn" in category else of_one_turn)(entry, answer, kind)
                    given = (category, entry, answer, result)
                    valid = apart(judged, *given) if "multi_turn" in category else judged(*given)
                    line = {"category": category, "id": entry["id"], "kind": kind, "result": result, "valid": valid}
                    lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
