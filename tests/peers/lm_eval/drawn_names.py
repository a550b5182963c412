"""A random draw of names of lm-eval's tasks, over families and types."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from random import Random

from lm_eval.tasks._yaml_loader import load_yaml

from eval_dagster.peers.lm_eval.index import package_folder, package_index

WANTED = {"multiple_choice": 100, "generate_until": 110, "loglikelihood_rolling": 12, "loglikelihood": 14, "class": 10}
"""How many names of each type are drawn. About two of five are refused, or no invented rows fit them."""


def drawn_names(seed: int = 7, wanted: Mapping[str, int] = WANTED) -> list[str]:
    """Names in a fixed random order: one of each family before a second of any."""
    rng, families = Random(seed), defaultdict[str, list[str]](list)
    for name, entry in package_index().items():
        if entry.kind == "task":
            families[entry.file.partition("/")[0]].append(name)
    for family in sorted(families):
        rng.shuffle(families[family].sort() or families[family])
    order = sorted(families)
    rng.shuffle(order)
    found: list[str] = []
    counts = Counter[str]()
    for depth in range(60):
        for family in order:
            if depth < len(families[family]) and counts.total() < sum(wanted.values()):
                name = families[family][depth]
                kind = type_of(name)
                if counts[kind] < wanted.get(kind, 0):
                    counts[kind] += 1
                    found.append(name)
    return found


def type_of(name: str) -> str:
    """The output type of a task, or `class`."""
    config = load_yaml(package_folder() / package_index()[name].file, resolve_func=False)
    return "class" if "class" in config else str(config.get("output_type", "generate_until"))
