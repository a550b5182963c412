"""How sure a model is of its choices, and how often it is right: the reliability diagram of an eval."""

from typing import Any

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.pages.server import charts
from eval_dagster.pages.server.parameters import Parameters
from eval_dagster.pages.server.rendering import page

_LARGEST = 9.0


def calibration(state: CatalogState, parameters: Parameters) -> str:
    """The bins of confidence of the current result of an eval and a model, with the accuracy of each."""
    key = {"eval": parameters.required("eval"), "model": parameters.required("model")}
    bins = state.rows("select * from calibration where eval = $eval and model = $model order by bin", key)
    models = [
        row["model"] for row in state.rows("select distinct model from metrics where eval = $eval order by model", {"eval": key["eval"]})
    ]
    across, up = charts.square([0.0, 1.0])
    most = max((row["n"] for row in bins), default=1)
    dots: list[dict[str, Any]] = [
        {
            **row,
            "x": across.place(row["confidence"]),
            "y": up.place(row["accuracy"]),
            "low": up.place(row["ci_low"]),
            "high": up.place(row["ci_high"]),
            "radius": round(2.5 + _LARGEST * (row["n"] / most) ** 0.5, 2),
        }
        for row in bins
    ]
    picture = {"dots": dots, "across": across.ticks(), "up": up.ticks(), "ends": (across.start, across.end, up.start, up.end)}
    return page("calibration.html", **key, models=models, bins=bins, picture=picture, total=sum(row["n"] for row in bins))
