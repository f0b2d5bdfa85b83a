"""Spreadsheets of old Excel (.xls) and LibreOffice (.ods): their tables, and what is hidden or struck out in them."""

import base64
import tracemalloc
import zipfile
import zlib
from datetime import datetime
from io import BytesIO

import openpyxl
import pytest
from placed import read_file

from coe.board.parts_list import Side
from coe.bring.parts import sheet_reader
from coe.bring.parts.bom import read_bom
from coe.bring.parts.sheet_reader import sheets_of
from coe.errors import ConfigError

XLS = (
    "c-rk)O-NKx6#nk}aef?~A2rfI1|k19=BABJ1?4I+qp}EW%omtCBh$1<s4R08LDZ^fBe-c}wdscnYS$t#Y7r!X)-ni!f(Z3>?s@l3V<|XLlJUOboq"
    "Nu?_kQ=jd+y)7m($VNiMv&E_yyabW6=(vD9<P83AjcClyBQobyGh*wug0vfS&?cWa3fD3!jXkjQ1Qg+%cY!1m4qg1jFb^r>yuIVkh?@DP$koNDAB"
    "}Pbn(7S232ySeCK8%_SeR+|HiMEZeB;tT>G6L`UORHH*8o8qO<)<h{>z-m<3!6?iUZ@wqF)DQjX!raw9OFK74*s8MZ%FbRruyOpvs$-!BaQ^+Ur)"
    "s6#S+_n8Q?)lf&FF^ipOZ~nT{QedEfo1&HGy@ogeUz8bI7(m{GRMSlGLt<yj~-eDAU9~gN0)V+)_-@rerTwHltZjYe>zLG_VxE!CU77*c*>&1($z"
    "va+4L}}`?pZ(-gGvb9+DZYBw7ZjMk<}Pg7VPdO(wErlPTfF7b4k*FzZoXf)RSZ`CFe~?dk1I^sr}?4;DFz1vbm~fsOOBM(7OHH|ck^ILwC=v{L76"
    "s&mh)MrLSYd4XHm#CjFWa;i&dZD)m2c8_tHi=10a?Y1&rC+hO_deX-~?tM@_{vpvo`c(VeNcq&8!~|+627TO5fiX0TW^v=X#KVM}3bl2;V_EszHs"
    ";qNa7M^hXKok^2(lVw=~!~KM9$LG*g2L?mY%Z=vW%Q%l4YuP#4_y&Zb!!F2{!V3L@`q)eV4x5b`&Rs<abI+W*N@2T97xGD2=wmtmQGs6|=_7e#Pv"
    ">dxU*4mY)olS!3paV%C_sNiplo^jYTvA*h&j$T2R;`JD0ARY`+vpBfFFm}4kb%waia#8T#PolS8G$?K37!#znvhs#d{;lYCk4<0;t@UZS6`1;7Vf"
    "4(M~>U!=|-*pz~S@b@W{I}>rntoaO+qerUN;5cJ(EQl|Q@C7Wm37?jg%Ss;^$Z5k%l#NAc>dD$UgW>esw+nR+!89Z{l!B1`Ip=O0h-18oB"
)
"""A sheet whose third row and sixth column are hidden, and R3 struck out, with a note far away; of xlwt, packed."""
NAMES = ("office", "table", "text", "style")
XMLNS = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in NAMES)
MIMETYPE = "application/vnd.oasis.opendocument.spreadsheet"
MANIFEST = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
HEAD = ("Ref", "X (mm)", "Y (mm)", "Rot", "Side", "Value")


def cell(value, style=""):
    kind = "string" if isinstance(value, str) else "float"
    number = "" if isinstance(value, str) else f' office:value="{value}"'
    shown = str(value).replace(".", ",").replace("  ", ' <text:s text:c="1"/>')
    comment = "<office:annotation><text:p>a note</text:p></office:annotation>"
    named = f' table:style-name="{style}"' if style else ""
    return (
        f'<table:table-cell office:value-type="{kind}"{number}{named}>{comment}'
        f"<text:p>{shown}</text:p></table:table-cell>"
    )


def row(*values, said="", style=""):
    return f"<table:table-row {said}>{''.join(cell(value, style) for value in values)}</table:table-row>"


def ods(path, *rows):
    line = '<style:text-properties style:text-line-through-style="solid"/>'
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("mimetype", MIMETYPE)
        file.writestr(
            "content.xml",
            f"<office:document-content {XMLNS}><office:automatic-styles>"
            f'<style:style style:name="out">{line}</style:style></office:automatic-styles><office:body>'
            f'<office:spreadsheet><table:table table:name="parts">{"".join(rows)}</table:table></office:spreadsheet>'
            "</office:body></office:document-content>",
        )
        kind = f'm:full-path="/" m:media-type="{MIMETYPE}"'
        file.writestr("META-INF/manifest.xml", f'<m:manifest xmlns:m="{MANIFEST}"><m:file-entry {kind}/></m:manifest>')
    return path


