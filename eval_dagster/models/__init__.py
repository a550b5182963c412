"""Model backends: their protocol, their registry, and the scripted one."""
