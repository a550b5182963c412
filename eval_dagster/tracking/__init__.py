"""Logs results to MLflow."""
