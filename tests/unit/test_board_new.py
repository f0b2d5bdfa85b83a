"""`coe-board new` from a placement file: files that load, TODO where a person decides, and nothing is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_line import Call

from coe.board import rules
from coe.cli import board_command
from coe.placement import lay_out, read_placements, read_recipe

ROWS = """\
Ref,Val,Package,PosX,PosY,Rot,Side
R1,10k,R_0402_1005Metric,5,5,0,top
R2,10k,R_0402_1005Metric,7,5,90,top
C1,100n,C_0603_1608Metric,9,5,90,top
U1,LM358,SOIC-8_3.9x4.9mm_P1.27mm,15,8,0,top
Q9,BC847,SOT-23,9,9,0,bottom
FID1,Fiducial,Fiducial_1mm_Mask2mm,2,2,0,top
FID2,Fiducial,Fiducial_1mm_Mask2mm,28,2,0,top
FID3,Fiducial,Fiducial_1mm_Mask2mm,2,18,0,top
H1,MountingHole,MountingHole_3.2mm_M3,27,17,0,top
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pnp.csv").write_text(ROWS, encoding="utf-8")
    return tmp_path


def new(call: Call, *more: object) -> int:
    words = ("new", "line7", "--placements", "pnp.csv", "--units", "mm", "--yes")
    return call(*words, *more, command=board_command).status


def test_what_it_writes_can_be_read(call: Call, folder: Path) -> None:
    assert new(call) == 0

    board, recipe = rules.load("line7"), read_recipe(folder / "line7" / "recipe.yaml")
    layout = lay_out(recipe, read_placements(folder / "pnp.csv", units="mm"))
    layout.check(board.components, board.board)
    assert {name: component.count for name, component in board.components.items()} == {
        "R0402-10k": 2,
        "C0603-100n": 1,
        "SOIC-8-LM358": 1,
    }
    assert recipe.components["SOIC-8-LM358"].size == (6.1, 4.9)
    assert (list(recipe.fiducials.at), recipe.fiducials.diameter) == (["FID1", "FID2", "FID3"], 1.0)
    assert [site.refdes for site in layout.sites] == ["R1", "R2", "C1", "U1"]


def test_nothing_is_replaced(call: Call, folder: Path) -> None:
    assert new(call) == 0
    (recipe := folder / "line7" / "recipe.yaml").write_text("mine", encoding="utf-8")
    (folder / "routing_rules" / "line7.yaml").unlink()

    assert new(call) == 2
    assert recipe.read_text(encoding="utf-8") == "mine"
    assert not (folder / "routing_rules" / "line7.yaml").exists()


def test_a_package_without_a_size_is_left_to_a_person_and_then_known(call: Call, folder: Path) -> None:
    with open(folder / "pnp.csv", "a", encoding="utf-8") as file:
        file.write("J1,Conn,PinHeader_1x04_P2.54mm_Vertical,20,12,0,top\n")
    assert new(call, "--to", "first") == 0
    assert "TODO: the size of PinHeader" in (folder / "first" / "line7" / "recipe.yaml").read_text(encoding="utf-8")

    (folder / "package_sizes.yaml").write_text("sizes:\n  - {package: PinHeader_1x04*, size: [2.6, 10.2]}\n")
    assert new(call) == 0
    assert read_recipe(folder / "line7" / "recipe.yaml").components["PinHeader-Conn"].size == (2.6, 10.2)


def test_a_name_that_is_none_and_a_board_without_marks_are_refused(call: Call, folder: Path) -> None:
    assert call("new", "../x", "--placements", "pnp.csv", command=board_command).status == 2
    (folder / "pnp.csv").write_text(ROWS.replace("FID2", "R7").replace("Fiducial_1mm_Mask2mm,28", "R_0402,28"))
    assert new(call) == 0  # two are left
    (folder / "pnp.csv").write_text("\n".join(ROWS.splitlines()[:5]) + "\n")
    assert new(call, "--to", "other") == 2
