"""The Dagster instance: its storage, its locks, and runs that were killed."""
