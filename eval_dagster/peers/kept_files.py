"""JSON files that spare the time of asking another package again, in the user's cache."""

import json
from collections.abc import Callable
from typing import Any

from eval_dagster.stores.user_cache import user_cache
from eval_dagster.stores.whole_files import replaced


def kept_json(name: str, make: Callable[[], Any]) -> Any:
    """The content of a kept file. It is made and kept if it is missing or cannot be read.

    If the folder or the disk takes no file, it only costs the time of making the content again.
    """
    file = user_cache() / f"{name}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = make()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as written:
            written.write_text(json.dumps(made), encoding="utf-8")
    except OSError:
        pass
    return made
