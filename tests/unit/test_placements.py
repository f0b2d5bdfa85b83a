"""Placement files of each dialect: what they say, and what is wrong with them in one sentence."""

import re
import tempfile
import zipfile
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.styles import Font
from placed import read_file, read_placements, written
from texts import texts
from thorough import THOROUGH

from coe.board.parts_list import Side
from coe.bring.parts import text_table
from coe.bring.parts.answers import AS_IT_IS, Answers
from coe.bring.parts.placements import Placement
from coe.errors import ConfigError

TOP, BOTTOM = Side.TOP, Side.BOTTOM


def places(path, units="mm", answers=AS_IT_IS):
    return [
        (p.refdes, round(p.x_mm, 4), round(p.y_mm, 4), p.rotation_deg, p.side, p.package, p.value)
        for p in read_placements(path, units, answers)
    ]


TWO = [("R1", 12.7, -3.5, 90.0, TOP, "R_0402", "10k"), ("U2", 30.0, 4.0, 315.0, BOTTOM, "SOIC-8", "24C64")]


@pytest.mark.parametrize(
    ("name", "encoding", "text"),
    [
        ("pnp.csv", "utf-8",
         'Ref,Val,Package,PosX,PosY,Rot,Side\n"R1","10k","R_0402",12.7,-3.5,90.0,top\n'
         '"U2","24C64","SOIC-8",30.0,4.0,-45.0,bottom\n'),
        ("board.pos", "utf-8",
         "### Footprint positions - created on 2026-11-01 ###\n## Unit = mm, Angle = deg.\n## Side : All\n"
         "# Ref     Val       Package     PosX       PosY       Rot  Side\n"
         "R1        10k       R_0402      12.7000    -3.5000   90.0  top\n"
         "U2        24C64     SOIC-8      30.0000     4.0000  315.0  bottom\n## End\n"),
        ("Pick Place for X.csv", "cp1252",
         "Altium Designer Pick and Place Locations\nUnits used: mm\n\n"
         '"Designator","Comment","Layer","Footprint","Center-X(mm)","Center-Y(mm)","Rotation","Description"\n'
         '"R1","10k","TopLayer","R_0402","12.7000","-3.5000","90","5 %, 1/16 W"\n'
         '"U2","24C64","BottomLayer","SOIC-8","30.0000","4.0000","315",""\n'),
        ("Pick Place for X.txt", "utf-8",
         "Units used: mm\n\n"
         "Designator Comment Layer       Footprint Center-X(mm) Center-Y(mm) Rotation Description\n"
         'R1         10k     TopLayer    R_0402    12.7000      -3.5000      90       "thick film, 5 %"\n'
         'U2         24C64   BottomLayer SOIC-8    30.0000      4.0000       315      ""\n'),
        ("PickAndPlace.csv", "utf-16",
         "Designator\tFootprint\tMid X\tMid Y\tRef X\tRef Y\tPad X\tPad Y\tLayer\tRotation\tComment\n"
         "R1\tR_0402\t12.7mm\t-3.5mm\t12mm\t-3mm\t12mm\t-3mm\tT\t90\t10k\n"
         "U2\tSOIC-8\t30mm\t4mm\t30mm\t4mm\t30mm\t4mm\tB\t315\t24C64\n"),
        ("any.csv", "utf-8-sig",
         "refdes;x;y;rotation;side;package;value\nR1;12.7;-3.5;90;top;R_0402;10k\nU2;30;4;-45;BOTTOM;SOIC-8;24C64\n"),
    ],
)  # fmt: skip
def test_each_program_says_the_same(tmp_path, name, encoding, text):
    (tmp_path / name).write_text(text, encoding=encoding)
    assert places(tmp_path / name) == TWO


