"""Estimates with error bars, and paired comparisons of two sets of scores."""
