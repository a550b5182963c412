"""The command line."""

from eval_dagster.cli.streams import prepare_streams

prepare_streams()  # before a module opens a file or looks at a stream
