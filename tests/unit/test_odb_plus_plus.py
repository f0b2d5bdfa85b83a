"""ODB++ in small: records as Altium, Allegro and KiCad write them, in the archives that they pack."""

import gzip
import re
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from placed import parse_bom, parse_file, read_file

from coe.board.parts_list import Side
from coe.bring.parts import cad_files
from coe.errors import ConfigError

TOP, BOTTOM, DATA = (
    f"odb/steps/pcb/{name}" for name in ("layers/comp_+_top/components", "layers/comp_+_bot/components", "eda/data")
)
PACKAGES = (
    "HDR Altium Designer file\nUNITS=MM\nNET A\nSNT TOP T 0 0\nFID C 0 1\nPKG R_0402 1 -0.5 -0.25 0.5 0.25;0=1;ID=7\n"
    "PIN 1 S -0.5 0 0 U S\nPIN 2 S 0.5 0 0 U S\n"
    "PKG HDR 2.54 -1 -1 3 1\nPIN 1 T 0 0 0 U T\nPIN 2 T 2 0 0 U T\n"
)
FILES = {
    "odb/misc/info": "JOB_NAME=odb\nUNITS=MM\n",
    DATA: PACKAGES,
    "odb/steps/panel/stephdr": "STEP-REPEAT {\n}\n",
    "odb/steps/panel/layers/comp_+_top/components": "CMP 0 1 1 0 N FID9 F\n",
    TOP: (
        "UNITS=MM\n@0 .comp_mount_type\n@1 .no_pop\n# CMP 0\nCMP 0 10 20 90.0 N R1 P-17 ;0=1;ID=3\nPRP PART 'x'\n"
        "PRP VALUE '4k7 5'' \nTOP 0 10 20.5 90.0 N 3 0 1\nTOP 1 10 19.5 90.0 N 4 0 2\n#\n"
        "CMP 1 30 20 90 N J1 ??? ;;ID=4\nTOP 0 30 20 90 N 3 0 1\nTOP 1 30 18 90 N 3 0 2\n"
        "CMP 0 50 20 0 N C8 10n ;0=1,1\n"
    ),
    BOTTOM: (
        "UNITS=MM\nCMP 1 10 40 90 N J2 CON-2\nTOP 0 10 40 90 N 3 0 1\nTOP 1 10 38 90 N 3 0 2\n"
        "CMP 1 30 40 0 N J3 CON-2\nTOP 0 30 40 0 N 3 0 1\nTOP 1 28 40 0 N 3 0 2\n"
    ),
}


def tgz(files, mode="w:gz"):
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, BytesIO(text.encode()))
    return packed.getvalue()


def zipped(files, how=zipfile.ZIP_DEFLATED):
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def told(file):
    return [
        (one.refdes, round(one.x_mm, 3), round(one.y_mm, 3), one.rotation_deg, one.side, one.value, one.package)
        for one in file.placements
    ]


def read(raw):
    return parse_file(Path("b.tgz"), raw)


INCH = {
    **FILES,
    "odb/misc/info": "JOB_NAME=odb\n",
    TOP: "CMP 0 0.4 0.8 270 N R1 10k\nTOP 0 0.4 0.78 270 N 1 1 1\nTOP 1 0.4 0.82 270 N 1 1 2\n",
    BOTTOM: "",
    DATA: "PKG R 0.04 -0.02 -0.01 0.02 0.01\nPIN 1 S -0.02 0\nPIN 2 S 0.02 0\n",
}
KICAD = {
    DATA: PACKAGES.replace("Altium Designer file", "KiCad EDA 9.0.3"),
    TOP: "UNITS=MM\nCMP 1 30 20 90.0 N J1 lib_HDR ;0=1\nPRP Value ''\n",
    BOTTOM: "UNITS=MM\nCMP 1 10 40 90.0 M J2 lib_HDR ;0=1\nPRP Value 'A'\n"
    "TOP 0 10 40 90.0 M 1 1\nTOP 1 10 38 90 M 1 1\n",
}


ON_WINDOWS = {f"a\\{name.upper()}".replace("/", "\\"): text for name, text in FILES.items()}


