"""The metrics of eval-framework, by its definitions."""
