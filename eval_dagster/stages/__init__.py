"""The stages of an evaluation as plain functions: snapshot, prompts, outputs, scores and metrics."""
