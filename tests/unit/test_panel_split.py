"""The placement file of a panel, as KiKit exports it, is divided into its boards."""

from dataclasses import replace
from pathlib import Path

import pytest

from coe.board.parts_list import BoardPart, Side
from coe.errors import ConfigError
from coe.placement import lay_out, parse_recipe
from coe.placement.panel_split import pattern_of

PARTS = (("R1", 3, 4, 0), ("R2", 6, 4, 90), ("U1", 5, 8, 180))
SHIFTS = ((0, 0), (20, 0), (0, 15), (20, 15))
FRAME = [BoardPart("FID1", -3, -3, 0, Side.TOP, line=901), BoardPart("FID2", 40, -3, 0, Side.TOP, line=902)]


def panel(name):
    """Four boards whose parts have such names, in the order of the names."""
    places = [
        BoardPart(name.format(n=n, orig=refdes), x + dx, y + dy, angle, Side.TOP, refdes[0])
        for n, (dx, dy) in enumerate(SHIFTS)
        for refdes, x, y, angle in PARTS
    ]
    ordered = sorted(places, key=lambda place: place.refdes)
    return [
        BoardPart(p.refdes, p.x_mm, p.y_mm, p.rotation_deg, p.side, p.component, line)
        for line, p in enumerate(ordered, 2)
    ]


def layout(places, refdes):
    recipe = f"""
recipe: p
side: top
um_per_pixel: 20
outline: {{x: [-5, 45], y: [-5, 35]}}
fiducials: {{diameter: 1, at: {{FID1: [-3, -3], FID2: [40, -3]}}}}
components: {{R: {{size: [1, 1]}}, U: {{size: [2, 2]}}}}
panel: {{refdes: "{refdes}"}}
"""
    return lay_out(parse_recipe(Path("p.yaml"), recipe.encode()), places)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("Board_{n}-{orig}", ["Board_0", "Board_1", "Board_2", "Board_3"]),
        ("{n}_{orig}", ["0", "1", "2", "3"]),
        ("{orig}", ["r1c1", "r2c1", "r1c2", "r2c2"]),
    ],
)
def test_a_panel_is_recognised_and_divided(name, units):
    places = [*FRAME, *panel(name)]
    pattern = pattern_of(places)
    assert pattern == name
    drawn = layout(places, name)
    assert list(drawn.units) == units
    assert [part.refdes for part in drawn.parts] == ["R1", "R2", "U1"]
    at = {site.name: (site.at.x_mm, site.at.y_mm) for site in drawn.sites}
    first = {"Board_0": (0, 0), "0": (0, 0), "r1c1": (0, 0)}[units[0]]
    assert at[f"{units[0]}/U1"] == (5 + first[0], 8 + first[1])
    assert len(set(at.values())) == 12


def test_a_single_board_is_no_panel_and_boards_that_differ_are_refused():
    assert pattern_of([BoardPart(refdes, x, y, 0, Side.TOP) for refdes, x, y, _ in PARTS]) is None
    assert pattern_of([BoardPart(f"LED_{n}_R1", n, 0, 0, Side.TOP) for n in (1,)]) is None
    with pytest.raises(ConfigError, match=r"Board_3.* differ in"):
        layout([place for place in panel("Board_{n}-{orig}") if place.refdes != "Board_3-U1"], "Board_{n}-{orig}")
    with pytest.raises(ConfigError, match="FID1, FID2 are of no board"):
        layout([*(replace(one, component="R") for one in FRAME), *panel("Board_{n}-{orig}")], "Board_{n}-{orig}")
    turned = [
        p if p.x_mm < 20 or p.refdes != "R1" else BoardPart("R1", 29, 7, 180, p.side, "R", p.line)
        for p in panel("{orig}")
    ]
    with pytest.raises(ConfigError, match="does not lie alike"):
        layout(turned, "{orig}")
