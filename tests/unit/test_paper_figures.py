"""The figures draw what the rows say and, of the paper, what its text states; nothing for what was not run."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from apps.paper import curves, reported
from apps.paper.curves import ExecutorPoint, LoadedPoint
from apps.paper.figures import ABLATION, SWITCHES, THROUGHPUT, draw, switches, throughput
from coe.errors import ConfigError
from coe.lab.bars import COLOURS, SPARE, colours, grouped
from coe.scheduler.strategies import STRATEGIES
from coe.trials.rows import Row


def row(strategy: str, task: str = "A1", device: str = reported.NUMA, **changes: object) -> Row:
    base = Row(task, "iid", device, strategy, 2500, 0, 20.0, 70, 70, 0.9, 1.0, 2.0, 125.0, 30.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def heights(axes: Axes) -> dict[str, list[float]]:
    """What stands in a panel by strategy, from the left."""
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}


def outlines(axes: Axes) -> list[float]:
    """The paper's bars, from the left."""
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    return [patch.get_height() for patch in sorted(hatched, key=lambda patch: patch.get_x())]


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


def test_of_two_rows_for_one_bar_the_later_counts() -> None:
    figure = throughput([row("samba", images_per_s=3.0), row("samba", images_per_s=5.0)])
    assert heights(figure.axes[0]) == {"samba": [5.0]}


def test_a_panel_per_device_and_the_order_only_where_there_are_several() -> None:
    one = throughput([row("samba"), row("samba", device="h200")])
    assert [axes.get_title(loc="left") for axes in one.axes] == [reported.NUMA, "h200"]
    two = throughput([row("samba"), row("samba", order="boards")])
    titles = [axes.get_title(loc="left") for axes in two.axes]
    assert titles == [f"{reported.NUMA}, order iid", f"{reported.NUMA}, order boards"]


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


def test_a_limit_far_above_the_bars_is_told_in_words() -> None:
    figure = throughput([row("samba", images_per_s=1.0, lower_bound_makespan_s=10.0)])
    assert not figure.axes[0].lines
    assert figure.axes[0].get_ylim()[1] < 2
    assert "above the panel: A1 250" in words(figure, figure.axes[0])


def test_nothing_but_zeros_can_be_drawn(tmp_path: Path) -> None:
    draw([row("samba", images_per_s=0.0, switches=0), row("coserve", images_per_s=0.0)], [], [], tmp_path)
    draw([row("samba", switches=0, lower_bound_switches=0)], [], [], tmp_path)


# Colours


def test_strategies_keep_their_colour_and_order_and_an_unknown_one_gets_one_too() -> None:
    assert set(STRATEGIES) <= set(COLOURS)
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


def test_colours_differ_in_lightness_within_a_family() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    for family in (reported.BASELINES, ABLATION[:3], (reported.CASUAL, reported.BEST)):
        shades = sorted(grey(COLOURS[name]) for name in family)
        assert all(after - before > 40 for before, after in pairwise(shades))


# The paper


def test_the_numbers_of_the_paper_agree_with_its_percentages() -> None:
    least, greatest = reported.BEST_AND_CASUAL[reported.NUMA]
    losses = [1 - pair.casual_images_per_s / pair.best_images_per_s for pair in (least, greatest)]
    assert losses == pytest.approx([0.0571, 0.1875], abs=5e-5)
    cuts = [1 - said.coserve / said.baseline for said in reported.SWITCHES]
    assert cuts == pytest.approx([0.9387, 0.785], abs=5e-4)
    for window in reported.WINDOWS.values():
        assert window.low <= window.chosen <= window.high


def test_the_paper_s_throughput_is_shown_apart_because_it_names_no_task() -> None:
    figure = throughput([row("samba", images_per_s=4.0), row("coserve"), row("coserve-casual", images_per_s=16.0)])
    (axes,) = figure.axes
    assert outlines(axes) == [23.1, 24.5, 22.1, 27.2]
    said = words(figure, axes)
    assert "coserve over samba baselines: paper 4.5 to 10.5×, here 5.0 to 5.0×" in said
    assert "coserve-casual over samba baselines: paper up to 8.5×, here up to 4.0×" in said
    assert "stated in the paper" in said
    assert axes.get_ylim()[1] > 27.2


def test_the_paper_s_switches_stand_beside_ours_at_their_task() -> None:
    rows = [row(name, task, switches=80) for task in ("B1", "B2") for name in ("samba", "coserve", "coserve-casual")]
    numa, uma = switches(rows + [replace(one, device=reported.UMA) for one in rows]).axes
    assert outlines(numa) == [1060, 65]
    assert outlines(uma) == [293, 63]
    assert heights(numa) == {"samba": [80, 80], "coserve-casual": [80, 80], "coserve": [80, 80]}
    placed = sorted(patch.get_x() for patch in numa.patches if patch.get_hatch())
    assert all(0.5 < x < 1.5 for x in placed), "B2 is the second group"
    assert "paper 16.5 to 31.1 %, here 0.0 to 0.0 %" in words(uma.figure, uma)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["h200", "cpu-2core"])
