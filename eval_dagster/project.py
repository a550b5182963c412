"""The evals, models and suites of an evals.yaml, with the home of their results."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any, TypeVar

from eval_dagster.addresses import Addresses
from eval_dagster.checkpoints import Checkpoint, DeletedCheckpoint, deletion, expanded, families, look, remember_new, section_of
from eval_dagster.config.component_file import component_home, is_component
from eval_dagster.config.loading import MIRROR_VARIABLE, load_config
from eval_dagster.config.models import ModelConfig, WeightsSection
from eval_dagster.config.schema import Config, EvalConfig, SuiteConfig
from eval_dagster.config.values import LAKE_URLS, LAKE_VARIABLE, TRACKING_URIS, wrong_lake_url, wrong_uri
from eval_dagster.datasets.assets import AssetStore, asset_path
from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.episodes.tools import require_episodes
from eval_dagster.errors import ConfigError, ModelNotFoundError, ModelUnreachableError, NotEvaluatedError, UsageError, described
from eval_dagster.imported_tasks import imported_task
from eval_dagster.key_prefixes import kept_key_prefix
from eval_dagster.lake.files import Configured, ConfiguredAggregate, Lake, trial_lake
from eval_dagster.lake.remote.mirror import mirror_lake
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.pooled.handle import open_handle
from eval_dagster.models.registry import registered_sections, section_in_file
from eval_dagster.stores.locks import SharedLocks
from eval_dagster.task_files.loading import load_task, select_subjects
from eval_dagster.task_files.registries import RegisteredTasks, registry_names
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import shots_of
from eval_dagster.tasks.recorded import IMPORTED
from eval_dagster.tasks.variants import DEFAULT, varied_task
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.tracking.tracker import Tracker
from eval_dagster.users_code import calling, limited

TRACKING_VARIABLE = "EVAL_DAGSTER_TRACKING_URI"
"""Environment variable: an MLflow server or database instead of `mlflow.tracking_uri`."""
LOCKS_VARIABLE = "EVAL_DAGSTER_LOCKS"
"""Environment variable: the PostgreSQL database with the locks of all machines, instead of the Dagster instance's database."""

T = TypeVar("T")
TaskClass = type[BaseTask[Any]]


