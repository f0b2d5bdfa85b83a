"""Files of other names beside pictures, or in their place: none of them makes a board OK."""

import hashlib
import os
import unicodedata

import numpy as np
import pytest
from picture_folders import encoded, write
from PIL import Image

from coe.core import Expert, FailureKind
from coe.errors import ConfigError, DamagedImage, ImageError
from coe.learn import labelled
from coe.pictures.decoding import decode
from coe.pictures.finding import find
from coe.pictures.picture_file import PictureFile

COMPONENTS = {"C5", "R0402-1.5K", "U-QFP32"}
_NAMES = """
{}.png.part {}.png.filepart {}.png.tmp {}.PNG.TMP {}.png.crdownload {}.png~ {}.jpg.1 {}.png.bak {}.png.Xb12aQ {}.tmp
{}.part .{}.png .in.{}.png. .{}.png.Xb12aQ .{} {}.png# .{}.png.swp
/ {}.gif {}.jp2 {}.avif {}.ppm {}.WEBP
{}.mpo {}.cr2 {}.CR3 {}.nef {}.arw {}.dng {}.heic {}.pdf {}.exr {}.webp {} {}.raw {}.lnk {}.xyz {}.PNG {}.png.png
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


def test_an_upload_without_a_name_counts_for_the_board_of_its_folder_and_an_empty_folder_may_be_one(tmp_path):
    write(tmp_path / "SN1" / "R1__C5.png", encoded())
    write(tmp_path / "SN1" / ".pureftpd-upload.65f1a2b3.15.1b2c.8a9d")
    item = found(tmp_path)["SN1/.pureftpd-upload.65f1a2b3.15.1b2c.8a9d"]
    assert (item.serial, item.failure is None) == ("SN1", False)
    for name in ("SN2", "C5"):
        (tmp_path / name).mkdir()
    _, skipped = find(tmp_path, COMPONENTS)
    assert {other.path.name: other.serial for other in skipped} == {"SN2": "SN2", "C5": ""}


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


def test_names_meet_in_nfc_and_nfd_and_two_that_differ_only_so_are_errors_that_name_both(tmp_path):
    nfc = unicodedata.normalize("NFC", NFD)
    write(tmp_path / nfc / f"{NFD}1__C5.png")
    write(tmp_path / NFD / f"{nfc}2__C5.png")
    items = list(found(tmp_path).values())
    assert {(item.error, item.serial, item.refdes) for item in items} == {
        (None, nfc, f"{nfc}1"),
        (None, nfc, f"{nfc}2"),
    }
    assert all(os.path.lexists(tmp_path / item.name) for item in items)  # names in results are those on the disk
    for folder in (nfc, NFD):
        write(tmp_path / "two" / folder / "R1__C5.png")
    items = found(tmp_path / "two")
    assert len(items) == 2
    for item in items.values():
        assert ascii(f"{nfc}/R1__C5.png") in str(item.error)
        assert ascii(f"{NFD}/R1__C5.png") in str(item.error)


def test_a_table_finds_its_files_in_either_spelling_and_one_that_lists_both_names_both(tmp_path):
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
    write(tmp_path / f"{NFD}.png")
    write(tmp_path / "images.csv", f"path,component\n{nfc}.png,C5\n{NFD}.png,C5\n".encode())
    with pytest.raises(ConfigError, match="are the same name"):
        find(tmp_path, COMPONENTS)


RAW = b"\0\0\0\x18ftypcrx \0\0\0\1" + bytes(range(256))
NOTES = {
    "README": b"what these pictures are\n",
    "classes.names": "gut\nÜbergang\n".encode(),
    "notes.txt~": b"an old note\n",
    "R1__C5.txt~": b"an old note\n",
    ".~lock.notes.ods#": b",me,pc,01.01.2024 10:00,file:///;",
    ".notes.txt.swp": b"b0VIM 8.2\0\0\0\0",
    "R1__C5.png:Zone.Identifier": b"[ZoneTransfer]\r\nZoneId=3\r\n",
    "R1__C5.AAE": b"<?xml version='1.0'?>",
    "R1__C5.MOV": b"\0\0\0\x14ftypqt  " + bytes(range(256)),
    "list.xlsx": b"PK\3\4" + bytes(90),
    "R1__C5.CR3": RAW,
    "Thumbs.db": b"words",
    "desktop.ini": b"words",
    ".DS_Store": b"words",
    "R1__C5.png.json": b"{}",
    "notes.csv": b"words",
    "._R1__C5.png": b"\0\5\x16\7 of macOS",
}


@pytest.mark.parametrize("folder", ["SN1", "C5"])
@pytest.mark.parametrize("name", NOTES)
def test_what_goes_with_a_picture_is_left_alone_and_named(tmp_path, folder, name):
    write(tmp_path / folder / "R1__C5.png", encoded())
    write(tmp_path / folder / name, NOTES[name])
    items, skipped = find(tmp_path, COMPONENTS)
    assert [(item.name, item.error) for item in items] == [(f"{folder}/R1__C5.png", None)]
    assert [entry.path.name for entry in skipped] == [name]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *((folder, name) for folder in ("SN1", "C5") for name in ("R2__C5.CR3", ".R1__C5.CR3", "R1__C5.png.part")),
        *((folder, "R1__C5.webp") for folder in ("SN1", "C5")),
        *(("SN1", f"R2__C5{ending}") for ending in (".AAE", ".MOV", "", ".json")),  # of a place without a picture
    ],
)
def test_a_raw_picture_or_a_note_without_a_picture_that_is_read_is_an_error(tmp_path, folder, name):
    write(tmp_path / folder / "R1__C5.png", encoded())
    write(tmp_path / folder / name, RAW if "R2__C5.CR3" in name else b"a text\n")
    items, _ = find(tmp_path, COMPONENTS)
    assert [item.path.name for item in items if item.error] == [name]


@pytest.mark.parametrize("system", [".stversions", ".@__thumb", "@Recycle", "#snapshot", "@eaDir", ".Trash-1000"])
def test_former_states_of_a_share_are_no_pictures_of_a_board(tmp_path, system):
    for place in (tmp_path / "SN1", tmp_path / "SN1" / system):
        write(place / "R1__C5.png", encoded())
    assert [item.name for item in find(tmp_path, COMPONENTS)[0]] == ["SN1/R1__C5.png"]


def black_at_its_end(form):
    picture = np.full((64, 64, 3), 90, np.uint8)
    picture[:4] = picture[-4:] = 0  # the rows of a BMP begin at the bottom
    return encoded(form, picture)


@pytest.mark.parametrize("form", ["BMP", "TIFF"])
def test_a_picture_with_a_black_edge_has_ways_out(form, tmp_path, monkeypatch):
    data = black_at_its_end(form)
    with pytest.raises(DamagedImage):
        decode(data)
    path = write(tmp_path / "a", data)
    assert decode(PictureFile(path, hashlib.sha256(data).hexdigest())).shape == (64, 64, 3)
    monkeypatch.setenv("COE_BLACK_ENDS", "1")
    assert decode(data).shape == (64, 64, 3)
    monkeypatch.setenv("COE_BLACK_ENDS", "maybe")
    with pytest.raises(ConfigError):
        decode(data)


@pytest.mark.parametrize("name", ["b.webp", ".in.b.png", "b.png.part", "b.CR3"])
def test_verified_and_training_pictures_that_cannot_be_read_are_refused(tmp_path, name):
    place = tmp_path / "body" / "good"
    for path in (place / "a.png", place / "a.CR3", place / ".DS_Store", place / "@eaDir" / "a.png"):
        write(path, encoded() if path.suffix == ".png" else RAW)
    write(place / "README", NOTES["README"])
    expert = Expert("body", "resnet18", ("good", "bad"), 64, "body")
    assert [picture.name for picture in labelled.find(tmp_path, {"body": expert})] == ["body/good/a.png"]
    assert len(labelled.of_expert(tmp_path / "body", expert)) == 1
    (place / name).write_bytes(RAW)
    with pytest.raises(ConfigError):
        labelled.find(tmp_path, {"body": expert})
    with pytest.raises(ConfigError):
        labelled.of_expert(tmp_path / "body", expert)