def test_other_devices_have_nothing_of_the_paper(device: str) -> None:
    rows = [row(name, "B2", device) for name in ("samba", "coserve", "coserve-casual")]
    for figure in (throughput(rows), switches(rows)):
        assert outlines(figure.axes[0]) == []
        assert "paper" not in words(figure, figure.axes[0])


def test_other_tasks_are_not_compared_with_the_paper() -> None:
    figure = throughput([row(name, "trace.jsonl") for name in ("samba", "coserve")])
    assert "over samba baselines" not in words(figure, figure.axes[0])
    figure = switches([row(name, "A1") for name in ("samba", "coserve")])
    assert outlines(figure.axes[0]) == []


def test_the_breakdown_states_nothing_because_the_text_does_not() -> None:
    for measure in (THROUGHPUT, SWITCHES):
        figure = grouped([row(name, "B2") for name in ABLATION], measure, "breakdown", None)
        assert list(heights(figure.axes[0])) == list(ABLATION)
        assert outlines(figure.axes[0]) == []


# Curves


def test_executors_stand_in_the_order_given_with_the_paper_s_best_marked() -> None:
    points = [
        ExecutorPoint(device, task, name, speed)
        for device in (reported.UMA, "h200")
        for task in ("A1", "A2", "B1")
        for name, speed in (("2G+1C", 20.0), ("3G+1C", 24.0), ("4G+1C", 23.0))
    ]
    figure = curves.executors(points, "coe-bench sim")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"{reported.UMA}, board A", f"{reported.UMA}, board B", "h200, board A", "h200, board B"]
    uma_a, uma_b, h200_a, _ = figure.axes
    assert [text.get_text() for text in uma_a.get_xticklabels()] == ["2G+1C", "3G+1C", "4G+1C"]
    drawn = {line.get_label(): list(line.get_ydata()) for line in uma_a.lines if line.get_label()[0] != "_"}
    assert drawn == {"A1": [20.0, 24.0, 23.0], "A2": [20.0, 24.0, 23.0]}
    assert [patch.get_x() + patch.get_width() / 2 for patch in uma_a.patches] == [1]
    assert [patch.get_x() + patch.get_width() / 2 for patch in uma_b.patches] == [2]
    assert not h200_a.patches


def test_loaded_experts_show_the_paper_s_window_on_its_device_only() -> None:
    points = [
        LoadedPoint(device, task, experts, 20.0 + experts / 10)
        for device in (reported.NUMA, reported.UMA)
        for task in ("A", "trace.jsonl")
        for experts in (40, 20)
    ]
    numa, trace, uma, _ = curves.loaded_experts(points, None).axes
    assert list(numa.lines[0].get_xdata()) == [20, 40]
    assert list(numa.lines[0].get_ydata()) == [22.0, 24.0]
    (window,) = numa.patches
    assert (window.get_x(), window.get_width()) == (28, 11)
    stars = [(line.get_xdata()[0], line.get_ydata()[0]) for line in numa.lines if line.get_marker() == "*"]
    assert stars == [(35, 25.4)]
    assert not trace.patches
    assert not uma.patches


# Files


@pytest.mark.slow
def test_draw_writes_what_there_is_data_for_as_png(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "figures"
    rows = [row(name, task) for name in COLOURS for task in ("A1", "B2")]
    executor_points = [ExecutorPoint(reported.NUMA, "A1", "3G+1C", 20.0)]
    loaded_points = [LoadedPoint(reported.NUMA, "A1", 30, 20.0)]
    paths = draw(rows, executor_points, loaded_points, folder, command="python -m apps.paper figures rows.json " * 9)
    assert paths == [folder / f"figure-{number}.png" for number in range(13, 19)]
    for path in paths:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
            assert 800 <= picture.width <= 2400
            assert 400 <= picture.height <= 2400
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 20, "there is something on it"


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [row("samba"), row("coserve")]
    first, second = (draw(rows, [], [], tmp_path / folder)[0] for folder in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_nothing_is_drawn_for_missing_data(tmp_path: Path) -> None:
    assert draw([], [], [], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    assert [path.name for path in draw([row("samba"), row("coserve")], [], [], tmp_path)] == [
        "figure-13.png",
        "figure-14.png",
    ], "one step is no breakdown"


def test_the_command_stands_at_the_foot() -> None:
    assert throughput([row("samba")], "coe-bench sim --task A1").get_supxlabel() == "coe-bench sim --task A1"
    assert throughput([row("samba")]).get_supxlabel() == ""


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"figure-13\.png cannot be written: .*; name another place"):
        draw([row("samba")], [], [], tmp_path / "file")