@dataclass(frozen=True, kw_only=True)
class Project:
    """The configuration, the registries and the stores, opened once for all stages."""

    config: Config
    config_path: Path
    """The file. Paths in it are relative to its folder."""
    home: Path
    """The folder of all state."""
    tasks: Mapping[str, TaskClass]
    """The registry."""
    lake: Lake
    reader: DatasetReader
    tracker: Tracker
    locks: SharedLocks
    """For work that two machines with one lake must not do at the same time."""
    training_runs: Mapping[str, WeightsSection] = field(default_factory=dict)
    """The models of evals.yaml that have `checkpoints`, by name. `config` has their checkpoints instead."""
    known_checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    """All checkpoints of training runs that make a model, by its name, as they were when the project was opened."""
    _handles: dict[str, ModelHandle] = field(default_factory=dict)
    _loaded_tasks: dict[str, TaskClass] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder for relative paths in evals.yaml."""
        return self.config_path.parent

    @classmethod
    def open(
        cls,
        *,
        config_path: Path | None = None,
        home: Path | None = None,
        tasks: Mapping[str, TaskClass] | None = None,
        key_prefix: Sequence[str] | None = None,
        is_kept_prefix_used: bool = True,
    ) -> "Project":
        """Read the configuration and find the home.

        Args:
            config_path: The file. Default: `EVAL_DAGSTER_CONFIG` or `./evals.yaml`.
            home: The folder of all state. Default: `EVAL_DAGSTER_HOME` or `.eval_dagster` beside the file.
            tasks: Tasks by name. Default: all registered tasks.
            key_prefix: The prefix of the names in Dagster. Default: the one that a code location has kept in the home
                (`key_prefixes.keep_key_prefix`), or the file's.
            is_kept_prefix_used: Whether a prefix that is kept in the home stands before the file's.

        Raises:
            ConfigError: The file is missing or wrong.
        """
        tasks = RegisteredTasks() if tasks is None else tasks
        path = (config_path or default_config_path()).resolve()
        config = load_config(path, sections=registered_sections(), registries=registry_names(), section_in_file=section_in_file)
        project = cls._of(config, path, tasks, home)
        kept = kept_key_prefix(project.home) if is_kept_prefix_used else None
        prefix = kept if key_prefix is None else tuple(key_prefix)
        if prefix is None or prefix == config.dagster.key_prefix:
            return project
        named = config.dagster.model_copy(update={"key_prefix": prefix})
        return replace(project, config=config.model_copy(update={"dagster": named}))

    @classmethod
    def bare(cls, *, home: Path | None = None) -> "Project":
        """The project of a folder without a readable evals.yaml: only the registered tasks, and a home as in `open`."""
        return cls._of(Config(models={}, evals={}), default_config_path().resolve(), RegisteredTasks(), home)

    @classmethod
    def of(cls, config: Config, path: Path, home: Path) -> "Project":
        """The project of a configuration that its file no longer has. It has no tasks."""
        return cls._of(config, path, {}, home)

    @classmethod
    def _of(cls, config: Config, path: Path, tasks: Mapping[str, TaskClass], home: Path | None) -> "Project":
        home = (home or default_home(path)).resolve()
        # DuckDB or SQLAlchemy would misread some paths.
        wrong = sorted(set(str(home)) & set("*?[\\\n\r\t"))
        if wrong:
            raise ConfigError(
                f"the home {str(home)!r} has {', '.join(map(repr, wrong))} in its path, which DuckDB takes for a pattern or another "
                "folder; set EVAL_DAGSTER_HOME to a folder without it"
            )
        if found := re.search("%[0-9a-fA-F]{2}", str(home.absolute())):
            raise ConfigError(
                f"the home {str(home)!r} has {found[0]!r} in its path, which SQLAlchemy reads as another character; set "
                "EVAL_DAGSTER_HOME to a folder without it"
            )
        # Addresses are not repeated in messages, since they can hold a password.
        lake_url = os.environ.get(LAKE_VARIABLE)
        if lake_url and (reason := wrong_lake_url(lake_url)):
            raise ConfigError(f"the environment variable {LAKE_VARIABLE} is wrong: {reason}; expected {LAKE_URLS}")
        mirror_lake(home / "lake", lake_url or config.lake)
        database = os.environ.get(LOCKS_VARIABLE)
        if database and not re.match(r"postgres(ql)?(\+\w+)?://", database):
            raise ConfigError(
                f"the environment variable {LOCKS_VARIABLE} is no URL of PostgreSQL; expected postgresql://USER@HOST:5432/DATABASE"
            )
        locks = SharedLocks(home, database or None)
        mirror = os.environ.get(MIRROR_VARIABLE) or config.datasets.mirror
        runs = families(config)
        checkpoints = look(runs, path.parent, Lake(home))
        config = expanded(config, checkpoints)
        return cls(
            config=config,
            config_path=path,
            home=home,
            tasks=tasks,
            training_runs=runs,
            known_checkpoints={each.model: each for each in checkpoints if each.model and each.state in ("ready", "left out", "deleted")},
            lake=Lake(home, configured=configured(config.evals, config.models, config.suites)),
            reader=DatasetReader(
                None if mirror is None else (path.parent / mirror).resolve(),
                path.parent,
                beside_tasks=not path.exists(),
                assets=AssetStore(home / "assets"),
            ),
            tracker=_tracker(config, home, locks),
            locks=locks,
        )

    @property
    def addresses(self) -> Addresses:
        """The addresses of this project's web pages."""
        return _addresses(self.config, self.home)

    @property
    def place(self) -> str:
        """Identifies the results: equal on all machines that share a lake, unique to the project."""
        return str(self.home) if self.lake.mirror is None else self.lake.mirror.store.url

    def sharing_locks(self, address: str) -> "Project":
        """The project with locks in a PostgreSQL database, unless `EVAL_DAGSTER_LOCKS` names one."""
        if self.locks.across_machines:
            return self
        locks = SharedLocks(self.home, address)
        return replace(self, locks=locks, tracker=_tracker(self.config, self.home, locks))

    def trial(self, limit: int) -> "Project":
        """The project with another limit for every eval. Its results are in a separate lake and not in MLflow.

        It shares the response cache of the project, so requests of a trial are not sent again. Results of a trial are never published, even
        if the limit admits all samples.
        """
        evals = {name: settings.model_copy(update={"limit": limit}) for name, settings in self.config.evals.items()}
        return replace(self, config=self.config.model_copy(update={"evals": evals}), lake=trial_lake(self.lake))

    def checkpoints(self, *, run_id: str = "look") -> list[Checkpoint]:
        """Look for the checkpoints of all training runs, and record those that are complete for the first time.

        Several processes may look at once. A project that is opened later has them as models.

        Args:
            run_id: The run that looks.

        Returns:
            All checkpoints, by training run, the newest first.

        Raises:
            ModelNotFoundError: The Hub has no such repository.
            ModelUnreachableError: The Hub does not answer.
        """
        found: list[Checkpoint] = []
        problem: ModelNotFoundError | None = None
        for name, run in self.training_runs.items():
            try:
                found += look({name: run}, self.folder, self.lake.answers, far=True)
            except ModelNotFoundError as error:
                problem = problem or error
        remember_new(self.lake.answers, found, run_id)
        if problem is not None:  # after the others are recorded
            raise problem
        return found

    def deletion(self, model: str) -> str | None:
        """Why a checkpoint cannot be evaluated any more: its files are gone. None for any other model."""
        known = self.known_checkpoints.get(model)
        return None if known is None else deletion(known, self.folder)

    def eval(self, name: str) -> EvalConfig:
        """The settings of an eval. Raises UsageError for an unknown name."""
        return _pick(self.config.evals, name, "eval")

    def model(self, name: str) -> ModelConfig:
        """The settings of a model. Raises UsageError for an unknown name."""
        if name in self.known_checkpoints and name not in self.config.models:  # one that `keep` leaves out, or that was deleted
            known = self.known_checkpoints[name]
            return section_of(self.training_runs[known.family], known)  # type: ignore[return-value]
        return _pick(self.config.models, name, "model")

    def suite(self, name: str) -> SuiteConfig:
        """The settings of a suite. Raises UsageError for an unknown name."""
        return _pick(self.config.suites, name, "suite")

    def task(self, eval_name: str) -> TaskClass:
        """The task class of an eval. Raises TaskDefinitionError if it is unknown or incomplete."""
        settings = self.eval(eval_name)
        if settings.task == IMPORTED:
            return imported_task(self.lake, eval_name)
        task, revision = self.named_task(settings.task), settings.dataset_revision
        if settings.dataset is not None:
            path = asset_path(settings.dataset.keys)
            name = f"{path} {settings.task}"
            if name not in self._loaded_tasks:
                self._loaded_tasks[name] = with_dataset(task, DATASET_PATH=path, DATASET_REVISION=None)
            return self._loaded_tasks[name]
        return with_dataset(task, DATASET_REVISION=revision) if revision else task

    def is_imported(self, eval_name: str) -> bool:
        """Whether the results of an eval are imported, so that nothing is asked."""
        return self.eval(eval_name).task == IMPORTED

    def asset_keys(self, evals: Sequence[str]) -> list[str]:
        """The keys of the assets that have the rows of evals."""
        found = (self.eval(name).dataset for name in evals)
        return list(dict.fromkeys(key for dataset in found if dataset is not None for key in dataset.keys.values()))

    def named_task(self, name: str) -> TaskClass:
        """The task of a registered name, or of `path/to/file.py:Class`. Raises TaskDefinitionError like `task`."""
        if name not in self._loaded_tasks:
            with limited(self.config.code_timeout):
                self._loaded_tasks[name] = load_task(name, self.tasks, self.folder, self.config.environments)
        return self._loaded_tasks[name]

    def task_names(self) -> list[str]:
        """All names for `named_task`: registered names, then the files that evals name."""
        named = (settings.task for settings in self.config.evals.values())
        return list(dict.fromkeys([*self.tasks, *(name for name in named if name != IMPORTED)]))

    def subjects(self, eval_name: str) -> Sequence[Any]:
        """The subjects that an eval asks for."""
        return select_subjects(self.task(eval_name), self.eval(eval_name).subjects)

    def num_fewshot(self, eval_name: str) -> int:
        """The number of examples before each question of an eval: its own, or else the task's default."""
        own, task = self.eval(eval_name).num_fewshot, self.task(eval_name)
        return task.customary().num_fewshot if own is None else shots_of(task, own)

    def handle(self, model: str) -> ModelHandle:
        """The model, not loaded."""
        if reason := self.deletion(model):
            return DeletedCheckpoint(reason, self.known_checkpoints[model].seen)
        if model not in self._handles:
            self._handles[model] = open_handle(model, self.model(model), folder=self.folder, home=self.home)
        return self._handles[model]

    def model_content(self, model: str) -> str:
        """Hash of a model without its engine. Raises ModelNotFoundError if the model is missing."""
        return self.handle(model).content_version()

    def select(
        self, *, suite: str | None = None, evals: Sequence[str] = (), models: Sequence[str] = (), imported: bool = False
    ) -> tuple[list[str], list[str]]:
        """The evals and models of a command: the named ones, or else the suite's, or else all of the configuration.

        Without `imported`, evals and models of imported results are chosen only by name or suite, since nothing can be asked of them, or
        because they belong to what is named: imported models to imported evals, and the reverse.

        Raises:
            UsageError: A name is unknown, or no eval and model belong together.
        """
        chosen = self.suite(suite) if suite else None
        named = [inner for name in models for inner in self._checkpoints_of(name)]
        wanted_evals, wanted_models = list(evals or (chosen.evals if chosen else ())), named or list(chosen.models if chosen else ())
        for name in wanted_evals:
            self.eval(name)
        for name in wanted_models:
            self.model(name)
        if not wanted_evals:
            kinds = {self._has_imported_answers(name) for name in wanted_models} or {False}
            wanted_evals = [name for name in self.config.evals if self.is_imported(name) in kinds or imported]
        if not wanted_models:
            kinds = {self.is_imported(name) for name in wanted_evals} if evals else {False}
            wanted_models = [name for name in self.config.models if self._has_imported_answers(name) in kinds or imported]
        if wanted_evals and wanted_models and not any(starmap(self.is_pair, product(wanted_evals, wanted_models))):
            found = f"the evals {', '.join(wanted_evals)} and the models {', '.join(wanted_models)}"
            raise UsageError(f"found {found}, of which none belong together; expected imported evals and models, or neither imported")
        return in_order(wanted_evals, self.config.evals), in_order(wanted_models, {**self.config.models, **self.known_checkpoints})

    def is_pair(self, eval_name: str, model: str) -> bool:
        """Whether an eval is evaluated on a model: neither is imported, or both are. An imported eval may have results of other models."""
        if self.is_imported(eval_name):
            return self._has_imported_answers(model) or self.lake.folder("metrics", eval_name, model).is_dir()
        return not self._has_imported_answers(model)

    def _has_imported_answers(self, model: str) -> bool:
        return self.model(model).backend == IMPORTED

    def _checkpoints_of(self, name: str) -> list[str]:
        """The models that a name stands for: the checkpoints of a training run, or the model itself. Raises UsageError without any."""
        if name not in self.training_runs:
            return [name]
        found = [each for each in self.config.models if each in self.known_checkpoints and self.known_checkpoints[each].family == name]
        if not found:
            raise UsageError(f"the training run {name!r} has no complete checkpoint yet; `eval-dagster checkpoints` shows the reasons")
        return found

    def check(self, evals: Sequence[str], models: Sequence[str]) -> None:
        """Raise one error with all problems that can be found before anything runs.

        Raises:
            UsageError: A task is incomplete, a dataset is missing, or a model has no weights.
        """
        if problems := self.problems(evals, models):
            raise UsageError("\n".join(problems.values()))

    def problems(self, evals: Sequence[str], models: Sequence[str]) -> dict[tuple[str, str], str]:
        """Find problems before anything runs: a message for each eval and each model that cannot be evaluated.

        The keys are `("eval", name)` and `("model", name)`.
        """
        problems: dict[tuple[str, str], str] = {}
        for name in evals:
            if self.is_imported(name):
                continue
            try:
                self.reader.check(self.task(name), self.subjects(name), fewshot=self.num_fewshot(name) > 0)
                self.check_sets(name)
                self.varied_tasks(name)
                self.check_episodes(name)
            except UsageError as error:
                problems["eval", name] = f"eval {name}: {error}"
            except Exception as error:  # of a task, which is users' code
                problems["eval", name] = f"eval {name}: its task raised {described(error)}"
        for name in models:
            try:
                with limited(self.config.code_timeout), calling(f"the check of the model {name}", is_limited=False):
                    self.handle(name).check()
            except (ModelUnreachableError, NotEvaluatedError):
                continue  # cached answers can be used; the run tells of what is missing
            except UsageError as error:
                problems["model", name] = str(error)  # it names the model
            except Exception as error:  # of a backend, which may be users' code
                problems["model", name] = f"Model {name!r}: its check raised {described(error)}"
        return problems

    def check_episodes(self, eval_name: str) -> None:
        """Raise `UsageError` if the episodes of an eval cannot run: by its roles, its tools, or several texts a prompt."""
        settings, task = self.eval(eval_name), self.task(eval_name)
        require_episodes(task, settings.roles, settings.num_samples or task.NUM_SAMPLES)
        for role, model in settings.roles.items():
            try:
                self.handle(model).check()
            except ModelUnreachableError:
                continue  # as in `problems`
            except UsageError as error:
                raise UsageError(f"roles.{role}: {error}") from error

    def varied_tasks(self, eval_name: str) -> dict[str, TaskClass]:
        """The task as each variant of an eval asks it, `default` first. Empty without variants.

        Raises:
            UsageError: A variant does not apply to the task.
        """
        settings, task = self.eval(eval_name), self.task(eval_name)
        found: dict[str, TaskClass] = {DEFAULT: task} if settings.variants else {}
        for name, variant in settings.variants.items():
            where = f"variants.{name}"
            try:
                found[name] = varied_task(task, **variant.model_dump(exclude={"fewshot_seed"}))
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from error
            if variant.fewshot_seed is not None:
                strategy = settings.fewshot_strategy or task.FEWSHOT_STRATEGY
                shots = self.num_fewshot(eval_name)
                if not shots or strategy == "first":
                    why = "the examples are the first of their split" if shots else "the eval has no examples"
                    raise UsageError(
                        f"{where}: fewshot_seed is {variant.fewshot_seed}, and {why}; expected num_fewshot of at least 1, and "
                        "fewshot_strategy random or balanced"
                    )
        return found

    def check_sets(self, eval_name: str) -> None:
        """Raise `UsageError` if all sets of examples of an eval would be the same."""
        settings, task = self.eval(eval_name), self.task(eval_name)
        strategy, sets = settings.fewshot_strategy or task.FEWSHOT_STRATEGY, settings.fewshot_sets
        if strategy == "first" and sets not in (1, "per_sample"):
            raise UsageError(
                f"fewshot_sets is {sets} and the examples are the first of their split (fewshot_strategy first, "
                f"{'as the eval says' if settings.fewshot_strategy else f'as the task {task.NAME} says'}), so that all sets would be the "
                "same; expected fewshot_sets 1, or fewshot_strategy random or balanced"
            )


