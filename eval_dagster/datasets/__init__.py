"""Reads datasets: from the Hugging Face Hub, from local folders, and from files of rows."""

from eval_dagster.datasets.reader import DatasetReader

__all__ = ["DatasetReader"]
