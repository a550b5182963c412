"""The module that workspace.yaml names: the definitions of ./evals.yaml, or of the file in `EVAL_DAGSTER_CONFIG`."""

import dagster as dg

from eval_dagster.assets.component import EvalsComponent
from eval_dagster.project import default_config_path

defs = EvalsComponent(config=default_config_path()).definitions(executor=dg.in_process_executor)
