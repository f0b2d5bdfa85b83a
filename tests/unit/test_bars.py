"""The figures draw what the rows say, and nothing for what was not run."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from coe.lab.bars import COLOURS, SPARE, SWITCHES, THROUGHPUT, colours, draw, grouped
from coe.lab.rows import Row
from coe.scheduler.strategies import names

NUMA = "numa-rtx3080ti"


def row(strategy: str, task: str = "A1", device: str = NUMA, **changes: object) -> Row:
    base = Row(task, "iid", device, strategy, 2500, 0, 20.0, 70, 70, 0.9, 1.0, 2.0, 125.0, 30.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def heights(axes: Axes) -> dict[str, list[float]]:
    """What stands in a panel by strategy, from the left."""
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}


def throughput(rows: list[Row], command: str | None = None) -> Figure:
    return grouped(rows, THROUGHPUT, "throughput", command)


def switches(rows: list[Row]) -> Figure:
    return grouped(rows, SWITCHES, "switches", None)


def words(figure: Figure, axes: Axes) -> str:
    said = [text.get_text() for text in (*axes.texts, *axes.get_xticklabels())]
    legend = figure.legends[0]
    return "\n".join([*said, legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())])


# Bars


def test_a_bar_is_as_high_as_its_row_says_and_a_missing_run_leaves_a_gap() -> None:
    rows = [
        row("coserve", "B2", images_per_s=24.0, switches=66),
        row("samba", "A1", images_per_s=3.0, switches=900),
        row("samba", "B2", images_per_s=4.0, switches=1000),
        row("coserve", "trace.jsonl", images_per_s=9.0, switches=7),
    ]
    figure = throughput(rows)
    (axes,) = figure.axes
    assert heights(axes) == {"samba": [3.0, 4.0], "coserve": [24.0, 9.0]}
    assert [text.get_text() for text in axes.get_xticklabels()][:3] == ["A1", "B2", "trace.jsonl"]
    middles = {bars.get_label(): [bar.get_x() + bar.get_width() / 2 for bar in bars] for bars in axes.containers}
    assert middles["samba"] == pytest.approx([-0.08, 0.92])
    assert middles["coserve"] == pytest.approx([1.08, 2.08])
    assert heights(switches(rows).axes[0]) == {"samba": [900, 1000], "coserve": [66, 7]}
    assert axes.get_ylabel() == "images per second"
    assert "3.00" in words(figure, axes)
    assert "24.0" in words(figure, axes)


def test_a_panel_per_device_and_the_order_only_where_there_are_several() -> None:
    one = throughput([row("samba"), row("samba", device="h200")])
    assert [axes.get_title(loc="left") for axes in one.axes] == [NUMA, "h200"]
    two = throughput([row("samba"), row("samba", order="boards")])
    titles = [axes.get_title(loc="left") for axes in two.axes]
    assert titles == [f"{NUMA}, order iid", f"{NUMA}, order boards"]


def test_the_clairvoyant_limit_is_a_mark_over_each_bar_that_has_one() -> None:
    rows = [
        row("samba", lower_bound_makespan_s=100.0, lower_bound_switches=40),
        row("coserve", lower_bound_makespan_s=125.0, lower_bound_switches=35),
        row("coserve", "A2"),
    ]
    figure = throughput(rows)
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[25.0, 25.0], [20.0, 20.0]]
    marks = [line.get_ydata()[0] for line in switches(rows).axes[0].lines]
    assert marks == [40, 35]
    assert "clairvoyant limit" in words(figure, figure.axes[0])
    without = throughput([row("samba")])
    assert not without.axes[0].lines
    assert "clairvoyant" not in words(without, without.axes[0])


def test_a_limit_far_above_the_bars_is_told_in_words_and_of_two_rows_the_later_counts() -> None:
    far = row("samba", images_per_s=1.0, lower_bound_makespan_s=10.0)
    figure = throughput([replace(far, images_per_s=0.5), far])
    (axes,) = figure.axes
    assert heights(axes) == {"samba": [1.0]}
    assert not axes.lines
    assert axes.get_ylim()[1] < 2
    assert "above the panel: A1 250" in words(figure, axes)


# Colours


def test_strategies_keep_their_colour_and_order_and_an_unknown_one_gets_one_too() -> None:
    assert set(names()) - {"narrow-minded"} <= set(COLOURS)
    assert colours(["mine", "coserve", "samba"]) == {
        "samba": COLOURS["samba"],
        "coserve": COLOURS["coserve"],
        "mine": SPARE[0],
    }
    many = [f"s{index}" for index in range(20)]
    assert list(colours(many)) == many
    assert list(colours(many).values())[: len(SPARE) + 1] == [*SPARE, SPARE[0]]
    assert not set(SPARE) & set(COLOURS.values())
    (axes,) = throughput([row("mine"), row("coserve")]).axes
    drawn = {bars.get_label(): to_hex(bars[0].get_facecolor()) for bars in axes.containers}
    assert drawn == {"coserve": COLOURS["coserve"], "mine": SPARE[0]}


# Files


def test_draw_writes_both_figures_as_png_with_the_command_at_the_foot(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "figures"
    rows = [row(name, task) for name in COLOURS for task in ("A1", "B2")]
    paths = draw(rows, folder, command="coe-bench sim --task A1,B2 " * 9)
    assert paths == [folder / "throughput.png", folder / "switches.png"]
    for path in paths:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert 400 <= min(picture.size) <= max(picture.size) <= 2400
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20, "there is something on it"
    again = draw(rows, tmp_path / "again", command="coe-bench sim --task A1,B2 " * 9)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    assert throughput([row("samba")], "coe-bench sim --task A1").get_supxlabel() == "coe-bench sim --task A1"


def test_dollars_in_names_draw_no_formula_and_nothing_but_zeros_can_be_drawn(tmp_path: Path) -> None:
    hard = ["$x$", "$\\frac{1}{", "a$b", "$$", "\\$x", "$\\undefined$"]
    nothing = [row(name, name, hard[1], images_per_s=0.0, switches=0, lower_bound_switches=0) for name in hard]
    assert all(path.stat().st_size > 0 for path in draw(nothing, tmp_path, command=" ".join(hard)))
