"""Notifications of nightly runs: their texts, and their delivery through Apprise."""
