"""Files, locks and databases that several processes share."""
