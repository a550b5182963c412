"""The configuration file evals.yaml: its schema, its loading, and messages about its mistakes."""
