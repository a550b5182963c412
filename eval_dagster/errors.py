"""The exceptions of this package.

A message says what was seen, what was expected, where, and what to do. A `UsageError` is found before anything runs (exit status 2). A
`DataError` or `ModelError` belongs to one eval or one sample and does not affect the others (exit status 1).
"""


class EvalDagsterError(Exception):
    """Base of every exception of this package."""


class UsageError(EvalDagsterError):
    """An input of the user is wrong; found before anything runs."""


class ConfigError(UsageError):
    """`evals.yaml` is wrong. The message names file, line, key, what was found and what is allowed."""


class TaskDefinitionError(UsageError):
    """A task cannot be loaded, or its class lacks a hook or an attribute."""


class RequirementError(UsageError):
    """A requirement of a metric is missing: a package of an extra, permission to run code, or a sandbox to run it in."""


class DatasetNotFoundError(UsageError):
    """A task's dataset is neither in the mirror nor on the Hub, or the Hub cannot be reached."""


class UnreadAssetError(DatasetNotFoundError):
    """Only the IO manager of an asset has its rows, and no step in Dagster has read them yet."""


class FarError(EvalDagsterError):
    """Code that must only look would have to fetch something, ask another machine, or prepare a model."""


class ModelNotFoundError(UsageError):
    """A model's source is missing, or has no weights that can be loaded."""


class ModelUnreachableError(ModelNotFoundError):
    """A model's server does not answer now. Its version is known from an earlier run, so its cached answers can be used."""


class QueryError(UsageError):
    """A SQL query, or the name of one, is wrong, or there is nothing to query yet."""


class DataError(EvalDagsterError):
    """The data of one eval is wrong: a row lacks a field, a dataset is empty, a gold answer is not among the choices."""


class RowError(DataError):
    """One row is wrong, or a task's hook fails on it. The message names the row."""


class WholeEvalError(DataError):
    """An eval cannot ask any of its rows: there are too few rows to draw examples from, or another package fails."""


class SampleError(RowError):
    """One question cannot be asked, whatever the others are: a choice is empty. It is the error of its sample."""


class MachineError(EvalDagsterError):
    """The machine failed, so the result is missing: a process does not start, or ends before it reports.

    Another run may succeed, so this error is not kept as a result.
    """


class MemoryLimitError(EvalDagsterError):
    """A stage takes more memory than it may have."""


class LakeError(EvalDagsterError):
    """A file of the lake is missing or damaged. The message names the file and the cure."""


class LakeUnreachableError(EvalDagsterError):
    """The object store of the lake does not answer. Another run may succeed, and continues from the computed results."""


class ModelError(EvalDagsterError):
    """A model cannot be loaded or cannot answer a request."""


class PromptTooLongError(ModelError):
    """A prompt and its continuation need more tokens than the model's context holds."""


class NotEvaluatedError(ModelError):
    """A limit that a person has set keeps a model from being asked. The model did not fail: another run goes on."""


class StoreError(EvalDagsterError):
    """A database of the home, MLflow's or Dagster's, cannot be made, opened or written to. The message names the file."""


class LockLostError(EvalDagsterError):
    """A lock in a database was lost while it was held, so that another process may have done the same work."""


class TrackingError(EvalDagsterError):
    """MLflow cannot be reached or refuses something. The result itself is in the lake: a caller can carry on."""


class EndedError(EvalDagsterError):
    """Users' code raised an exception that is meant to end the process or a task in it, such as `SystemExit`. The message describes it."""


def described(error: BaseException) -> str:
    """The class and the text of an exception. For users' exceptions, making the text may fail."""
    if isinstance(error, EndedError):
        return str(error)
    try:
        text = str(error)
    except (Exception, SystemExit) as problem:
        text = f"(its text cannot be made: {type(problem).__name__})"
    return f"{type(error).__name__}: {text}"
