"""Reads the results of other evaluation systems into the lake."""
