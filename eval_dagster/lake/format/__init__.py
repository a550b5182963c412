"""One file of the lake: its name, its bytes, its checksums and its damage."""
