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
