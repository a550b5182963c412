"""Metrics, one module a kind. The base classes are here."""
