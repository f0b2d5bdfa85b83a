"""The sheet that all figures are drawn on."""

from __future__ import annotations

import pytest
from matplotlib.lines import Line2D

from coe.results.plots import head, sheet


@pytest.mark.parametrize("count", [1, 6, 13])
def test_a_legend_of_long_names_stays_on_the_sheet(count: int) -> None:
    figure = sheet((12.5, 4.0), None)
    names = [f"resnet101, onnxruntime, bf16, 224 px, {index} thread(s)" for index in range(count)]
    head(figure, "title", [Line2D([], [], label=name) for name in names])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
