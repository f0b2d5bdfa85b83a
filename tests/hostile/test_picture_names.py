"""A picture under another name than a picture's: what lies where one belongs keeps its board from being OK."""

import json
import os
import unicodedata

import pytest
from picture_folders import encoded, write
from PIL import Image

from coe.cli import inspect as inspect_cli
from coe.core import FailureKind
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.pictures.finding import find

COMPONENTS = {"C5", "R0402-1.5K", "U-QFP32"}
_NAMES = """
{}.png.part {}.png.filepart {}.png.tmp {}.PNG.TMP {}.png.crdownload {}.png~ {}.jpg.1 {}.png.bak {}.png.Xb12aQ {}.tmp
{}.part .{}.png .in.{}.png. .{}.png.Xb12aQ .{} {}.png# .{}.png.swp
/ {}.mpo {}.cr2 {}.CR3 {}.nef {}.arw {}.dng {}.heic {}.pdf {}.exr {}.webp {} {}.raw {}.lnk {}.xyz {}.PNG {}.png.png
"""
UNFINISHED, NOT_READ = (names.split() for names in _NAMES.split("/"))
NFD = unicodedata.normalize("NFD", "Prüf")


def found(folder):
    return {item.name: item for item in find(folder, COMPONENTS)[0]}


@pytest.mark.parametrize("name", [name.format("R2__C5") for name in UNFINISHED])
@pytest.mark.parametrize("folder", ["SN1", "C5"])
def test_an_upload_under_way_is_an_error_where_the_picture_belongs(tmp_path, folder, name):
    write(tmp_path / folder / "R1__C5.png", encoded())
    write(tmp_path / folder / name, encoded())  # even a whole picture: nobody knows whether it is the last one
    items = found(tmp_path)
    odd = items[f"{folder}/{name}"]
    assert odd.failure.kind is FailureKind.IMAGE
    assert odd.component == "C5"
    assert (odd.serial, odd.refdes) == (("SN1", "R2") if folder == "SN1" else ("", ""))
    assert items[f"{folder}/R1__C5.png"].failure is None


@pytest.mark.parametrize("name", [name.format("R2__R0402-1.5K") for name in NOT_READ])
def test_what_lies_where_a_picture_belongs_counts_for_its_board(tmp_path, name):
    write(tmp_path / "SN1" / name, b"not known")
    (item,) = found(tmp_path).values()
    assert (item.serial, item.refdes, item.component) == ("SN1", "R2", "R0402-1.5K")
    with pytest.raises(ImageError):
        decode(item.path)


@pytest.mark.parametrize("name", ["R2__C5", "R2__C5.mpo", "R2__C5.dat", "R2__C5.PNG.png", "R2__C5.txt", "R2__C5.webp"])
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_the_content_decides_how_a_file_is_read(tmp_path, name, form):
    write(tmp_path / "SN1" / name, encoded(form))
    (item,) = found(tmp_path).values()
    assert (item.error, item.serial, item.refdes, item.component) == (None, "SN1", "R2", "C5")
    assert decode(item.path).shape == (40, 40, 3)


@pytest.mark.parametrize("ending", [".cr2", ".nef", ".ARW", ".dng", "", ".raw"])
def test_a_raw_picture_is_not_judged_by_its_thumbnail(tmp_path, ending):
    path = tmp_path / "SN1" / f"R2__C5{ending}"
    path.parent.mkdir()
    Image.new("RGB", (40, 40), "white").save(path, "TIFF")
    (item,) = found(tmp_path).values()
    assert item.failure.kind is FailureKind.IMAGE


@pytest.mark.parametrize("place", ["SN1/.rsync-partial/R2__C5.png", ".~tmp~/SN1/R2__C5.png", ".SN1/R2__C5.png"])
def test_hidden_folders_are_looked_into(tmp_path, place):
    write(tmp_path / "SN1" / "R1__C5.png", encoded())
    write(tmp_path / place, encoded())
    item = found(tmp_path)[place]
    assert item.failure is not None
    assert (item.refdes, item.component) == ("R2", "C5")