def cells_of(sheet):
    """Return the texts of a sheet by row and the number of their column among those with one."""
    return {(row, at): text for row, cells in sheet.rows for at, text in enumerate(cells, 1) if text}


def test_an_xls_is_read_and_it_is_told_that_its_formats_are_not(tmp_path):
    (path := tmp_path / "a.xls").write_bytes(zlib.decompress(base64.b85decode(XLS)))
    file = read_file(path)
    assert any("struck out" in note for note in file.notes)
    (sheet,) = sheets_of(path.read_bytes())
    cells = cells_of(sheet)
    assert [cells[at] for at in ((2, 2), (3, 6), (10_000, 7))] == ["12.7", "0.1", "note"]


def test_an_ods_is_read_with_its_digits_and_what_is_hidden(tmp_path):
    far = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell/></table:table-row>'
    columns = '<table:table-column/><table:table-column table:visibility="collapse"/>'
    hidden = row("U2", 30, 4, 315, "bottom", "E  2", said='table:visibility="filter"')
    path = ods(tmp_path / "a.ods", columns, row(*HEAD), row("R1", 12.7, -3.5, 90, "top", 10), hidden, far)
    file = read_file(path)
    assert [(place.refdes, place.x_mm, place.side, place.value) for place in file.placements] == [
        ("R1", 12.7, Side.TOP, "10"),
        ("U2", 30.0, Side.BOTTOM, "E 2"),
    ]
    assert [("hidden" in note, "struck" in note) for note in file.notes] == [(True, True)]


def test_the_sheets_of_an_ods_are_read_each(tmp_path):
    empty = f"<table:table-row>{'<table:table-cell/>' * 1000}</table:table-row>" * 50
    further = '</table:table><table:table table:name="more">'
    one, other = sheets_of(ods(tmp_path / "a.ods", row(*HEAD), empty, row("R1"), further, row("R2")).read_bytes())
    assert (one.title, cells_of(one)[52, 1]) == ("parts", "R1")
    assert (other.title, other.rows) == ("more", [(1, ["R2"])])


OLE = b"\xd0\xcf\x11\xe0"
MANY = (
    '<table:table-row table:number-rows-repeated="1048000">'
    '<table:table-cell office:value-type="string" table:number-columns-repeated="16000">'
)


@pytest.mark.parametrize(
    "raw",
    [
        *(OLE + bytes(600), OLE + "Workbook".encode("utf-16-le") + bytes(600)),
        b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheetPK\x03\x04",
        f"{MANY}<text:p>a</text:p></table:table-cell></table:table-row>",
        "<table:table-row>",
    ],
)
def test_a_spreadsheet_that_cannot_be_read_is_one_sentence(raw, tmp_path):
    path = tmp_path / "a"
    if isinstance(raw, bytes):
        path.write_bytes(raw)
    else:
        ods(path, row(*HEAD), raw)
    for read in (read_file, read_bom):
        with pytest.raises(ConfigError, match=r"a: .*(as CSV|again)"):
            read(path)


def test_a_spreadsheet_behind_a_password_says_so(tmp_path):
    paths = [tmp_path / "a.xlsx", ods(tmp_path / "a.ods")]
    paths[0].write_bytes(OLE + "EncryptedPackage".encode("utf-16-le") + bytes(600))
    with zipfile.ZipFile(paths[1], "w") as file:
        file.writestr("mimetype", MIMETYPE)
        file.writestr("META-INF/manifest.xml", "<m:encryption-data/>")
    for path in paths:
        with pytest.raises(ConfigError, match="password"):
            read_file(path)


def test_a_row_that_repeats_a_name_is_no_part(tmp_path):
    names = ("Qty", "Designator", "Comment")
    parts = read_bom(ods(tmp_path / "a.ods", row(*names), row("Quantity", *names[1:]), row(2, "R1, R2", "10k")))
    assert [*parts] == ["R1", "R2"]


def book(path, rows, *, strings="", dimension=""):
    """Write an .xlsx whose one sheet holds a table of one part, and `rows` below it."""
    made, raw = openpyxl.Workbook(), BytesIO()
    for one in (HEAD, ("R1", 1, 2, 0, "top", "10k")):
        made.worksheets[0].append(one)
    made.save(raw)
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            xml = old.read(part).decode().replace("</sheetData>", f"{rows}</sheetData>")
            xml = xml.replace("</sst>", f"{strings}</sst>")
            new.writestr(part, xml.replace('<dimension ref="A1:F2"', f'<dimension ref="{dimension or "A1:F2"}"'))
    return path


