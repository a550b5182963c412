"""Checks whether a server still has the same model."""
