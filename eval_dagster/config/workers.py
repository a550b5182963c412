"""The section `workers` of a model in evals.yaml."""

from typing import Literal, Self

from pydantic import Field, model_validator

from eval_dagster.config.values import Integer, Number, Seconds, Section


class WorkersConfig(Section):
    """Processes of a cluster that answer the requests of one model together. Each loads the model."""

    engine: Literal["ray"] = "ray"
    """What starts the workers."""
    count: Integer = Field(default=1, ge=1)
    """Number of workers. A run goes on with fewer if the cluster has no room for all."""
    gpus: Number = Field(default=0, ge=0)
    """GPUs of each worker; a part of one, such as 0.5, is shared with another worker. 0: the worker sees no GPU."""
    cpus: Number = Field(default=1, ge=0)
    """Cores of each worker, and threads of a model that runs on them."""
    address: str | None = Field(
        default=None,
        pattern=r"^([^\s/]+:[0-9]+|auto|local)$",
        description="the address of a cluster such as 10.0.0.1:6379 (ray:// cannot stream answers: start the run on the cluster)",
    )
    """The cluster. `RAY_ADDRESS` if not given; without both, a Ray of this machine alone that ends with the process."""
    python: str | None = Field(default=None, min_length=1)
    """The interpreter of the workers, if the model needs packages of an environment of its own. Absolute, the same on each node."""
    patience_s: Seconds = Field(default=120.0, gt=0)
    """Seconds without any worker after which the run ends."""

    @model_validator(mode="after")
    def _gpus_are_whole(self) -> Self:
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"{self.gpus:g} GPUs a worker are not possible; expected a whole number, or a part of one GPU")
        if self.python is not None and not self.python.startswith("/"):
            raise ValueError(f"`python: {self.python}` is not absolute; expected the path of an interpreter that each node has")
        return self
