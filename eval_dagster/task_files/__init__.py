"""Loading tasks from Python files and packages."""
