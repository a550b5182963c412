"""Checkpoints of a training run as models: finds those that are complete, and knows them after they are deleted.

The lake's table `checkpoints` remembers each checkpoint since it was first seen complete. Rows are only appended, so that the history of a
training run does not depend on the files that are left of it, or on evals.yaml.
"""

import fnmatch
import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from eval_dagster.config.models import (
    FolderCheckpoints,
    FolderSource,
    HubCheckpoints,
    HubSource,
    KeepConfig,
    StoreCheckpoints,
    StoreSource,
    WeightsSection,
)
from eval_dagster.config.schema import Config, checkpoint_name
from eval_dagster.errors import EvalDagsterError, LakeError, ModelNotFoundError, ModelUnreachableError, NotEvaluatedError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.records import append
from eval_dagster.lake.remote.store import Store
from eval_dagster.lake.tables.events import CheckpointRow
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.models.base import FindKnown, Look, Model, ModelHandle
from eval_dagster.models.transformers.weights.checkpoint import layout_problem
from eval_dagster.models.transformers.weights.completeness import Verdict, examined, examined_names, is_small, small_files
from eval_dagster.models.transformers.weights.stored import content_of
from eval_dagster.records import Message

_TABLE = "checkpoints"
_TRIES = 5
_STEP = re.compile(r"(step|iteration|iter|checkpoint|ckpt|batch|ba)s?[-_=.]?(\d+)(?![0-9A-Za-z])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![0-9A-Za-z.])(\d+)(?![0-9A-Za-z.])")

State = Verdict | Literal["left out", "deleted"]
"""Complete and kept; complete and not kept by `keep`; not complete yet; never to be evaluated; gone, though it was complete."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint of a training run."""

    family: str
    """Name of the training run in evals.yaml."""
    model: str
    """Name of the model that it makes; empty if it makes none."""
    step: int
    """Training step; -1 if its name has none."""
    place: str
    """Folder, or revision on the Hub, as evals.yaml leads to it."""
    commit: str | None = None
    """Commit on the Hub."""
    state: State
    reason: str = ""
    """Why it is in this state; empty for one that is ready."""
    seen: CheckpointRow | None = None
    """Its row in the lake. Null if it was never seen complete, or is not recorded yet."""
    is_kept: bool = True
    """Whether `keep` keeps it."""
    changed_at: datetime | None = None
    """When its files were written, if the lake knows another checkpoint of this step. Null otherwise."""

    @property
    def identity(self) -> str:
        """The model and, if another checkpoint of this step is known, the place and the time of its files."""
        return self.model if self.changed_at is None else f"{self.model} {self.place} {self.changed_at.isoformat()}"

    @property
    def is_model(self) -> bool:
        """Whether evals.yaml has it as a model: it can be evaluated, or was before it was deleted."""
        is_evaluated = self.seen is not None and self.seen.evaluated_at is not None
        return self.is_kept and (self.state == "ready" or (self.state == "deleted" and is_evaluated))

    @property
    def source(self) -> FolderSource | HubSource | StoreSource:
        """Where the weights are."""
        if self.commit is None:
            return FolderSource(folder=self.place)
        if "://" in self.place:
            return StoreSource(url=self.place, content=self.commit)
        return HubSource(hub=self.place.partition("@")[0], revision=self.commit)


def step_of(name: str) -> int | None:
    """The step in the name of a checkpoint, such as `checkpoint-500`, `step500-tokens2B` or `iter_0000500`. None if there is none.

    A number after `step` counts before one after another word. Without such a word, the only number counts.
    """
    found = [(word.lower() != "step", int(number)) for word, number in _STEP.findall(name)]
    if found:
        return min(found, key=lambda each: each[0])[1]
    numbers = _NUMBER.findall(name)
    return int(numbers[0]) if len(numbers) == 1 else None


def kept(steps: Iterable[int], keep: KeepConfig | None) -> set[int]:
    """The steps that a rule keeps, of all complete checkpoints of a training run, deleted ones included."""
    ordered = sorted(set(steps))
    if keep is None:
        return set(ordered)
    last = ordered[-keep.last :] if keep.last else []
    return {*(ordered[keep.every - 1 :: keep.every] if keep.every else []), *last}


