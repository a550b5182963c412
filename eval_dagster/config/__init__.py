"""The configuration file evals.yaml: its schema, its loading, and the messages on what is wrong in it."""
