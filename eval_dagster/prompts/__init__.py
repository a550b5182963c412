"""Prompts: few-shot examples, messages, and the formatters that turn these into text."""
