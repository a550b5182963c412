"""Invented programs of MultiPL-E."""

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
MULTIPL_E = {
    "cpp": ("#include<assert.h>\nlong add(long x) {\n", "    return x + 1;\n", "}\nint main() { assert(add(1) == 2); }\n"),
    "java": (
        "import java.util.*;\nimport org.javatuples.*;\nclass Problem {\n    public static long add(long x) {\n",
        "        return x + 1;\n",
        "    }\n    public static void main(String[] args) { assert(add(1l) == 2l); }\n}\n",
    ),
    "js": ("function add(x){\n", "  return x + 1;\n", "}\nconst assert = require('node:assert');\nassert.deepEqual(add(1), 2);\n"),
    "php": ("<?php\nfunction add($x) {\n", "  return $x + 1;\n", "}\nif (add(1) !== 2) { throw new Exception('no'); }\n"),
    "rs": ("fn add(x: i64) -> i64 {\n", "    x + 1\n", "}\nfn main() { assert_eq!(add(1), 2); }\n"),
    "sh": ("#!/bin/bash\nadd() {\n", "  echo $(($1 + 1))\n", "}\nset -e\n[[ $(add 1) = 2 ]]\n"),
}


def multipl_e(language: str) -> Callable[[int], Row]:
    """Makes the rows of a language."""
    prompt, body, tests = MULTIPL_E[language]
    return lambda n: {
        "name": f"add_{n}",
        "language": language,
        "prompt": f"{prompt}",
        "tests": tests,
        "solution": body if n % 2 else "  oops\n",
    }
