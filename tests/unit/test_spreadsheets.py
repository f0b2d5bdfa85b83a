"""Spreadsheets of old Excel (.xls) and LibreOffice (.ods): their tables, and what is hidden or struck out in them."""

from __future__ import annotations

import base64
import zipfile
import zlib
from pathlib import Path

import pytest

from coe.errors import ConfigError
from coe.placement import Side, read_bom, read_file

XLS = (
    "c-rk)O-NKx6#njg@9CRy)ER#w4P+29H8<v_jZOvTDlwz92x`m;%%72IS|n7Kxr!iaRkRV@w6WUsLj|>K5g4@yl0a)21VKTB`a1W#`=;?HaG<2("
    "eUE$IIp>~x&bhzu=jC){cH(a39G0O41{R$F^0IV-O28AspnAtqtarDmI6nR<1Z<kfJPVHsU*xMfRP#Lti96;qqQHA9hcS%y<WM5Ij@ZRH#D&VC"
    "nW(@`(iEYBvnpYFjA<#;+idxm=?>OhX4*`)v*Hk@W9{|Z^(yX`)m&Eu<@Y|fdCQtcl;gQt#pkXF*Ve+$R9}4HZ?3RcR#cfGOoAq~Eisfx#Rq0l"
    "Ml(B!uTB*B;%(ulQD48ldI8dZTdL3hh2CC8e@&XeD4e6bBgRpP22<5o7>=jXC+E>cDj-C~06G)LX*+jEYX=AGh&jlN(kIi@YF}S(!U7J&2Tmnu"
    "?RPd(O*%PD?EY<J-IGkGlY_LZT2*CJP@VmJR)m+F6@|QqLPUE}%zT7*Qke3ezxDamo}P}_5!Q_I^Fb|Afz7HPaByC=2%Vw!7F|~hiuoA>S;Usy"
    "HI7ox9=0;Qz)?0aU&*wL+S0wIqg*q)$Jpi~*Va(nCdTX7mMp%O`0<Z>A5@Khh}984)iyU$HuWYpfogin^>Us9V`vZ!;>LA_hcWLi^a=EiX~l}u"
    "$d+N9yQ3eS#aKX)*$7itQllj@lGJ18N(M<rMlwk<Gm=G;rQ?WI;s}nTM(znVaz7%NDOI{l-yJ7{6GHiSEtO|Aoo8i`50D6rw(D7Dd5&t&l0Dnn"
    "vpe4-tSe#q$@Dx+_8ibTOZFVpo{d#<HuzjG(4GzUoR{f`J2Hm0^m4YOO_If<*dj}CPZ`nq{}Vy@@ZrOU4<9~!_`tG%I_{g5`@U`IH|~7>UuS{J"
    "qW_!ZzeOjKbfxJ#vlT;hPvLY<>t_Qj;rSA4Y~%eeROq7UDfFX<^XSic{nB@s$nMXY8-{=17RojLVlH|9;rKrQEJ*AM"
)
"""A sheet whose third row and sixth column are hidden, and whose R3 is struck out, written by xlwt and packed."""
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


def test_a_row_that_repeats_a_name_is_no_part(tmp_path: Path) -> None:
    names = ("Qty", "Designator", "Comment")
    parts = read_bom(ods(tmp_path / "a.ods", row(*names), row("Quantity", *names[1:]), row(2, "R1, R2", "10k")))
    assert [*parts] == ["R1", "R2"]