def test_an_upload_without_a_name_counts_for_the_board_in_whose_folder_it_lies(tmp_path):
    write(tmp_path / "SN1" / "R1__C5.png", encoded())
    write(tmp_path / "SN1" / ".pureftpd-upload.65f1a2b3.15.1b2c.8a9d")
    item = found(tmp_path)["SN1/.pureftpd-upload.65f1a2b3.15.1b2c.8a9d"]
    assert (item.serial, item.failure is None) == ("SN1", False)


@pytest.mark.parametrize(
    "name", ["upload-7.tmp", "a1b2.part", "R2__C5.png/", "R2__C5/", "R2__C5.png/data", "R2.png/x.bin"]
)
def test_what_may_become_a_picture_keeps_its_board_from_being_ok(tmp_path, name):
    write(tmp_path / "SN1" / "R1__C5.png", encoded())
    if name.endswith("/"):
        (tmp_path / "SN1" / name).mkdir()
    else:
        write(tmp_path / "SN1" / name)
    item = found(tmp_path)[f"SN1/{name.rstrip('/')}"]
    assert (item.serial, item.failure is None) == ("SN1", False)


def test_an_empty_folder_may_be_a_board_s(tmp_path):
    write(tmp_path / "SN1" / "R1__C5.png", encoded())
    for name in ("SN2", "C5"):
        (tmp_path / name).mkdir()
    _, skipped = find(tmp_path, COMPONENTS)
    assert {other.path.name: other.serial for other in skipped} == {"SN2": "SN2", "C5": ""}


def test_a_board_is_not_ok_while_its_picture_is_on_its_way(tiny, tmp_path, call):
    board, store = tiny
    write(tmp_path / "in" / "SN1" / "R1__C.png", encoded())
    write(tmp_path / "in" / "SN1" / ".in.R2__C.png.", encoded())
    said = call(
        *(
            "--board",
            board,
            "--store",
            store,
            "--images",
            tmp_path / "in",
            "--out",
            tmp_path / "out",
            "--memory",
            "12MB",
        ),
        command=inspect_cli,
    )
    assert said.status == 3
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["boards"]["SN1"] != "OK"
    assert summary["errors"] == 1


# Names in NFC and NFD


def test_names_meet_in_nfc_and_nfd(tmp_path):
    nfc = unicodedata.normalize("NFC", NFD)
    write(tmp_path / nfc / f"{NFD}1__C5.png")
    write(tmp_path / NFD / f"{nfc}2__C5.png")
    items = list(found(tmp_path).values())
    assert {(item.error, item.serial, item.refdes) for item in items} == {
        (None, nfc, f"{nfc}1"),
        (None, nfc, f"{nfc}2"),
    }
    assert all(os.path.lexists(tmp_path / item.name) for item in items)  # names in results are those on the disk


def test_two_names_that_differ_only_so_are_errors_that_name_both(tmp_path):
    nfc = unicodedata.normalize("NFC", NFD)
    for folder in (nfc, NFD):
        write(tmp_path / folder / "R1__C5.png")
    items = found(tmp_path)
    assert len(items) == 2
    for item in items.values():
        assert ascii(f"{nfc}/R1__C5.png") in str(item.error)
        assert ascii(f"{NFD}/R1__C5.png") in str(item.error)


def test_a_table_finds_its_files_in_either_spelling(tmp_path):
    nfc = unicodedata.normalize("NFC", NFD)
    write(tmp_path / NFD / f"{NFD}.png")
    write(tmp_path / NFD / "good.png")
    text = f"path,component,serial,refdes,reference\n{nfc}/{nfc}.png,C5,{NFD},{NFD},{nfc}/good.png\n"
    write(tmp_path / "images.csv", text.encode())
    (item,) = find(tmp_path, COMPONENTS)[0]
    assert item.error is None
    assert item.path.exists()
    assert item.reference.exists()
    assert (item.serial, item.refdes) == (nfc, nfc)


def test_a_table_that_lists_a_picture_in_both_spellings_names_both(tmp_path):
    nfc = unicodedata.normalize("NFC", NFD)
    write(tmp_path / f"{NFD}.png")
    write(tmp_path / "images.csv", f"path,component\n{nfc}.png,C5\n{NFD}.png,C5\n".encode())
    with pytest.raises(ConfigError, match="are one name"):
        find(tmp_path, COMPONENTS)