def configured(evals: Iterable[str], models: Iterable[str], suites: Mapping[str, SuiteConfig]) -> Configured:
    """The names of a configuration and the aggregates of its suites, as a lake shows them."""
    aggregates = []
    for suite_name, suite in suites.items():
        for name, section in suite.aggregates.items():
            members = section.evals or suite.evals
            aggregates.append(
                ConfiguredAggregate(
                    suite=suite_name,
                    name=name,
                    of=section.of,
                    evals=members,
                    weights=tuple((section.weights or {}).get(each, 1.0) for each in members),
                    models=suite.models,
                    normalised=section.normalised,
                    metric=section.metric,
                )
            )
    return Configured(evals=tuple(evals), models=tuple(models), aggregates=tuple(aggregates))


def default_config_path() -> Path:
    """`EVAL_DAGSTER_CONFIG`, or `./evals.yaml`."""
    return Path(os.environ.get("EVAL_DAGSTER_CONFIG", "evals.yaml"))


def default_home(config_path: Path) -> Path:
    """`EVAL_DAGSTER_HOME`, or `.eval_dagster` beside a configuration file. A component of `dg` has a folder there, or in its project."""
    given = os.environ.get("EVAL_DAGSTER_HOME")
    if is_component(config_path):
        return component_home(config_path, given)
    return Path(given) if given else config_path.parent / ".eval_dagster"


