"""Names and types of eval-framework and lighteval, so that task files written for them load."""
