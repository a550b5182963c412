"""The regression gate: compares materializations sample by sample, and judges whether a model got worse."""
