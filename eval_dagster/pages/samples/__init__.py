"""The page of a result: its samples with their prompts, answers and scores."""