def test_the_file_of_eagle_has_no_header_and_its_name_tells_the_side(tmp_path):
    text = "R1 12.70 -3.50  90 10k R_0402\nC1  5.00  5.00 180 10\xb5F C_0603\n"
    (tmp_path / "board.mnt").write_bytes(text.encode("cp1252"))
    assert places(tmp_path / "board.mnt") == [TWO[0], ("C1", 5.0, 5.0, 180.0, TOP, "C_0603", "10\xb5F")]
    for values in ("", "100 nF"):
        (tmp_path / "odd.mnt").write_text(f"C1 5 5 180 {values} C_0603\n")
        assert places(tmp_path / "odd.mnt")[0][5:] == ("C_0603", values)
    (tmp_path / "board.mnb").write_text("R1 12.70 -3.50 90 10k R_0402\n")
    assert places(tmp_path / "board.mnb")[0][4] is BOTTOM
    (tmp_path / "board.txt").write_text("R1 12.70 -3.50 90 10k R_0402\n")
    with pytest.raises(ConfigError, match=r"\.mnt \(top\), \.mnb \(bottom\)"):
        places(tmp_path / "board.txt", answers=Answers(order=("refdes", "x", "y", "rotation", "value", "package")))


def test_x_and_y_are_of_one_point_and_a_side_is_not_read_past(tmp_path):
    odd = written(tmp_path / "odd.csv", "Ref,Mid X,Ref X,Ref Y,Rot,Side\nR1,12.7,1,2,90,top\n")
    file = read_file(odd, units="mm")
    assert (file.columns["x"], file.placements[0].x_mm, file.unused) == ("Ref X", 1.0, ("Mid X",))
    text = "Ref,X(mm),Y(mm),Rot,Which side\nR1,12.7,-3.5,90,bottom\n"
    file = read_file(written(tmp_path / "board.csv", text))
    assert (file.columns["side"], file.placements[0].side, file.unused) == ("Which side", BOTTOM, ())
    for name, said in (("board-top.csv", text), ("b-top.csv", text.replace("bottom", "solder"))):
        with pytest.raises(ConfigError, match="Which side"):
            read_file(written(tmp_path / name, said))


@pytest.mark.parametrize("order", ["Ref,Y,X,Rot,Side", "Ref,X,Y,Side,Rot", "REF,Y,X,Rotation,Layer"])
def test_a_second_table_in_another_order_of_columns_is_refused(tmp_path, order):
    text = "Ref,X,Y,Rot,Side\nR1,12.7,-3.5,90,top\n\n{}\nU2,4,30,90,bottom\n"
    with pytest.raises(ConfigError, match=r"a\.csv:4"):
        read_file(written(tmp_path / "a.csv", text.format(order)), units="mm")
    for same in ("Ref,X,Y,Rot,Side", "REF,X,Y,Rotation,Layer"):
        assert len(read_file(written(tmp_path / "a.csv", text.format(same)), units="mm").placements) == 2


def test_a_spreadsheet_with_parts_on_several_sheets_is_refused_by_their_names(tmp_path):
    book = openpyxl.Workbook()
    for title in ("top", "bottom", "empty"):
        sheet = book.create_sheet(title)
        for row in (["Ref", "X (mm)", "Y (mm)", "Rot", "Side"], ["R1", 1, 2, 0, title]) if title != "empty" else ():
            sheet.append(row)
    book.save(tmp_path / "a.xlsx")
    for wrong in ("a.xlsx", "a.xlsx#empty"):
        with pytest.raises(ConfigError, match=r"'top', 'bottom'.*a\.xlsx#top"):
            read_file(tmp_path / wrong)
    assert [place.side for place in read_file(tmp_path / "a.xlsx#Bottom").placements] == [BOTTOM]
    sideless = openpyxl.load_workbook(tmp_path / "a.xlsx")
    sideless["bottom"].delete_cols(5)
    sideless.save(tmp_path / "b.xlsx")
    assert [place.side for place in read_file(tmp_path / "b.xlsx#Bottom").placements] == [BOTTOM]
    (tmp_path / "a.xlsx#bottom").write_text("Ref,X (mm),Y (mm),Rot,Side\nR1,1,2,0,top\n")  # a file of this name
    assert [place.side for place in read_file(tmp_path / "a.xlsx#bottom").placements] == [TOP]
    for row in (2, 1):  # of names above no part, as in a form, and of notes
        book["bottom"].delete_rows(row)
        book["bottom"].insert_rows(1)
        book["bottom"]["A1"] = "a note"
        book.save(tmp_path / f"{row}.xlsx")
        file = read_file(tmp_path / f"{row}.xlsx")
        assert [place.side for place in file.placements] == [TOP]
        assert "'bottom'" in file.notes[0]


