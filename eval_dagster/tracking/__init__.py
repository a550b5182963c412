"""Logging of results to MLflow."""