def families(config: Config) -> dict[str, WeightsSection]:
    """The training runs of a configuration, by name."""
    return {name: model for name, model in config.models.items() if isinstance(model, WeightsSection) and model.checkpoints}


def look(runs: Mapping[str, WeightsSection], folder: Path, lake: Lake, *, far: bool = False) -> list[Checkpoint]:
    """The checkpoints of training runs, the newest of each first. Nothing is written.

    Args:
        runs: The training runs.
        folder: The folder of evals.yaml.
        lake: The lake that remembers checkpoints.
        far: Whether the Hub is asked. Otherwise its checkpoints are those that the lake remembers.

    Raises:
        ModelUnreachableError: The Hub does not answer.
        LakeUnreachableError: The object store of the lake does not answer.
    """
    known = remembered(lake) if runs else {}
    found: list[Checkpoint] = []
    for family, section in runs.items():
        seen = {row.step: row for row in known.values() if row.family == family}
        match section.checkpoints:
            case FolderCheckpoints():
                listed = _in_folder(family, section.checkpoints, folder, seen)
            case HubCheckpoints():
                listed = _on_hub(family, section.checkpoints, seen, far=far)
            case StoreCheckpoints():
                listed = _in_store(family, section.checkpoints, seen, far=far)
            case None:
                continue
        complete = {each.step for each in listed if each.state in ("ready", "deleted")}
        steps = kept(complete, section.checkpoints.keep)
        rule = section.checkpoints.keep and " and ".join(
            [
                *([f"each {section.checkpoints.keep.every}th"] if section.checkpoints.keep.every else []),
                *([f"the last {section.checkpoints.keep.last}"] if section.checkpoints.keep.last else []),
            ]
        )
        for each in sorted(listed, key=lambda each: (-each.step, each.place)):
            if each.step in complete - steps:
                state: State = "left out" if each.state == "ready" else each.state
                reason = f"`keep` keeps {rule}" if each.state == "ready" else each.reason
                each = replace(each, state=state, reason=reason, is_kept=False)
            found.append(each)
    return found


def expanded(config: Config, found: Sequence[Checkpoint]) -> Config:
    """A configuration whose training runs are replaced by their checkpoints: among the models, and in each suite."""
    runs = families(config)
    if not runs:
        return config
    of_run = {family: [each for each in found if each.family == family and each.is_model] for family in runs}
    models: dict[str, Any] = {}
    for name, section in config.models.items():
        models |= {each.model: section_of(runs[name], each) for each in of_run[name]} if name in runs else {name: section}
    suites = {}
    for name, suite in config.suites.items():
        names = [inner for model in suite.models for inner in ([each.model for each in of_run[model]] if model in runs else [model])]
        suites[name] = suite.model_copy(update={"models": tuple(dict.fromkeys(names))})
    return config.model_copy(update={"models": models, "suites": suites})


def section_of(run: WeightsSection, checkpoint: Checkpoint) -> WeightsSection:
    """The section of the model that a checkpoint makes."""
    return run.model_copy(update={"source": checkpoint.source, "checkpoints": None})


# ---- what is remembered


def remembered(lake: Lake) -> dict[str, CheckpointRow]:
    """The checkpoints that were ever seen complete, by model. Each has its first time and its last versions. Writes nothing."""
    rows: list[CheckpointRow] = []
    for _ in range(_TRIES):
        rows, is_steady = [], True
        for path in lake.readable_files(lake.root / _TABLE):
            try:
                rows += [CheckpointRow(**fields_in(row, CheckpointRow)) for row in read_rows(path)]
            except LakeError:  # damaged, which `publish` reports, or merged into another file meanwhile
                is_steady = is_steady and path.exists()
        if is_steady:
            break
    found: dict[str, CheckpointRow] = {}
    first: dict[str, datetime] = {}
    for row in sorted(rows, key=lambda row: (row.evaluated_at is not None, row.evaluated_at or row.seen_at), reverse=True):
        if row.evaluated_at is not None or row.model not in found or found[row.model].evaluated_at is None:
            found.setdefault(row.model, row)
        first[row.model] = min(first.get(row.model, row.seen_at), row.seen_at)
    return {name: replace(row, seen_at=first[name]) for name, row in found.items()}