def test_what_is_hidden_or_struck_out_in_a_spreadsheet_is_told(tmp_path):
    table = [["Ref", "X (mm)", "Y (mm)", "Rot", "Side", "Note"], *([f"R{n}", 1, 2, 0, "top", ""] for n in (1, 2))]
    path = written(tmp_path / "a.xlsx", table)
    assert read_file(path).notes == ()
    book = openpyxl.load_workbook(path)
    book.active.row_dimensions[3].hidden = True
    book.copy_worksheet(book.active).sheet_state = "hidden"
    book.active["A3"].font = Font(strike=True)
    book.save(path)
    file = read_file(path)
    assert [place.refdes for place in file.placements] == ["R1", "R2"]
    assert [("'Sheet Copy'" in note, "hidden" in note, "struck" in note) for note in file.notes] == [
        (True, False, False),
        (False, True, True),
    ]
    del book["Sheet Copy"]
    book.create_sheet("front")
    book["Sheet"].sheet_state = "hidden"
    book.save(path)
    assert "'Sheet' is hidden" in read_file(path).notes[0]


def test_a_sheet_that_is_strict_says_it_is_smaller_or_is_formatted_beyond_its_parts_is_read_whole(tmp_path):
    path = written(tmp_path / "a.xlsx", [["Ref", "X (mm)", "Y (mm)", "Rot", "Side"], ["R1", 1, 2, 0, "top"]])
    with zipfile.ZipFile(path) as book, zipfile.ZipFile(tmp_path / "b.xlsx", "w") as other:
        for name in book.namelist():
            text = re.sub(rb'(<dimension ref=)"[^"]*"', rb'\1"A1:E1"', book.read(name))
            text = re.sub(rb"http://schemas.openxmlformats.org/(\w+)/2006", rb"http://purl.oclc.org/ooxml/\1", text)
            other.writestr(name, text.replace(b"</sheetData>", b'<row r="9"><c r="ZZ9" s="0"/></row></sheetData>'))
    assert [place.refdes for place in read_file(tmp_path / "b.xlsx").placements] == ["R1"]


def test_formulas_without_a_result_are_told_and_a_value_far_off_is_one_column(tmp_path):
    table = [["Ref", "X (mm)", "Y (mm)", "Rot", "Side", "Value"], ["R1", 1, 2, 0, "top", '=A2&"k"']]
    path = written(tmp_path / "a.xlsx", table)
    book = openpyxl.load_workbook(path)
    book.active["XFD1"] = "a note"
    book.save(path)
    assert [("formulas" in note) for note in read_file(path).notes] == [True]
    assert len(text_table.lines_of(path, path.read_bytes(), "", lambda lines: True).lines[0].text) < 100
    book.active["B2"] = "=1+1"
    book.save(path)
    with pytest.raises(ConfigError, match=r"a\.xlsx:2: .* x"):
        read_file(path)


def test_names_of_boards_and_channels_are_no_ranges(tmp_path):
    names = ["UNIT1-T2", "S&H1", "R1-2", "J1-J1", "Board_1-R2"]
    text = "".join(f"{name},1,2,0,top\n" for name in names)
    read = read_file(written(tmp_path / "a.csv", f"Ref,X (mm),Y (mm),Rot,Side\n{text}"))
    assert [place.refdes for place in read.placements] == names


def test_a_file_tells_what_was_read_and_what_was_not(tmp_path):
    file = read_file(
        written(tmp_path / "a.csv", "Ref,PosX (mil),PosY (mil),Rot,Side,SMD,Height\nR1,1000,0,0,top,yes,1\n")
    )
    assert (file.units, file.unused, file.placements[0].x_mm) == ("mil", ("SMD", "Height"), 25.4)
    assert "PosX (mil)" in file.stated
    assert file.columns["x"] == "PosX (mil)"


