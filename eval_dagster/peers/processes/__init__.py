"""Benchmarks of packages that live in an environment of their own and are asked as a process."""

from eval_dagster.peers.processes.registry import ProcessRegistry

__all__ = ["ProcessRegistry"]
