"""The catalog: the relations over the files of the lake, and how they are published and read."""