@pytest.mark.parametrize(
    "text",
    [
        "Ref,PosX,PosY,Rot,Side\nR1,1,2,0,top\n",  # no unit
        "Ref,X(0.01mm),Y(0.01mm),Rot,Side\nR1,1,2,0,top\n",  # hundredths
        "Units: 0.1 mil\nRef,X,Y,Rot,Side\nR1,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rotation (rad),Side\nR1,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rotation (CW),Side\nR1,1,2,0,top\n",
        "Ref,PosX(mm),PosY(mil),Rot,Side\nR1,1,2,0,top\n",  # two units
        "Ref;PosX;PosY;Rot;Side\nR1;1,250;2,500mil;0;top\n",  # thousands, or decimals
        "Ref,Side,Val,PosX(mm),PosY(mm),Rot\nR1,top,100,5,12.7,3.5,90\n",  # a comma in a value moves the numbers
        "Ref,Side,Val,PosX(mm),PosY(mm),Rot,Note\nR1,top,4,7,12.7,3.5,90,\nR2,top,1,1,2,0,\n",  # the same, no note
        'Ref,PosX(mm),PosY(mm),Rot,Side,Val\nR1,1,2,0,top,"x\nR2,1,2,0,top,4,7\n',  # a quote that hides a row
        "# Ref  Val  Package  PosX(mm)  PosY(mm)  Rot  Side\nR1  10k  402  1.2  3.4  top\n",  # no angle
        "Ref Side Val Center-X(mm) Center-Y(mm) Rot Package Note\n"
        + "R1  top      66.0071      11.0601      0   0402    5 %\n",  # no value, a note of two words
        "Units: measured in cm\nRef,PosX,PosY,Rot,Side\nR1,1,2,0,top\n",
        "Val X(mm) Y(mm) Rot Ref Side\n10 k 1 2 0 R1 top\n",
        "X(mm) Y(mm) Rot Ref Side\nR1 1 2 0 R1 top\n",  # spaces, numbers first
        "Ref,PosX(mm),PosY(mm),Rot\nR1,1,2,0\n",  # no side
        "Ref,X(mm),Y(mm),Rot,Side\n10-Mar,1,2,0,top\n",  # what a spreadsheet makes of MAR10
        "Ref,X(mm),Y(mm),Rot,Side\n2026-03-10 00:00:00,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\n3/10/2026,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\nR1-R4,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\nR4 to R1,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\nR1 & R2,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\n1.00E+05,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\n//R1,1,2,0,top\n",
        'Ref,X(mm),Y(mm),Rot,Side\n"R1,R2",1,2,0,top\n',
        "Pos,Bauteil,X(mm),Y(mm),Rot,Side\nR1,RES,1,2,0,top\nR2,RES,1,2,0,top\n",  # which column names the parts?
        "Ref,X(mm),Y(mm),Rot,Side,DNP\nR1,1,2,0,top,perhaps\n",
        "Ref,X(mm),Y(mm),Rot,Side,DNP\nR1,1,2,0,top,yes\n",  # no part is left
        "Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,0,-1\n",  # 1 is the top side
        "Ref,X(mm),Y(mm),Rot (0.1 deg),Side\nR1,1,2,90,top\n",
        "Angles: clockwise\nRef,X(mm),Y(mm),Rot,Side\nR1,1,2,90,top\n",
        "All dimensions in mil\nRef,X(mm),Y(mm),Rot,Side\nR1,1,2,90,top\n",
        "Unit,mil\nRef,X(mm),Y(mm),Rot,Side\nR1,1,2,90,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,90,top\n" + "R2,1,2,90,top\n" * 500 + "R3,1,2,9" + "\0" * 70,  # a lost block
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><openpnp-board/>',
        '<?xml version="1.0"?><openpnp-board><placements/></openpnp-board>',
    ],
)
def test_what_a_file_does_not_say_is_not_guessed(tmp_path, text):
    with pytest.raises(ConfigError, match=r"a\.csv"):
        read_file(written(tmp_path / "a.csv", text))


