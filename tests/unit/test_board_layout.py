"""Recipes and layouts: where the camera sees each component, and what is wrong with a recipe in one sentence."""

from dataclasses import replace
from pathlib import Path

import pages
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coe.board.parts_list import BoardPart, Side
from coe.bring.board.package_sizes import read_library, size_of
from coe.bring.parts.answers import BottomAngle, BottomSide, BottomX
from coe.bring.parts.answers import read as read_answers
from coe.errors import ConfigError, RulesError
from coe.placement import lay_out, parse_recipe

PLAIN = {
    "recipe": "r",
    "side": "top",
    "um_per_pixel": 20,
    "outline": {"x": [0, 50], "y": [0, 40]},
    "fiducials": {"diameter": 1, "at": {"F1": [2, 2], "F2": [48, 2], "F3": [2, 38]}},
    "components": {"R0402": {"size": [1, 0.5]}, "SOIC": {"size": [5, 4], "turn": 90, "pin1": "bottom-left"}},
}
R1 = BoardPart("R1", 10, 20, 30, Side.TOP, "R0402", 2)
U1 = BoardPart("U1", 30, 10, 0, Side.TOP, "SOIC", 3)


def recipe(**changes):
    content = {key: value for key, value in {**PLAIN, **changes}.items() if value is not None}
    return parse_recipe(Path("r.yaml"), yaml.safe_dump(content).encode())


def seen(layout):
    return [(s.name, round(s.at.x_mm, 6), round(s.at.y_mm, 6), round(s.angle_deg, 6) % 360) for s in layout.sites]


def test_a_part_lies_where_the_file_says_with_the_crop_that_the_recipe_says():
    layout = lay_out(recipe(), (R1, U1))
    assert seen(layout) == [("R1", 10, 20, 30), ("U1", 30, 10, 90)]
    assert [(part.refdes, part.component) for part in layout.parts] == [("R1", "R0402"), ("U1", "SOIC")]
    crop = layout.sites[0].crop  # 1 x 0.5 mm with 0.25 mm around, at 20 um a pixel
    assert (crop.width_mm, crop.height_mm, crop.width_px, crop.height_px) == (1.5, 1.0, 75, 50)
    layout = lay_out(recipe(components={"R0402": {"size": [1, 0.5], "margin": 0, "crop": 64}}), (R1,))
    assert (layout.sites[0].crop.width_px, layout.sites[0].crop.height_px) == (64, 32)
    hole = BoardPart("REF**", 1.0, 2.0, 0.0, Side.TOP, "", 6)
    layout = lay_out(recipe(), (R1, replace(U1, component=""), hole, hole))
    assert [site.refdes for site in layout.sites] == ["R1"]
    assert layout.not_inspected == ("U1", "REF**", "REF**")


def test_the_units_of_a_panel_are_turned_and_moved():
    units = {"A": {"at": [0, 0]}, "B": {"at": [40, 30], "rotation": 180}, "C": {"at": [30, 5], "rotation": 90}}
    layout = lay_out(recipe(panel={"units": units}), (R1,))
    assert seen(layout) == [("A/R1", 10, 20, 30), ("B/R1", 30, 10, 210), ("C/R1", 10, 15, 120)]
    assert layout.units == ("A", "B", "C")
    assert len(layout.parts) == 1  # the parts list of one board
    array = {"rows": 2, "columns": 2, "pitch": [15, 10], "first": [1, 2]}
    layout = lay_out(recipe(panel={"array": array}), (R1,))
    assert seen(layout) == [(f"r{r}c{c}/R1", 15 * c - 4, 10 * r + 12, 30) for r in (1, 2) for c in (1, 2)]


def test_the_camera_sees_the_bottom_mirrored_and_units_turn_the_other_way():
    below = replace(R1, side=Side.BOTTOM)
    layout = lay_out(recipe(side="bottom"), (below, U1))
    assert seen(layout) == [("R1", -10, 20, 30)]
    assert (layout.fiducials["F2"].x_mm, layout.fiducials["F2"].y_mm) == (-48, 2)
    assert layout.low.x_mm < layout.high.x_mm
    below, panel = replace(R1, side=Side.BOTTOM), {"units": {"A": {"at": [30, 5], "rotation": 90}}}
    layout = lay_out(recipe(side="bottom", panel=panel), (below,))
    assert seen(layout) == [("A/R1", -10, 15, 300)]  # 30 - 90


