"""A lake in an object store, with a copy of its files on each machine."""
