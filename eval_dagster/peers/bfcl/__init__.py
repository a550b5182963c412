"""The Berkeley Function-Calling Leaderboard, version 4, with the entries, systems and verdicts of its package."""
