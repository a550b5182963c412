"""The tables of the lake: their columns and their rows."""
