"""Spreadsheets of old Excel (.xls) and LibreOffice (.ods): their tables, and what is hidden or struck out in them."""

import base64
import tracemalloc
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import openpyxl
import pytest

from coe.errors import ConfigError
from coe.placement import Side, read_bom, read_file
from coe.tables.spreadsheet_forms import of_ods, of_xls, of_xlsx

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
HEAD = ("Ref", "X (mm)", "Y (mm)", "Rot", "Side", "Value")


def cell(value: object, style: str = "") -> str:
    kind = "string" if isinstance(value, str) else "float"
    shown = str(value).replace(".", ",").replace("  ", ' <text:s text:c="1"/>')
    comment = "<office:annotation><text:p>a note</text:p></office:annotation>"
    named = f' table:style-name="{style}"' if style else ""
    return (
        f'<table:table-cell office:value-type="{kind}" office:value="{value}"{named}>{comment}'
        f"<text:p>{shown}</text:p></table:table-cell>"
    )


def row(*values: object, said: str = "", style: str = "") -> str:
    return f"<table:table-row {said}>{''.join(cell(value, style) for value in values)}</table:table-row>"


def ods(path: Path, *rows: str) -> Path:
    line = '<style:text-properties style:text-line-through-style="solid"/>'
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        file.writestr(
            "content.xml",
            f"<office:document-content {XMLNS}><office:automatic-styles>"
            f'<style:style style:name="out">{line}</style:style></office:automatic-styles><office:body>'
            f'<office:spreadsheet><table:table table:name="parts">{"".join(rows)}</table:table></office:spreadsheet>'
            "</office:body></office:document-content>",
        )
    return path


def test_an_xls_is_read_with_what_is_hidden_and_struck_out(tmp_path: Path) -> None:
    (path := tmp_path / "a.xls").write_bytes(zlib.decompress(base64.b85decode(XLS)))
    for read in (read_file, read_bom):
        with pytest.raises(ConfigError, match=r"a\.xls:4: .* struck out"):
            read(path)
    (sheet,) = of_xls(path.read_bytes())
    assert [sheet.cells[at] for at in ((2, 2), (3, 6), (10_000, 256))] == ["12.7", "0.1", "note"]
    assert (sheet.hidden_rows, sheet.hidden_columns, sheet.struck_rows) == ({3}, {6}, {4})


def test_an_ods_is_read_with_its_digits_and_what_is_hidden(tmp_path: Path) -> None:
    far = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell/></table:table-row>'
    columns = '<table:table-column/><table:table-column table:visibility="collapse"/>'
    hidden = row("U2", 30, 4, 315, "bottom", "E  2", said='table:visibility="filter"')
    path = ods(tmp_path / "a.ods", columns, row(*HEAD), row("R1", 12.7, -3.5, 90, "top", 10), hidden, far)
    file = read_file(path)
    assert [(place.refdes, place.x_mm, place.side, place.value) for place in file.placements] == [
        ("R1", 12.7, Side.TOP, "10"),
        ("U2", 30.0, Side.BOTTOM, "E 2"),
    ]
    assert [("(3)" in note, "(B)" in note) for note in file.notes] == [(True, False), (False, True)]
    with pytest.raises(ConfigError, match=r"a\.ods:3: .* struck out"):
        read_file(ods(path, row(*HEAD), row("R1", 1, 2, 0, "top", ""), row("R2", 1, 2, 0, "top", "", style="out")))


def test_an_ods_is_read_row_by_row(tmp_path: Path) -> None:
    empty = f"<table:table-row>{'<table:table-cell/>' * 1000}</table:table-row>" * 50
    further = '</table:table><table:table table:name="more"><table:table-column table:visibility="collapse"/>'
    path = ods(tmp_path / "a.ods", row(*HEAD), empty, row("R1"), further, row("R2"))
    raw = path.read_bytes()
    tracemalloc.start()
    one, other = of_ods(path, raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(raw)
    assert (one.title, one.cells[52, 1], one.hidden_columns) == ("parts", "R1", set())
    assert (other.title, other.cells, other.hidden_columns) == ("more", {(1, 1): "R2"}, {1})


OLE = b"\xd0\xcf\x11\xe0"
MANY = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell table:number-columns-repeated="16000">'


@pytest.mark.parametrize(
    "raw",
    [
        *(OLE + bytes(600), OLE + "Workbook".encode("utf-16-le") + bytes(600)),
        b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.oasis.opendocument.spreadsheetPK\x03\x04",
        f"{MANY}<text:p>a</text:p></table:table-cell></table:table-row>",
        "<table:table-row>",
    ],
)
def test_a_spreadsheet_that_cannot_be_read_is_one_sentence(raw: bytes | str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    if isinstance(raw, bytes):
        path.write_bytes(raw)
    else:
        ods(path, row(*HEAD), raw)
    for read in (read_file, read_bom):
        with pytest.raises(ConfigError, match=r"a: .*(as CSV|again)"):
            read(path)


def test_a_spreadsheet_behind_a_password_says_so(tmp_path: Path) -> None:
    paths = [tmp_path / "a.xlsx", ods(tmp_path / "a.ods")]
    paths[0].write_bytes(OLE + "EncryptedPackage".encode("utf-16-le") + bytes(600))
    with zipfile.ZipFile(paths[1], "a") as file:
        file.writestr("META-INF/manifest.xml", "<manifest:encryption-data/>")
    for path in paths:
        with pytest.raises(ConfigError, match="password"):
            read_file(path)


def test_a_row_that_repeats_a_name_is_no_part(tmp_path: Path) -> None:
    names = ("Qty", "Designator", "Comment")
    parts = read_bom(ods(tmp_path / "a.ods", row(*names), row("Quantity", *names[1:]), row(2, "R1, R2", "10k")))
    assert [*parts] == ["R1", "R2"]


@pytest.mark.parametrize(("known", "unknown"), [(' xfId="0"', ' xfId="0" xxid="0"'), ("<fill>", "<fill /><fill>")])
def test_a_sheet_whose_formats_cannot_be_read_is_read_and_told(tmp_path: Path, known: str, unknown: str) -> None:
    book, raw = openpyxl.Workbook(), BytesIO()
    for one in (HEAD, ("R1", 1, 2, 0, "top", "10k")):
        book.worksheets[0].append(one)
    book.save(raw)
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as new:
        for part in old.infolist():
            xml = old.read(part).decode()
            new.writestr(part, xml.replace(known, unknown) if "styles" in part.filename else xml)
    file = read_file(tmp_path / "a.xlsx")
    assert [place.refdes for place in file.placements] == ["R1"]
    assert any("formats" in note for note in file.notes)


def test_formats_of_empty_cells_are_not_held_in_memory(tmp_path: Path) -> None:
    book, raw = openpyxl.Workbook(), BytesIO()
    for one in (HEAD, ("R1", 1, 2, 0, "top", "10k")):
        book.worksheets[0].append(one)
    book.save(raw)
    cells = 1000 * '<c r="A7" s="0"></c>'
    empty = f'<row r="7">{cells}</row>' * 400
    last = '<row r="8" hidden="1"><c r="A8" t="inlineStr"><is><t>a note</t></is></c></row>'
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            xml = old.read(part).decode()
            new.writestr(part, xml.replace("</sheetData>", f"{empty}{last}</sheetData>"))
    tracemalloc.start()
    try:
        (sheet,) = of_xlsx((tmp_path / "a.xlsx").read_bytes())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (sheet.cells[8, 1], sheet.hidden_rows, len(sheet.cells)) == ("a note", {8}, 13)
    assert peak < 2 * len(empty), "the XML was held whole, and copied"
