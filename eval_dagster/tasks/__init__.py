"""The task API: tasks, their samples, and the styles of their prompts."""
