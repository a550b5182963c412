"""Results of evaluations: their samples, answers, labels and comparisons."""
