"""The page of a result: one HTML file that shows its samples and needs no network."""

from eval_dagster.explorer.samples import ResultSamples


def result_page(samples: ResultSamples) -> bytes:
    """The page: HTML in UTF-8 with the samples in it, gzipped. It runs as a file, from a server and in a frame that allows scripts."""
    raise NotImplementedError
