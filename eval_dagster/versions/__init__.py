"""Versions of Python code: hashes of the definitions that a result depends on."""
