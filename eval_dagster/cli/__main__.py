"""`python -m eval_dagster.cli` is the command `eval-dagster`."""

from eval_dagster.cli.program import program

if __name__ == "__main__":
    program()
