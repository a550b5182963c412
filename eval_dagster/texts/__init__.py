"""Texts for people: escaped, measured, suggested."""
