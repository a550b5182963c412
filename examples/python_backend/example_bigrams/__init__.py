"""A language model of word pairs, and tasks for it."""
