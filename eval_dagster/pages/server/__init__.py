"""The overview of all results as web pages on loopback: leaderboard, histories, comparisons, nights, and the way to each sample."""
