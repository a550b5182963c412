"""The Python API: evaluates tasks and reads results from scripts and notebooks."""
