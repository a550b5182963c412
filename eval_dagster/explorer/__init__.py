"""The samples of a result: prompts, answers and scores side by side with those of another result, as data and as a page."""
