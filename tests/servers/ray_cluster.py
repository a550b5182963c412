"""A cluster of Ray whose nodes are processes of this machine, on loopback alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_STORE_BYTES = 80 * 2**20


@dataclass(kw_only=True)
class RayCluster:
    """A running cluster."""

    cluster: Any
    """Ray's own object."""
    cpus: float
    """Cores of a node, as Ray counts them."""
    nodes: list[Any] = field(default_factory=list)
    """The first one cannot be removed."""

    @property
    def address(self) -> str:
        """What `RAY_ADDRESS` is to be."""
        return str(self.cluster.address)

    def add_node(self) -> None:
        """Start one more node."""
        self.nodes.append(self.cluster.add_node(**_node(self.cpus)))

    def remove_node(self) -> None:
        """Kill the last node and all its workers, as where a machine fails."""
        self.cluster.remove_node(self.nodes.pop(), allow_graceful=False)


@contextmanager
def running_cluster(*, nodes: int = 3, cpus: float = 4) -> Iterator[RayCluster]:
    """A cluster for as long as the block lasts. Its processes end with this one, also where this one is killed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the nodes listen on loopback alone
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**_node(cpus), "include_dashboard": False})
    running = RayCluster(cluster=cluster, cpus=cpus, nodes=[cluster.head_node])
    try:
        for _ in range(nodes - 1):
            running.add_node()
        yield running
    finally:
        ray.shutdown()
        cluster.shutdown()


def _node(cpus: float) -> dict[str, Any]:
    return {"num_cpus": cpus, "num_gpus": 0, "object_store_memory": _STORE_BYTES}
