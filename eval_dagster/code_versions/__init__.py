"""Versions of Python code: a hash of the definitions that a result depends on."""
