"""The regression gate: compares the results of a suite sample by sample, and judges whether they got worse."""
