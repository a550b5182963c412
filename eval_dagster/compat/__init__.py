"""Names and types of eval-framework and lighteval, so that task files for them can be loaded."""
