"""Parts lists: what a pick-and-place file may look like, and what is wrong with it in one sentence."""

from pathlib import Path

import openpyxl
import pytest

from coe.board import parts_list
from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError

TWO = (PlacedPart("R0402", "R1"), PlacedPart("U-QFP32", "U1"))


@pytest.mark.parametrize(
    "text",
    [
        "refdes,component\nR1,R0402\nU1,U-QFP32\n",
        "Designator;X;Y;Comment\nR1;1,5;2;R0402\nU1;3;4;U-QFP32\n",
        '"Ref","Val","Package"\n"R1","R0402","x"\n"U1","U-QFP32","y"\n',
        "# made by a placer\nBoard 7\n\nRef   Val      PosX\nR1    R0402    1.0\n\nU1    U-QFP32  2.0\n",
        "### Module positions ###\n## Side : top\n# Ref  Val  Package\nR1 R0402 x\nU1 U-QFP32 y\n## End\n",
        "# ref and type of each part\nref,type\nR1,R0402\nU1,U-QFP32\n",
        "Value\tREFERENCE\r\nR0402\tR1\r\nU-QFP32\tU1\r\n",
        "\ufeffpart number, refdes\nR0402, R1\nU-QFP32, U1",
        "refdes,component,DNP\nR1,R0402,\nR9,,yes\nU1,U-QFP32,\n",
        "Ref. Des.;Part Number;Do-Not-Place?\nR1;R0402;\nR9;;yes\nU1;U-QFP32;no\n",
        "refdes,component,Fitted\nR1,R0402,1\nR9,C1,0\nU1,U-QFP32,yes\n",
    ],
)
def test_a_list_has_a_header_and_a_line_for_each_part(tmp_path: Path, text: str) -> None:
    (tmp_path / "parts.csv").write_text(text, encoding="utf-8", newline="")
    listed = parts_list.read(tmp_path / "parts.csv")
    assert (listed, listed.not_fitted) == (TWO, ("R9",) if "R9" in text else ())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252", "cp1250", "gb18030", "cp932", "cp949"])
def test_a_list_is_in_any_usual_encoding(tmp_path: Path, encoding: str) -> None:
    word = {"cp1250": "\u0159", "gb18030": "\u4f4d\u53f7", "cp932": "\u90e8\u54c1", "cp949": "\ubd80"}.get(
        encoding, "\u00b5"
    )
    (tmp_path / "parts.csv").write_bytes(f"{word} 7\nrefdes,component\nR1,R0402\nU1,U-QFP32\n".encode(encoding))
    assert parts_list.read(tmp_path / "parts.csv") == TWO


def test_a_spreadsheet_is_a_list_whose_notes_are_told(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in ("Parts of board 7", "Ref,Qty,Value", "R1,1,R0402", "U1,1,U-QFP32", "R9,0,R0402"):
        book.worksheets[0].append(row.split(","))
    book.worksheets[0].row_dimensions[3].hidden = True
    book.create_sheet("notes").append(["one"])
    book.save(tmp_path / "parts.xlsx")
    listed = parts_list.read(tmp_path / "parts.xlsx")
    assert (listed, listed.not_fitted) == (TWO, ("R9",))
    assert "hidden rows" in listed.notes[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("R1,R0402\n", "no line names a column of reference designators"),
        ("", "no line names a column of reference designators"),
        ("refdes,component\n", "parts.csv"),
        ("refdes,component\nR1,R0402\nR2\n", "parts.csv:3: this line lacks a reference designator or a component"),
        ("refdes,component\nR1,\n", "parts.csv:2: this line lacks"),
        ('refdes,component\n"R1, R2",R0402\n', "parts.csv:2: 'R1, R2' names several parts; give each part a line"),
        ("refdes,component\nR1," + 70_000 * "x", "parts.csv:2: a line of 70,003 characters; this is no parts list"),
        ("refdes,component\nR1,R0402\nR1,C1\n", "parts.csv:3: 'R1' stands in an earlier line already"),
        ("refdes,component\nR1,R0402\nR1,C1\nR2\nR1,C2\n", "parts.csv:3: 'R1'.*also line 5"),
        ("refdes,component,Fitted\nR1,R0402,yes\nR2,C1,maybe\nR3,C1,?\n", "parts.csv:3: 'maybe'.*also line 4"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "parts.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint):
        parts_list.read(tmp_path / "parts.csv")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parts.csv").write_bytes(b"refdes,component\nR1,\0\0\0\0\n")
    with pytest.raises(ConfigError, match="is not a text"):
        parts_list.read(tmp_path / "parts.csv")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        parts_list.read(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        parts_list.read(tmp_path)


def test_components_that_the_board_lacks_are_named_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parts_list.check((*TWO, PlacedPart("U-QFP32", "U2")), {"R0402": 1, "U-QFP33": 1}, "b")
    assert str(caught.value) == (
        "the parts list names 1 component(s) that board 'b' does not have: 'U-QFP32'; did you mean 'U-QFP33'?; correct "
        "the list, or add them to the board's rules"
    )
    with pytest.raises(ConfigError, match="a reference designator twice"):
        parts_list.check((*TWO, TWO[0]), {"R0402": 1, "U-QFP32": 1}, "b")
    parts_list.check(TWO, {"R0402": 1, "U-QFP32": 1}, "b")
