"""The one place that knows how this project's plots look. Needs matplotlib (extra `demo`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def acceptance_bars(rates: Mapping[str, Sequence[float]], title: str):
    """Grouped bars: for each named run the acceptance at draft positions 1, 2, ... (cumulative). Returns the figure."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2), dpi=96, layout="constrained")
    width = 0.8 / len(rates)
    for index, (name, values) in enumerate(rates.items()):
        left = [position + (index - (len(rates) - 1) / 2) * width for position in range(1, len(values) + 1)]
        bars = axes.bar(left, values, width, label=name)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8)
    positions = range(1, max(map(len, rates.values())) + 1)
    axes.set(title=title, xlabel="draft position", ylabel="acceptance", ylim=(0, 1), xticks=list(positions))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def error_strips(errors: Mapping[str, Mapping[str, Sequence[float]]], title: str):
    """A point per case: for each named run and op, errors as shares of their bounds, which end at 1. Returns the figure.

    Ops without a point in any run are left out; errors of 0 too, which a logarithm does not show.
    """
    import matplotlib.pyplot as plt

    ops = [op for op in next(iter(errors.values())) if any(value > 0 for by_op in errors.values() for value in by_op[op])]
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.32 * len(ops)), dpi=96, layout="constrained")
    for index, (name, by_op) in enumerate(errors.items()):
        offset = (index - (len(errors) - 1) / 2) * 0.22
        points = [(value, row + offset) for row, op in enumerate(ops) for value in by_op[op] if value > 0]
        axes.plot(*zip(*points, strict=True), ".", markersize=5, alpha=0.7, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(title=title, xlabel="largest error / bound", xscale="log", yticks=range(len(ops)), yticklabels=ops)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