def remember_new(lake: Lake, found: Iterable[Checkpoint], run_id: str) -> list[CheckpointRow]:
    """Record the complete checkpoints that the lake does not know yet. Several processes may do so at once.

    Returns the new rows.
    """
    now = datetime.now(UTC)
    rows = [
        CheckpointRow(model=each.model, family=each.family, step=each.step, place=each.place, commit=each.commit, seen_at=now)
        for each in found
        if each.seen is None and each.state in ("ready", "left out")
    ]
    if rows:
        append(lake, _TABLE, [asdict(row) for row in rows], run_id)
    return rows


def record_evaluation(lake: Lake, checkpoint: Checkpoint, handle: ModelHandle, run_id: str) -> None:
    """Record the versions under which a checkpoint was evaluated, so that its results stay current after it is deleted."""
    now = datetime.now(UTC)
    versions = (handle.version(), handle.content_version(), handle.template_version())
    seen = checkpoint.seen
    if seen is not None and versions == (seen.model_version, seen.model_content_version, seen.template_version):
        return
    row = CheckpointRow(
        model=checkpoint.model,
        family=checkpoint.family,
        step=checkpoint.step,
        place=checkpoint.place,
        commit=checkpoint.commit,
        seen_at=seen.seen_at if seen else now,
        model_version=versions[0],
        model_content_version=versions[1],
        template_version=versions[2],
        evaluated_at=now,
    )
    append(lake, _TABLE, [asdict(row)], run_id)


def deletion(checkpoint: Checkpoint, folder: Path) -> str | None:
    """Why a checkpoint that was seen complete cannot be evaluated any more. None if its files are there, or if it is on the Hub.

    `folder` is the folder of evals.yaml.
    """
    if checkpoint.commit is not None or checkpoint.state == "waiting":
        return None
    path = _absolute(folder, checkpoint.place)
    problem = layout_problem(path)
    if problem is None:
        return None
    seen = f", seen complete on {checkpoint.seen.seen_at:%Y-%m-%d %H:%M} UTC" if checkpoint.seen else ""
    left = "" if not path.is_dir() else f"; what is left: {problem}"
    return f"the checkpoint was deleted (was at {checkpoint.place}{seen}{left})"


class DeletedCheckpoint(ModelHandle):
    """A checkpoint whose files are gone. It has the versions of its last evaluation, so that its results stay current."""

    def __init__(self, reason: str, seen: CheckpointRow | None) -> None:
        """`reason` is the text of `deletion`, `seen` what the lake knows of the checkpoint."""
        self._reason = reason
        self._seen = seen

    def check(self) -> None:
        """Raise `ModelUnreachableError`, since cached answers can be used."""
        raise ModelUnreachableError(self._reason)

    def version(self) -> str:
        """The version of the last evaluation. Raises `NotEvaluatedError` if there is none."""
        return self._known("model_version")

    def content_version(self) -> str:
        """As `version`."""
        return self._known("model_content_version")

    def template_version(self) -> str:
        """As `version`."""
        return self._known("template_version")

    def _known(self, name: str) -> str:
        version = getattr(self._seen, name, None)
        if version is None:
            raise NotEvaluatedError(self._reason)
        return str(version)

    def image_mark(self) -> str:
        """Raise `NotEvaluatedError`."""
        raise NotEvaluatedError(self._reason)

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:  # noqa: ARG002
        """Raise `NotEvaluatedError`."""
        raise NotEvaluatedError(self._reason)

    def load(self) -> Model:
        """Raise `NotEvaluatedError`."""
        raise NotEvaluatedError(self._reason)

    def look(self, known: FindKnown, run_id: str) -> Look:  # noqa: ARG002
        """Nothing is there to be looked at."""
        return Look()


