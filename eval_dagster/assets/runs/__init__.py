"""Runs of suites: launched, in this process, summarized, skipped."""
