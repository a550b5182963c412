"""One call to a server: its body, its client, its answer."""
