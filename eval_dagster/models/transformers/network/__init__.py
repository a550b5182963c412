"""Devices, threads, memory and batches of a network. Its modules are imported one by one, because some need torch."""
