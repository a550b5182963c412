"""Progress reporting, independent of where it is displayed."""