# ---- what is there


def _in_folder(family: str, where: FolderCheckpoints, folder: Path, seen: Mapping[int, CheckpointRow]) -> list[Checkpoint]:
    """The checkpoints in a folder, and those that were there."""
    pattern = where.folder if glob.has_magic(where.folder) else f"{where.folder.rstrip('/')}/*"
    base = Path(pattern).expanduser()
    fixed = next(index for index, part in enumerate(base.parts) if glob.has_magic(part))
    matches = glob.glob(str(_absolute(Path(glob.escape(str(folder))), pattern)))  # noqa: PTH207 - patterns can be absolute
    prefix = "" if base.is_absolute() else f"{folder.absolute()}/"
    found: list[Checkpoint] = []
    taken: dict[int, str] = {}
    expected: set[str] = set()
    paths = [Path(each) for each in matches if Path(each).is_dir() and not Path(each).name.startswith(("tmp", "."))]
    known = {row.place for row in seen.values()}
    # Known ones come first: they have their step, and new ones have to have their files.
    for path in sorted(paths, key=lambda path: (str(path).removeprefix(prefix) not in known, path)):
        place = str(path).removeprefix(prefix)
        step = next((each for part in reversed(Path(place).parts[fixed:]) if (each := step_of(part)) is not None), None)
        if step is None:
            if (path / "config.json").is_file():
                reason = f"no step number in the name {path.name!r}; expected a name such as checkpoint-500 or step_500"
                found.append(Checkpoint(family=family, model="", step=-1, place=place, state="refused", reason=reason))
            continue
        row, model = seen.get(step), checkpoint_name(family, step)
        this = Checkpoint(family=family, model=model, step=step, place=place, state="ready", seen=row)
        is_changed = row is not None and row.place == place and _changed_since(path, row)
        if step in taken:
            reason = f"another checkpoint of this step is at {taken[step]}; expected one of each step"
            found.append(replace(this, model="", state="refused", reason=reason, seen=None))
        elif row is not None and row.place == place and not is_changed:
            if not (path / "config.json").is_file():
                continue  # it is being deleted
            taken[step] = place
            expected = expected or small_files(path)
            found.append(this)
        else:
            if row is not None:  # other weights of the same step
                this = replace(this, seen=replace(row, place=place, evaluated_at=None), changed_at=_newest_time(path))
            state, reason = examined(path, expected=expected)
            if state == "ready" or is_changed:
                taken[step] = place
            if state == "ready":
                expected = expected or small_files(path)
            if state == "ready" or row is None or is_changed:
                found.append(replace(this, state=state, reason=reason))
    gone = [row for step, row in seen.items() if step not in taken]
    return [*found, *(_deleted(row, folder) for row in gone)]


def _newest_time(folder: Path) -> datetime | None:
    """When the weights of a checkpoint changed last. None if they cannot be read."""
    try:
        return datetime.fromtimestamp(max(path.stat().st_mtime for path in folder.glob("*.safetensors")), UTC)
    except (OSError, ValueError):
        return None


def _changed_since(folder: Path, row: CheckpointRow) -> bool:
    """Whether a checkpoint was written again after it was seen complete, or evaluated."""
    newest = _newest_time(folder)
    return newest is not None and newest > (row.evaluated_at or row.seen_at)


def _deleted(row: CheckpointRow, folder: Path) -> Checkpoint:
    this = Checkpoint(family=row.family, model=row.model, step=row.step, place=row.place, commit=row.commit, state="deleted", seen=row)
    return replace(this, reason=deletion(this, folder) or f"{row.place} is not among the checkpoints of {row.family}")


