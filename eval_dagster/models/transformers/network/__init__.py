"""What scoring and generation share: devices, threads, memory and batches of a network."""
