"""The cache of answers: journal, files, and claims of requests under way."""