@pytest.mark.parametrize("raw", [tgz(FILES), tgz(FILES, "w"), zipped(FILES), zipped(ON_WINDOWS)])
def test_components_lie_at_the_middle_of_their_packages_and_turn_clockwise(raw):
    file = read(raw)
    assert told(file) == [
        ("R1", 10, 20, 270, Side.TOP, "4k7 5'", "R_0402"),
        ("J1", 30, 19, 270, Side.TOP, "", "HDR"),
        ("J2", 10, 39, 270, Side.BOTTOM, "CON-2", "HDR"),
        ("J3", 29, 40, 0, Side.BOTTOM, "CON-2", "HDR"),
    ]
    assert file.not_placed == ("C8",)
    assert "panel" in "".join(file.notes)
    assert "pins" not in "".join(file.notes)


def test_a_file_without_a_unit_is_in_inch_and_says_so():
    file = read(tgz(INCH))
    assert told(file) == [("R1", 10.16, 20.32, 90, Side.TOP, "10k", "R")]
    assert "inch" in "".join(file.notes)
    for unit in ("UNITS=MM", "U MM", "units = mm"):
        assert told(read(tgz({**INCH, "odb/misc/info": unit})))[0][1:3] == (0.4, 0.8)


def test_packages_of_kicad_are_mirrored_and_lie_at_their_origins():
    file = read(zipped(KICAD))
    assert told(file) == [("J1", 30, 20, 270, Side.TOP, "", "HDR"), ("J2", 10, 40, 270, Side.BOTTOM, "A", "HDR")]
    assert "pins" not in "".join(file.notes)


@pytest.mark.parametrize(
    ("files", "noted"),
    [
        ({**FILES, TOP: FILES[TOP].replace("TOP 1 30 18", "TOP 1 32 20")}, "pins .*J1"),
        ({**FILES, BOTTOM: FILES[BOTTOM].replace(" N J3", " M J3")}, "pins .*J3"),
        ({**FILES, DATA: ""}, "no package.*R1"),
        ({**FILES, TOP.replace("_top", "_flex"): "UNITS=MM\nCMP 0 1 1 0 N U7 X\n"}, "U7"),
    ],
)
def test_what_is_unproven_or_unread_is_noted(files, noted):
    assert re.search(noted, "".join(read(tgz(files)).notes))


@pytest.mark.parametrize(
    ("raw", "wrong"),
    [
        (tgz({**FILES, f"{TOP}.Z": "\x1f\x9d\x90\0\1\2" * 9}), "components.z.*compressed"),
        (tgz({**FILES, TOP: FILES[TOP].replace("10 20 90.0", "10 20? 90.0")}), "R1"),
        (tgz({**FILES, TOP: FILES[TOP].replace("UNITS=MM", "UNITS=FURLONG")}), "FURLONG"),
        (tgz({**FILES, TOP.replace("pcb", "edit"): FILES[TOP]}), "several boards.*pcb"),
        (tgz({DATA: PACKAGES}), "no components"),
        (tgz({"a/top.gbr": "x"}), "archive.*CSV"),
        (gzip.compress(b"Ref,X,Y\n", mtime=0), "archive"),
        (tgz(FILES)[:400], "archive"),
        (zipped(FILES)[:-60], "archive"),
        (zipped(FILES, zipfile.ZIP_LZMA).replace(b"]", b"\xff"), "archive"),
        (tgz(FILES, "w")[: 512 * 12], "archive"),
    ],
)
def test_an_archive_that_cannot_be_used_is_one_sentence(raw, wrong):
    with pytest.raises(ConfigError, match=wrong):
        read(raw)


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(cad_files, "MOST", 1 << 20)
    zeros = "\0" * (1 << 18)
    boards = {TOP.replace("pcb", str(number)): zeros for number in range(5)}
    header = tarfile.TarInfo("odb/steps/pcb/layers/top/features")
    header.size = 1 << 36
    for raw in (zipped(boards), tgz(boards), gzip.compress(header.tobuf()) + gzip.compress(zeros.encode()) * 5):
        with pytest.raises(ConfigError, match=r"b\.tgz: .*1,048,576"):
            read(raw)


def test_a_folder_is_named_with_the_way_out_and_an_archive_is_a_bom_too(tmp_path):
    (tmp_path / "steps").mkdir()
    with pytest.raises(ConfigError, match=r"\.zip"):
        read_file(tmp_path)
    bom = parse_bom(Path("b.tgz"), tgz(FILES))
    assert [(name, part.value, part.is_fitted) for name, part in bom.items()][::2] == [
        ("R1", "4k7 5'", True),
        ("C8", "10n", False),
        ("J3", "CON-2", True),
    ]