def test_values_are_read_as_excel_shows_them(tmp_path):
    made = openpyxl.Workbook()
    shown = {
        "0603": "0603",  # a number that is kept as text
        1234567890123456: "1234567890123456",
        0.1 + 0.2: "0.3",
        True: "True",
        datetime(2024, 3, 10): "2024-03-10 00:00:00",
        datetime(2024, 3, 10, 5, 6): "2024-03-10 05:06:00",
        "two\n lines ": "two lines",
    }
    for value in shown:
        made.worksheets[0].append([value])
    made.worksheets[0]["C20"] = "merged"
    made.worksheets[0].merge_cells("C20:D21")
    made.create_sheet("none")
    made.create_sheet("out").sheet_state = "hidden"
    made["out"]["B3"] = 1
    made.save(tmp_path / "a.xlsx")
    sheet, none, out = sheets_of((tmp_path / "a.xlsx").read_bytes())
    assert [cells[0] for _, cells in sheet.rows[: len(shown)]] == [*shown.values()]
    assert sheet.rows[len(shown) :] == [(20, ["", "merged"])]
    assert (none.rows, out.rows, out.is_hidden) == ([], [(3, ["1"])], True)


def test_a_cell_that_is_merged_over_several_rows_says_the_same_of_each(tmp_path):
    made = openpyxl.Workbook()
    for one in (("Board A", "", ""), ("Designator", "Comment", "Footprint"), ("R1", "10k", "0402"), ("R2",), ("C1", 1)):
        made.worksheets[0].append(one)
    for cells in ("A1:C1", "B3:B4", "C3:C5"):
        made.worksheets[0].merge_cells(cells)
    made.save(tmp_path / "a.xlsx")
    parts = read_bom(tmp_path / "a.xlsx")
    assert [(part.value, part.package) for part in parts.values()] == [("10k", "0402"), ("10k", "0402"), ("1", "0402")]
    made = openpyxl.Workbook()  # a part, and what may be bought in its place
    for one in (("Designator", "Comment", "Order"), ("R1", "10k", "A-1"), ("", "10k 1%", "B-2"), ("C1", "1u", "")):
        made.worksheets[0].append(one)
    made.worksheets[0].merge_cells("A2:A3")
    made.save(tmp_path / "b.xlsx")
    assert {refdes: part.value for refdes, part in read_bom(tmp_path / "b.xlsx").items()} == {"R1": "10k", "C1": "1u"}


def test_signs_of_no_width_are_no_part_of_a_cell(tmp_path):
    made = openpyxl.Workbook()
    for one in (HEAD, ("R\u200b1", 1, 2, 0, "top", "10k\ufeff"), ("\u200b",)):
        made.worksheets[0].append(one)
    made.save(tmp_path / "a.xlsx")
    assert [(place.refdes, place.value) for place in read_file(tmp_path / "a.xlsx").placements] == [("R1", "10k")]


EMPTY = "".join(f'<row r="{row}" spans="1:6" ht="15" customHeight="1"/>' for row in range(3, 250_000))


def test_many_empty_rows_with_formats_cost_little(tmp_path):
    path = book(tmp_path / "a.xlsx", EMPTY)
    tracemalloc.start()
    file = read_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [place.refdes for place in file.placements] == ["R1"]
    assert peak < len(EMPTY) / 2


# What each takes if nobody bounds it: a table of 500 GB, and cells that share a text of 3 GB.
BOMBS = {
    "far": ('<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>', ""),
    "shared": (
        "".join(f'<row r="{row}"><c r="A{row}" t="s"><v>9</v></c></row>' for row in range(3, 100_000)),
        f"<si><t>{'a' * 32_000}</t></si>" * 9,
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_spreadsheet_that_is_made_to_fill_the_memory_is_one_sentence(name, tmp_path):
    rows, strings = BOMBS[name]
    path = book(tmp_path / "a.xlsx", rows, strings=strings)
    with pytest.raises(ConfigError, match=r"a\.xlsx: .*as CSV"):
        read_file(path)


@pytest.mark.parametrize("limit", ["MOST_UNPACKED", "MOST_CELLS", "MOST_SIGNS"])
def test_a_spreadsheet_with_more_than_real_ones_have_is_refused(limit, tmp_path, monkeypatch):
    raw = book(tmp_path / "a.xlsx", "").read_bytes()
    assert sheets_of(raw)
    monkeypatch.setattr(sheet_reader, limit, 11)
    with pytest.raises(ValueError, match=r"11|MiB"):
        sheets_of(raw)


def test_what_a_sheet_says_of_its_size_does_not_count(tmp_path):
    path = book(tmp_path / "a.xlsx", "", dimension="A1:XFD1048576")
    assert [place.refdes for place in read_file(path).placements] == ["R1"]