def _on_hub(family: str, where: HubCheckpoints, seen: Mapping[int, CheckpointRow], *, far: bool) -> list[Checkpoint]:
    """The checkpoints of a repository. One that was seen stays at its commit, which the Hub keeps when its branch moves or is deleted."""
    found = [
        Checkpoint(family=family, model=row.model, step=step, place=row.place, commit=row.commit, state="ready", seen=row)
        for step, row in seen.items()
    ]
    if not far:
        return found
    # Imported here: its library takes as long to import as the rest of the models together.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        refs = HfApi().list_repo_refs(where.hub)
    except HfHubHTTPError as error:
        raise ModelNotFoundError(
            f"Model {family!r}: the branches of {where.hub} cannot be listed ({type(error).__name__}). Correct "
            "`checkpoints.hub` in evals.yaml, or log in to the Hub."
        ) from error
    except Exception as error:  # of the HTTP library, which the Hub's library may change
        raise ModelUnreachableError(f"Model {family!r}: the Hub does not answer ({type(error).__name__}: {error}).") from error
    taken = {row.place: step for step, row in seen.items()}
    for ref in sorted([*refs.branches, *refs.tags], key=lambda ref: str(ref.name)):
        place = f"{where.hub}@{ref.name}"
        if not fnmatch.fnmatch(ref.name, where.revisions) or place in taken:
            continue
        step = step_of(ref.name)
        this = Checkpoint(family=family, model="", step=-1, place=place, commit=ref.target_commit, state="refused")
        if step is None:
            found.append(replace(this, reason=f"no step number in the name {ref.name!r}"))
        elif step in (*seen, *taken.values()):
            found.append(replace(this, step=step, reason="another revision has this step; expected one of each step"))
        else:
            taken[place] = step
            found.append(replace(this, model=checkpoint_name(family, step), step=step, state="ready"))
    return found


def _in_store(family: str, where: StoreCheckpoints, seen: Mapping[int, CheckpointRow], *, far: bool) -> list[Checkpoint]:
    """The checkpoints below a URL of an object store. An object is listed when it is whole, so that no header has to be read."""
    known = {
        row.place: Checkpoint(family=family, model=row.model, step=step, place=row.place, commit=row.commit, state="ready", seen=row)
        for step, row in seen.items()
    }
    if not far:
        return list(known.values())
    try:
        store = Store(where.url)
        objects = store.list("")
        folders = {str(PurePosixPath(name).parent) for name in objects if PurePosixPath(name).name == "config.json"}
        found: list[Checkpoint] = []
        expected: set[str] = set()
        places = {folder: where.url.rstrip("/") + ("" if folder == "." else f"/{folder}") for folder in folders}
        for folder, place in sorted(places.items(), key=lambda item: (item[1] not in known, item[1])):
            step = next((each for part in reversed(PurePosixPath(folder).parts) if (each := step_of(part)) is not None), None)
            own = {name.removeprefix(f"{folder}/"): each for name, each in objects.items() if name.startswith(f"{folder}/")}
            this = Checkpoint(family=family, model="", step=-1 if step is None else step, place=place, state="refused")
            if place in known:
                this = known[place]
                if content_of(place, own) != this.commit:
                    this = replace(this, state="refused", reason="its objects were replaced since it was first seen; expected a new step")
            elif step is None:
                this = replace(this, reason=f"no step number in the name {folder!r}")
            elif step in seen or any(each.step == step and each.state == "ready" for each in found):
                this = replace(this, reason="another checkpoint has this step; expected one of each step")
            else:
                age = (datetime.now(UTC) - max(each.modified for each in own.values())).total_seconds()
                state, reason = examined_names(own, lambda name, at=folder: store.read(f"{at}/{name}"), expected=expected, age_s=age)  # type: ignore[misc]
                this = replace(this, model=checkpoint_name(family, step), state=state, reason=reason, commit=content_of(place, own))
            if this.state == "ready":
                expected = expected or {name for name in own if is_small(name)}
            found.append(this)
    except EvalDagsterError as error:
        raise ModelUnreachableError(f"Model {family!r}: the checkpoints below {where.url} cannot be listed: {error}.") from error
    gone = [each for place, each in known.items() if place not in places.values()]
    return [*found, *(replace(each, state="deleted", reason=f"the checkpoint was deleted (was at {each.place})") for each in gone)]


def _absolute(folder: Path, path: str) -> Path:
    return (folder / Path(path).expanduser()).absolute()
