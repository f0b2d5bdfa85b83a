"""`parts.csv`: the form that runs read, and what is wrong with one in a sentence."""

from pathlib import Path

import pytest

from coe.board import parts_list
from coe.board.parts_list import BoardPart, PlacedPart, Side
from coe.errors import ConfigError

HEADER = "refdes,x_mm,y_mm,angle,side,component\n"
ROWS = 'R1,1.5,-2,-90,top,R0402\nFID1,0,0,0,bottom,\n"U,1",3,4,450,bottom,SO8\n'


def test_a_row_is_a_part_or_a_place_that_is_not_inspected():
    parts = parts_list.parse_places(Path("parts.csv"), f"# made of pnp.csv\n\n{HEADER}{ROWS}".encode("utf-8-sig"))
    assert parts == (
        BoardPart("R1", 1.5, -2, 270, Side.TOP, "R0402", 4),
        BoardPart("FID1", 0, 0, 0, Side.BOTTOM, "", 5),
        BoardPart("U,1", 3, 4, 90, Side.BOTTOM, "SO8", 6),
    )


def test_a_list_needs_no_places_and_has_what_is_inspected(tmp_path):
    (tmp_path / "parts.csv").write_text("component,refdes\nR0402,R1\n,FID1\n", encoding="utf-8")
    assert parts_list.read(tmp_path / "parts.csv") == (PlacedPart("R0402", "R1"),)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Ref,PosX,PosY,Rot,Side,Val\nR1,1,2,0,top,10k\n", "coe-board parts parts.csv"),
        (HEADER.replace("side", "layer") + ROWS, "coe-board parts parts.csv"),
        (HEADER.replace(",", ";"), "coe-board parts parts.csv"),
        (f"{HEADER[:-1]},component\nR1,1,2,0,top,A,B\n", "coe-board parts parts.csv"),
        ("", "coe-board parts parts.csv"),
        (HEADER, "parts.csv: there is no part"),
        (f"{HEADER}R1,1,2,0,top\n", "parts.csv:2: not 6 cells"),
        (f"{HEADER}R1,1,2,0,top,A\nR2,1,2,0,top,A,B\n", "parts.csv:3: not 6 cells"),
        (f"{HEADER},1,2,0,top,A\n", "parts.csv:2: .* no reference designator"),
        (f"{HEADER}R1,a,2,0,top,A\n", "parts.csv:2: R1: x_mm 'a'"),
        (f"{HEADER}R1,1,nan,0,top,A\n", "parts.csv:2: R1: .*'nan'"),
        (f"{HEADER}R1,1,2e5,0,top,A\n", "parts.csv:2: R1: .*10000 mm"),
        (f"{HEADER}R1,1,2,0,T,A\n", "parts.csv:2: R1: side 'T'"),
    ],
)
def test_another_form_is_named_with_the_command_that_makes_this_of_it(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parts_list.parse_places(Path("parts.csv"), text.encode())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("refdes,component\nR1,A\nR1,B\n", "parts.csv:3: 'R1' is already in line 2"),
        ("refdes,component\nR1,\n", "no line names a component"),
        ("designator,component\nR1,A\n", "coe-board parts --bom"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(tmp_path, text, complaint):
    (tmp_path / "parts.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint):
        parts_list.read(tmp_path / "parts.csv")