GENERIC = "refdes,x,y,rotation,side\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty"),
        (b"\x89PNG\xff\x00", "not text"),
        (bytes(range(1, 256)), "not text"),
        (GENERIC, "no part"),
        ("Ref,PosX\nR1,1\n", "header"),
        (GENERIC + "R1,nan,2,0,top\n", ":2: R1: x is 'nan', .*12.5"),
        (GENERIC + "R1,1,inf,0,top\n", "R1: y is 'inf'"),
        (GENERIC + "R1,1e999,2,0,top\n", "R1: x is '1e999'"),
        (GENERIC + 'R1,"1,5",2.0,0,top\n', "R1: x is '1,5'"),
        (GENERIC + "R1,1_0,2,0,top\n", "R1: x is '1_0'"),
        (GENERIC + "R1,1,2,0,left\n", "'left'.*top, "),
        (GENERIC + "R1,1,2,0rad,top\n", "'0rad'"),
        (GENERIC + "R1,1,2,0\n", ":2: .*side"),
        (GENERIC + "R1,1,2,0,\nR2,1,2,0,top\nR3,1,2,0,\n", r":2: .*side.*line 4"),
        (GENERIC + "R1,1mil,2,0,top\n", "'mil'.* mm "),
        (GENERIC + "R1,1,2,0,top,more\n", ":2: .*5 cells"),
        (GENERIC.replace(",", " ") + "R1 1 2 0\n", ":2: .*5 cells"),
        ("x,refdes,x,y,rotation,side\n1,R1,1,2,0,top\n", ":1: .*'x'.*twice"),
        (GENERIC + "R1,99999,2,0,top\n", "R1: x .*units"),
        ("units: mil\n" + GENERIC + "R1,1,2,0,top\n", ":1: .*'mil'"),
        ("refdes,x(mil),y(mil),rotation,side\nR1,1,2,0,top\n", ":1: .*'mil'"),
        (GENERIC + "R1," + "9" * 200_000 + ",2,0,top\n", ":2: .*200,011"),
    ],
    ids=lambda value: value[-60:],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, text, complaint):
    with pytest.raises(ConfigError, match=f"pnp.csv.*{complaint}") as caught:
        read_placements(written(tmp_path / "pnp.csv", text), "mm")
    assert "\n" not in str(caught.value)
    for path, unit in ((tmp_path / "none.csv", "mm"), (tmp_path / "pnp.csv", "cm")):
        with pytest.raises(ConfigError, match=r"No such file|unit: .*'mil'"):
            read_placements(path, unit)


WORDS = st.sampled_from(
    ["refdes", "x", "y", "rotation", "side", "Ref", "PosX", "Designator", "Layer", "R1", "1.5", "nan", "top", "T", "90",
     "# ", '"', "\ufeff", "\x00", "units: mm", "(mil)", "-1e308"]
)  # fmt: skip


@settings(max_examples=40 * THOROUGH)
@given(
    rows=st.lists(st.lists(WORDS | texts(5), max_size=8), max_size=5),
    separator=st.sampled_from([",", ";", "\t", " "]),
    encoding=st.sampled_from(["utf-8", "utf-16", "cp1252"]),
    order=st.sampled_from([(), ("refdes", "x", "y", "rotation")]),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(rows, separator, encoding, order):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pnp.mnt")
        text = "\n".join(separator.join(row) for row in rows)
        path.write_bytes(text.encode(encoding, "replace"))
        refusal = ""
        try:
            assert read_placements(path, "mm", Answers(order=order))
        except ConfigError as error:
            refusal = str(error)
    assert len(refusal) < 2000


@given(
    x=st.floats(-390, 390),
    y=st.floats(-390, 390),
    angle=st.floats(-720, 720),
    units=st.sampled_from([("mm", 1.0), ("mil", 0.0254), ("inch", 25.4)]),
)
def test_units_only_scale(x, y, angle, units):
    name, mm = units
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pnp.csv")
        path.write_text(GENERIC + f"R1,{x!r},{y!r},{angle!r},top\n")
        (place,) = read_placements(path, name, Answers(angles="degrees"))
    assert place == Placement("R1", x * mm, y * mm, angle % 360.0, TOP, line=2)
