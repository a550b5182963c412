"""The plot of scores."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SPREAD = 0.5
"""Part of the distance between two evals over which their models are spread."""


def plot_scores(scores: "pd.DataFrame") -> "Axes":
    """Draw a point with a 95 % confidence interval for each model, the evals one below the other.

    Args:
        scores: Rows with eval, model, metric, value, ci_low and ci_high.
    """
    from matplotlib import pyplot as plt

    evals, models = list(dict.fromkeys(scores["eval"])), list(dict.fromkeys(scores["model"]))
    _, axes = plt.subplots(figsize=(7, 1 + 0.35 * len(evals) * max(2, len(models))), layout="constrained")
    for index, model in enumerate(models):
        rows = scores[scores["model"] == model]
        offset = (index - (len(models) - 1) / 2) * _SPREAD / max(1, len(models) - 1)
        places = [evals.index(name) + offset for name in rows["eval"]]
        around = [rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]]
        axes.errorbar(rows["value"], places, xerr=around, fmt="o", capsize=3, label=model)
    named = scores.drop_duplicates("eval").set_index("eval")["metric"]
    axes.set_yticks(range(len(evals)), [f"{name}\n{named[name]}" for name in evals])
    axes.set_ylim(len(evals) - 0.5, -0.5)
    axes.set_xlabel("score, with its 95 % confidence interval")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    return axes
