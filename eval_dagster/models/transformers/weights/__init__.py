"""Where weights come from, how they are identified, and how they are loaded."""
