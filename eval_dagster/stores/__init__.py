"""Files, locks and databases shared by several processes."""
