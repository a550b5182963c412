"""Benchmarks of other packages as tasks: each registry implements the protocol of `eval_dagster.tasks.benchmark`."""
