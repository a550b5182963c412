"""Deletes old results: what each policy keeps, and why."""
