"""Deleting old materializations: what each policy keeps, and why."""