def with_dataset(task: TaskClass, **attributes: str | None) -> TaskClass:
    """The task with other attributes of its dataset, such as its commit. Its code is the same, and has the same version."""
    names = {name: getattr(task, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(task.__name__, (task,), {**names, **attributes})


def in_order(names: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Each name once, in the order of the configuration."""
    wanted = set(names)
    return [name for name in known if name in wanted]


def _pick(section: Mapping[str, T], name: str, kind: str) -> T:
    if name not in section:
        raise UsageError(f"unknown {kind} {name!r}{did_you_mean(name, section)}; evals.yaml has: {', '.join(section) or 'none'}")
    return section[name]


def _tracker(config: Config, home: Path, locks: SharedLocks) -> Tracker:
    given = os.environ.get(TRACKING_VARIABLE)
    if given and (reason := wrong_uri(given)):  # not repeated in the message, since it can hold a password
        raise ConfigError(f"the environment variable {TRACKING_VARIABLE} is wrong: {reason}; expected {TRACKING_URIS}")
    return Tracker(
        home=home,
        tracking_uri=given or config.mlflow.tracking_uri,
        experiment=config.mlflow.experiment,
        locks=locks,
        addresses=_addresses(config, home),
    )


def _addresses(config: Config, home: Path) -> Addresses:
    return Addresses(home=home, public=config.public_url.model_dump(exclude_none=True))
