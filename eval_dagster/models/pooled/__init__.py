"""One model over many workers: actors of Ray that each load the model once and answer a part of the requests."""