@given(x=st.floats(-1e4, 1e4), angle=st.floats(0, 359.9), way=st.sampled_from(list(BottomAngle)))
def test_mirroring_twice_changes_nothing(x, angle, way):
    for frame in BottomX:
        bottom = BottomSide(x=frame, angle=way)
        assert bottom.x_from_top(bottom.x_from_top(x)) == x
        back = bottom.angle_seen(bottom.angle_seen(angle))
        assert min(abs(back - angle), 360 - abs(back - angle)) < 1e-9


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"side": None}, "'side'"),
        ({"side": "left"}, "r.yaml:.*side: "),
        ({"um_per_pixel": ".nan"}, "um_per_pixel"),
        ({"um_pixel": 3}, "'um_pixel'.*'um_per_pixel'"),
        ({"components": {"R": {"size": [1, 1], "margn": 1}}}, "'margn'.*'components.R'.*'margin'"),
        ({"components": {"R": {"size": [1, -1]}}}, "components.R.size.1"),
        ({"outline": {"x": [5, 0], "y": [0, 4]}}, "outline.x: .*from 5 to 0"),
        ({"fiducials": {"diameter": 1, "at": {"F1": [2, 2]}}}, "'fiducials.at'"),
        ({"fiducials": {"diameter": 1, "at": {"F1": [2, 2], "F2": [99, 2]}}}, "'F2'.*outside"),
        ({"fiducials": {"diameter": 1, "at": {"F1": [2, 2], "F2": [3, 2]}}}, "'F1' and 'F2'"),
        ({"fiducials": {"diameter": 1, "at": {"F1": [2, 2], "F2": [20, 2], "F3": [40, 2.5]}}}, "one line"),
        ({"fiducials": {"diameter": 0.1, "at": {"F1": [2, 2], "F2": [20, 2]}}}, "5.0 pixels"),
        ({"panel": {}}, "panel.*array"),
        ({"panel": {"array": {"rows": 99, "columns": 99, "pitch": [1, 1]}}}, "9801 .* 1000"),
        ({"bad_mark": {"at": [1, 1], "diameter": 1, "look": "dark"}}, "panel"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_one_sentence(changes, complaint):
    with pytest.raises(RulesError, match=complaint) as caught:
        recipe(**changes)
    assert str(caught.value).startswith("r.yaml:")
    assert "\n" not in str(caught.value)
    for content in (b"", b"- a list\n"):
        with pytest.raises(RulesError, match="um_per_pixel, outline"):
            parse_recipe(Path("r.yaml"), content)


def test_the_recipes_of_the_page_are_recipes():
    answers, whole, panel, serial = (
        block.text for block in pages.blocks(pages.ROOT / "docs" / "placements.md") if block.language == "yaml"
    )
    shown = parse_recipe(Path("page.yaml"), whole.encode())
    assert set(shown.components) == {"R0402-10K", "U-SOIC8-EEPROM"}
    assert read_answers(Path("page.yaml"), answers.encode()).decimal == "comma"
    code = parse_recipe(Path("page.yaml"), (whole + panel + serial).encode()).serial
    assert (code.each, code.allowed) == ("unit", ("SN######",))
    assert list(parse_recipe(Path("page.yaml"), (whole + panel).encode()).units) == [
        f"r{row}c{column}" for row in (1, 2) for column in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("changes", "parts", "complaint"),
    [
        ({}, [replace(U1, component="SOIK")], r"U1 \(line 3 of parts.csv\).*'SOIK', .*'SOIC'"),
        ({}, [replace(R1, side=Side.BOTTOM)], "parts.csv has no part"),
        ({}, [replace(R1, x_mm=51)], r"R1.*\(51.00, 20.00\) mm, outside.* r.yaml: x 0 to 50"),
        ({}, [replace(R1, component="")], "parts.csv has no part"),
        ({}, [R1, replace(R1, line=7)], "'R1'.* 2, 7 .*parts.csv"),
        ({"components": {"R0402": {"size": [0.1, 0.1], "margin": 0}}}, [R1], "5 x 5 pixels"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes, parts, complaint):
    with pytest.raises(ConfigError, match=complaint) as caught:
        lay_out(recipe(**changes), parts)
    assert len(str(caught.value).split("\n")) == 1 + str(caught.value).count("[TODO")


def test_all_parts_that_are_no_component_are_named_at_once_as_entries_to_paste():
    parts = [BoardPart(f"R{n}", 1.0 + n, 2.0, 0.0, Side.TOP, f"KIND-{n % 3}", n) for n in range(9)]
    with pytest.raises(ConfigError) as caught:
        lay_out(recipe(), [R1, *parts])
    entries = yaml.safe_load("\n".join(str(caught.value).split("\n")[1:]))
    assert entries == {f"KIND-{n}": {"size": ["TODO", "TODO"]} for n in range(3)}
    sizes = {name: {"size": [1, 1]} for name in entries}
    assert len(lay_out(recipe(components=sizes), parts).sites) == 9


@pytest.mark.parametrize(("origin", "is_told"), [(0.0, False), (0.4, False), (-3.0, True)])
def test_fiducials_that_the_file_has_elsewhere_than_the_recipe_are_told(origin, is_told):
    known = recipe()
    marks = [BoardPart(name, x + origin, y, 0, Side.TOP) for name, (x, y) in known.fiducials.at.items()]
    assert bool(lay_out(known, [R1, *marks]).moved_marks) == is_told
    assert not lay_out(known, [R1, replace(marks[0], x_mm=5)]).moved_marks  # one may be a fuse


def test_a_change_of_recipe_or_placements_is_another_layout_and_it_must_fit_the_rules_of_a_board():
    same = lay_out(recipe(), (R1,)).digest
    assert lay_out(recipe(), (R1,)).digest == same
    assert lay_out(recipe(tolerance_um=50), (R1,)).digest != same
    assert lay_out(recipe(), (replace(R1, x_mm=11),)).digest != same
    lay_out(recipe(), (R1,)).check({"R0402": 1}, "b")
    with pytest.raises(ConfigError, match=r"r.yaml: 'R0402'.*'b'.*'R0403'"):
        lay_out(recipe(), (R1,)).check({"R0403": 1}, "b")


SIZES = {
    "R_0402_1005Metric": (1.0, 0.5),
    "Capacitor_SMD:C_0603_1608Metric_Pad1.08x0.95mm_HandSolder": (1.6, 0.8),
    "R0402": (1.0, 0.5),
    "LED0603-RD": (1.6, 0.8),
    "CAPC1608X55N": (1.6, 0.8),
    "CP_Elec_6.3x5.4": (6.6, 6.6),
    "SOIC-8_3.9x4.9mm_P1.27mm": (6.1, 4.9),
    "TSSOP-20_4.4x6.5mm_P0.65mm": (6.6, 6.5),
    "LQFP-48_7x7mm_P0.5mm": (9.2, 9.2),
    "QFN-32-1EP_5x5mm_P0.5mm_EP3.1x3.1mm": (5.0, 5.0),
    "Crystal_SMD_3225-4Pin_3.2x2.5mm": (3.2, 2.5),
    "SOIC127P600X175-8N": (6.0, 5.01),
    "QFP50P1200X1200X160-64N": (12.0, 12.0),
    "SOIC-8_L4.9-W3.9-P1.27-LS6.0-BL": (4.9, 6.0),
    "SMA_L4.3-W2.6-LS5.2-RD": (5.2, 2.6),
    "LQFP-48_L7.0-W7.0-P0.50-LS9.0-BL": (9.0, 9.0),
    "TO-252-2_L6.5-W6.1-P4.58-LS10.0-TL": (10.0, 6.5),
    "SOT-23-3_L2.9-W1.3-P1.90-LS2.4-BR": (2.9, 2.4),
    "TO-263-5_L10.2-W8.9-P1.70-TL": (15.9, 10.7),
    "CRYSTAL-SMD_4P-L3.2-W2.5-BL": (3.2, 2.5),
    "CAPC1608X87X35LL15T15": (1.6, 0.8),
    "SOT-23": (2.6, 3.0),
    "SOT23-5": (3.0, 3.1),
    "D_SOD-323_HandSoldering": (2.8, 1.5),
    "QFN16_3x3": (3.0, 3.0),
    "3x3": (3.0, 3.0),
    "DFN-8-2x3x0.9": (2.0, 3.0),
    "MSOP-10-3x3": (5.1, 3.0),
    "PinHeader_1x04_P2.54mm_Vertical": (2.54, 17.78),  # around its pin 1
    "PinSocket_2x14_P2.54mm": (7.62, 68.58),
    "HVSSOP-10-1EP_3x3mm_P0.5mm_EP1.57x1.88mm": (5.1, 3.0),
    "SC-74-6_1.5x2.9mm_P0.95mm": (3.0, 3.1),
    "6-0805_N": (2.0, 1.25),
}
# of KiCad's libraries: the place is a pin, or the numbers are no sides of the body
NO_SIZES = [
    "PinHeader_1x02_P2.54mm_Horizontal",
    "PinHeader_2x05_P1.27mm_Vertical_SMD",
    "PinSocket_1x06_P1.27mm_Vertical",
    "SIP-9_22.3x3mm_P2.54mm",
    "BatteryHolder_Keystone_103_1x20mm",
    "Fuseholder_Cylinder-5x20mm_EATON_H15-V-1_Vertical_Closed",
    "Transformer_Breve_TEZ-28x33",
    "Relay_1P1T_NO_10x24x18.8mm_Panasonic_ADW11xxxxW_THT",
    "Molex_Micro-Fit_3.0_43045-1210_2x06-1MP_P3.00mm_Horizontal",
]


def test_the_size_is_in_the_name():
    sizes = {package: size_of(package) for package in SIZES}
    assert {package: (size.width_mm, size.height_mm) for package, size in sizes.items()} == SIZES
    for without in ("", "JST_XH_1x04", "MountingHole_3.2mm_M3", "X1", "2x14", "HDR2x4", *NO_SIZES):
        assert size_of(without) is None


def test_a_library_of_the_user_comes_first(tmp_path):
    (path := tmp_path / "package_sizes.yaml").write_text(
        "sizes:\n  - {package: PinHeader_1x04*, size: [2.6, 10.2]}\n  - {package: SOT-23, size: [2, 2]}\n"
    )
    library = read_library(path)
    header, transistor = size_of("PinHeader_1x04_P2.54mm_Vertical", library), size_of("SOT-23", library)
    assert ((header.width_mm, header.height_mm), transistor.width_mm) == ((2.6, 10.2), 2.0)
