"""Placement files of each dialect: what they say, and what is wrong with them in one sentence."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import texts
from thorough import THOROUGH

from coe import plugins
from coe.errors import ConfigError
from coe.placement import Placement, Side, read_placements

TOP, BOTTOM = Side.TOP, Side.BOTTOM


def places(path: Path, dialect: str, units: str = "mm") -> list[tuple[object, ...]]:
    return [
        (p.refdes, round(p.x_mm, 4), round(p.y_mm, 4), p.rotation_deg, p.side, p.package, p.value)
        for p in read_placements(path, dialect, units)
    ]


TWO = [("R1", 12.7, -3.5, 90.0, TOP, "R_0402", "10k"), ("U2", 30.0, 4.0, 315.0, BOTTOM, "SOIC-8", "24C64")]


@pytest.mark.parametrize(
    ("dialect", "name", "text", "encoding"),
    [
        (
            "kicad",
            "pnp.csv",
            'Ref,Val,Package,PosX,PosY,Rot,Side\n"R1","10k","R_0402",12.7,-3.5,90.0,top\n'
            '"U2","24C64","SOIC-8",30.0,4.0,-45.0,bottom\n',
            "utf-8",
        ),
        (
            "kicad",
            "board.pos",
            "### Footprint positions - created on 2026-11-01 ###\n## Unit = mm, Angle = deg.\n## Side : All\n"
            "# Ref     Val       Package     PosX       PosY       Rot  Side\n"
            "R1        10k       R_0402      12.7000    -3.5000   90.0  top\n"
            "U2        24C64     SOIC-8      30.0000     4.0000  315.0  bottom\n## End\n",
            "utf-8",
        ),
        (
            "altium",
            "Pick Place for X.csv",
            "Altium Designer Pick and Place Locations\nUnits used: mm\n\n"
            '"Designator","Comment","Layer","Footprint","Center-X(mm)","Center-Y(mm)","Rotation","Description"\n'
            '"R1","10k","TopLayer","R_0402","12.7000","-3.5000","90","5 %, 1/16 W"\n'
            '"U2","24C64","BottomLayer","SOIC-8","30.0000","4.0000","315",""\n',
            "cp1252",
        ),
        (
            "altium",
            "Pick Place for X.txt",
            "Units used: mm\n\n"
            "Designator Comment Layer       Footprint Center-X(mm) Center-Y(mm) Rotation Description\n"
            'R1         10k     TopLayer    R_0402    12.7000      -3.5000      90       "thick film, 5 %"\n'
            'U2         24C64   BottomLayer SOIC-8    30.0000      4.0000       315      ""\n',
            "utf-8",
        ),
        (
            "easyeda",
            "PickAndPlace.csv",
            "Designator\tFootprint\tMid X\tMid Y\tRef X\tRef Y\tPad X\tPad Y\tLayer\tRotation\tComment\n"
            "R1\tR_0402\t12.7mm\t-3.5mm\t12mm\t-3mm\t12mm\t-3mm\tT\t90\t10k\n"
            "U2\tSOIC-8\t30mm\t4mm\t30mm\t4mm\t30mm\t4mm\tB\t315\t24C64\n",
            "utf-16",
        ),
        (
            "generic",
            "any.csv",
            "refdes;x;y;rotation;side;package;value\nR1;12.7;-3.5;90;top;R_0402;10k\nU2;30;4;-45;BOTTOM;SOIC-8;24C64\n",
            "utf-8-sig",
        ),
    ],
)
def test_each_dialect_says_the_same(tmp_path: Path, dialect: str, name: str, text: str, encoding: str) -> None:
    (tmp_path / name).write_text(text, encoding=encoding)
    assert places(tmp_path / name, dialect) == TWO


def test_the_file_of_eagle_has_no_header_and_its_name_tells_the_side(tmp_path: Path) -> None:
    text = "R1 12.70 -3.50  90 10k R_0402\nC1  5.00  5.00 180 10\xb5F C_0603\n"
    (tmp_path / "board.mnt").write_bytes(text.encode("cp1252"))
    assert places(tmp_path / "board.mnt", "eagle") == [TWO[0], ("C1", 5.0, 5.0, 180.0, TOP, "C_0603", "10\xb5F")]
    for values in ("", "100 nF "):
        (tmp_path / "odd.mnt").write_text(f"C1 5 5 180 {values}C_0603\n")
        with pytest.raises(ConfigError, match=r"odd\.mnt:1: this line has [57] cells where 6 belong"):
            places(tmp_path / "odd.mnt", "eagle")
    (tmp_path / "board.mnb").write_text("R1 12.70 -3.50 90 10k R_0402\n")
    assert places(tmp_path / "board.mnb", "eagle")[0][4] is BOTTOM
    (tmp_path / "board.txt").write_text("R1 12.70 -3.50 90 10k R_0402\n")
    with pytest.raises(ConfigError, match=r"let it end with \.mnt \(top\) or \.mnb \(bottom\)"):
        places(tmp_path / "board.txt", "eagle")


GENERIC = "refdes,x,y,rotation,side\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the placement file is empty"),
        (GENERIC, "there is no part in the placement file"),
        ("Ref,PosX\nR1,1\n", "no line is the header of a generic placement file"),
        (GENERIC + "R1,nan,2,0,top\n", r"pnp.csv:2: R1: x is 'nan', which is not a number; write it as 12.5"),
        (GENERIC + "R1,1,inf,0,top\n", "R1: y is 'inf', which is not a number"),
        (GENERIC + "R1,1e999,2,0,top\n", "R1: x is '1e999', which is not a number"),
        (GENERIC + 'R1,"1,5",2,0,top\n', "R1: x is '1,5', which is not a number"),
        (GENERIC + "R1,1_0,2,0,top\n", "which is not a number"),
        (GENERIC + "R1,1,2,0,left\n", "'left' is not a side; known: top, bottom"),
        (GENERIC + "R1,1,2,0rad,top\n", "rotation '0rad' is not in degrees"),
        (GENERIC + "R1,1,2,0\n", "this line has no side"),
        (GENERIC + ",1,2,0,top\n", "this line has no refdes"),
        (GENERIC + "R1,1,2,0,top\nR1,3,4,0,bottom\n", "pnp.csv:3: 'R1' stands in line 2 already"),
        (GENERIC + "R1,1mil,2,0,top\n", "the file states 'mil' as its unit, and mm was asked for"),
        (GENERIC + "R1,1,2,0,top,more\n", "this line has 6 cells where 5 belong; put a cell with separators or spaces"),
        (GENERIC.replace(",", " ") + "R1 1 2 0\n", "this line has 4 cells where 5 belong"),
        ("x,refdes,x,y,rotation,side\n1,R1,1,2,0,top\n", "pnp.csv:1: the column 'x' is there twice; take one out"),
        (GENERIC + "R1,99999,2,0,top\n", "R1: x is 100 m away; are the units right"),
        ("units: mil\n" + GENERIC + "R1,1,2,0,top\n", "pnp.csv:1: the file states 'mil'"),
        ("refdes,x(mil),y(mil),rotation,side\nR1,1,2,0,top\n", "pnp.csv:1: the file states 'mil'"),
        (
            GENERIC + "R1," + "9" * 200_000 + ",2,0,top\n",
            "pnp.csv:2: a line of 200,011 characters; this is no placement file",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "pnp.csv").write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_placements(tmp_path / "pnp.csv", "generic", "mm")
    assert "\n" not in str(caught.value)


def test_dialects_and_units_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pnp.csv").write_text(GENERIC + "R1,1000,2,0,top\n")
    with pytest.raises(ConfigError, match="'kikad'; did you mean 'kicad'"):
        read_placements(tmp_path / "pnp.csv", "kikad", "mm")
    with pytest.raises(ConfigError, match="'cm' is not a unit of placement files; give mm, mil or inch"):
        read_placements(tmp_path / "pnp.csv", "generic", "cm")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_placements(tmp_path / "none.csv", "generic", "mm")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(ConfigError, match="is not a text"):
        read_placements(tmp_path / "picture.csv", "generic", "mm")


def test_a_user_brings_a_dialect_by_its_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_cad.py").write_text(
        "from coe.placement import Dialect, Side\n"
        "names = {'refdes': ('part',), 'x': ('right',), 'y': ('up',), 'rotation': ('turn',), 'side': ('face',)}\n"
        "OURS, WRONG = Dialect(names, sides={'front': Side.TOP}), 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "pnp.csv").write_text("Part;Right;Up;Turn;Face\nR1;1;2;90;front\n")
    assert places(tmp_path / "pnp.csv", "our_cad:OURS") == [("R1", 1.0, 2.0, 90.0, TOP, "", "")]
    for name in ("our_cad:WRONG", "our_cad:NONE", "our_cad"):
        with pytest.raises(ConfigError, match="our_cad"):
            read_placements(tmp_path / "pnp.csv", name, "mm")


WORDS = st.sampled_from(
    ["refdes", "x", "y", "rotation", "side", "Ref", "PosX", "Designator", "Layer", "R1", "1.5", "nan", "top", "T", "90",
     "# ", '"', "\ufeff", "\x00", "units: mm", "(mil)", "-1e308"]
)  # fmt: skip


@settings(max_examples=75 * THOROUGH)
@given(
    rows=st.lists(st.lists(WORDS | texts(5), max_size=8), max_size=5),
    separator=st.sampled_from([",", ";", "\t", " "]),
    encoding=st.sampled_from(["utf-8", "utf-16", "cp1252"]),
    dialect=st.sampled_from(plugins.names("coe.dialects")),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(
    rows: list[list[str]], separator: str, encoding: str, dialect: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pnp.mnt")
        text = "\n".join(separator.join(row) for row in rows)
        path.write_bytes(text.encode(encoding, "replace"))
        refusal = ""
        try:
            assert read_placements(path, dialect, "mm")
        except ConfigError as error:
            refusal = str(error)
    assert len(refusal) < 2000


@given(
    x=st.floats(-390, 390),
    y=st.floats(-390, 390),
    angle=st.floats(-720, 720),
    units=st.sampled_from([("mm", 1.0), ("mil", 0.0254), ("inch", 25.4)]),
)
def test_units_only_scale(x: float, y: float, angle: float, units: tuple[str, float]) -> None:
    name, mm = units
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pnp.csv")
        path.write_text(GENERIC + f"R1,{x!r},{y!r},{angle!r},top\n")
        (place,) = read_placements(path, "generic", name)
    assert place == Placement("R1", x * mm, y * mm, angle % 360.0, TOP, line=2)
