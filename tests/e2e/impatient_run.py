"""`eval-dagster` that takes a machine of a shared lake for dead after seconds instead of a minute."""

from eval_dagster.cli.main import main
from eval_dagster.lake.answers import claims

claims.BEAT_S, claims.SILENT_S, claims._LOOK_S = 1.0, 10.0, 0.5
main()
