"""Runs the benchmarks and prints their table: `make bench`, or `make bench ONLY=mmlu_few SCALE=0.1`."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import overhead
import report
from around import run_around
from busy import run_busy
from continuous import run_continuous
from episodes import run_episodes
from inspect_import import run_inspect_import
from scale import run_scale
from served import run_client, run_level, run_served
from sides import Row, Setting, run_row
from transformers import AutoTokenizer
from turns import run_turns
from works import ROOT, WORKS, MissingRowsError, requests_of

from eval_dagster.models.transformers.weights.sources import open_checkpoint
from eval_dagster.project import Project

_OTHERS: dict[str, Callable[..., Row]] = {
    "around": run_around,
    "busy": run_busy,
    "continuous": run_continuous,
    "inspect_import": run_inspect_import,
    "episodes": run_episodes,
    "overhead": overhead.run_scripted,
    "overhead_model": overhead.run_with_model,
    "scale": run_scale,
    "served": run_served,
    "served_client": run_client,
    "served_level": run_level,
    "turns": run_turns,
}
"""Rows with columns of their own."""
_MODEL = "smollm2-135m"


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if a side failed; a goal that is missed is said, and no failure."""
    names = [*(work.name for work in WORKS), *_OTHERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lm-eval", type=Path, required=True, help="interpreter of the environment that holds lm-eval")
    parser.add_argument("--only", default=",".join(names), help=f"rows, with commas between them: {', '.join(names)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the questions, for trying out")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each side, of which the median counts")
    parser.add_argument("--batch-sizes", default="1,8,16,32", help="of lm-eval; the best counts")
    parser.add_argument("--model", type=Path, help="folder of another model, in safetensors")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown rows {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    started, load = datetime.now().astimezone(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(
            lm_eval=options.lm_eval.absolute(),
            folder=options.model.resolve() if options.model else _demo_model(),
            scratch=Path(scratch),
            repeats=options.repeats,
            scale=options.scale,
            batch_sizes=tuple(map(int, options.batch_sizes.split(","))),
        )
        rows, skipped, failed = _measure(chosen, setting)
    page = report.markdown(rows, skipped | failed, started, load, setting)
    as_asked = [options.only, options.scale, options.batch_sizes] == [parser.get_default(each) for each in ("only", "scale", "batch_sizes")]
    whole = as_asked and options.repeats >= 3 and not options.model and not skipped | failed
    path = report.save(page, rows, started, whole=whole)
    sys.stdout.write(f"{page}\nWritten to {path}\n")
    return 1 if failed else 0


def _measure(chosen: Sequence[str], setting: Setting) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """The rows, those skipped with the reason, and those that failed with theirs."""
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    tokenizer = AutoTokenizer.from_pretrained(setting.folder)
    for name in chosen:
        try:
            if name in _OTHERS:
                rows.append(_OTHERS[name](setting, _say))
                continue
            work = next(work for work in WORKS if work.name == name)
            home = setting.scratch / f"{name}-rows"
            home.mkdir()
            rows.append(run_row(work, requests_of(work, setting.scale, tokenizer, home), tokenizer, setting, _say))
        except MissingRowsError as problem:
            skipped[name] = str(problem)
            _say(f"{name}: skipped, {problem}")
        except RuntimeError as problem:
            failed[name] = str(problem)
            _say(f"{name}: failed, {problem}")
        except KeyboardInterrupt:
            # After an hour of rows, those that are done are worth their table.
            failed[name] = "interrupted"
            break
    return rows, skipped, failed


def _demo_model() -> Path:
    """The demo model as safetensors, converted once into the checkout's home."""
    project = Project.open(config_path=ROOT / "evals.yaml")
    source = project.model(_MODEL).source
    return open_checkpoint(_MODEL, source, folder=ROOT, home=project.home).folder()


def _say(line: str) -> None:
    sys.stderr.write(f"{datetime.now():%H:%M:%S} {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
