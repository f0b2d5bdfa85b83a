"""What cameras, systems and people put beside pictures is left alone; a picture that cannot be read never is."""

import hashlib
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from picture_folders import encoded, write

from coe.core import Expert
from coe.errors import ConfigError, DamagedImage
from coe.learn import labelled
from coe.pictures.decoding import decode
from coe.pictures.finding import find
from coe.pictures.picture_file import PictureFile
from coe.placement import Layout
from coe.placement.run_source import WholeBoards

COMPONENTS = {"C5", "R0402"}
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


@pytest.mark.parametrize("folder", ["SN1", "C5"])
@pytest.mark.parametrize("name", ["R2__C5.CR3", ".R1__C5.CR3", "R1__C5.png.part", "R1__C5.webp"])
def test_a_raw_picture_without_a_picture_that_is_read_is_an_error(tmp_path, folder, name):
    write(tmp_path / folder / "R1__C5.png", encoded())
    write(tmp_path / folder / name, RAW)
    items, _ = find(tmp_path, COMPONENTS)
    assert [item.path.name for item in items if item.error] == [name]


@pytest.mark.parametrize("name", ["R1__C5.AAE", "R1__C5.MOV", "R1__C5", "R1__C5.json"])
def test_a_place_with_a_note_and_no_picture_is_an_error(tmp_path, name):
    write(tmp_path / "SN1" / "R2__C5.png", encoded())
    write(tmp_path / "SN1" / name, b"a text\n")
    items, _ = find(tmp_path, COMPONENTS)
    assert [(item.path.name, item.serial) for item in items if item.error] == [(name, "SN1")]


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


def test_what_lies_beside_pictures_of_whole_boards_is_no_board(tmp_path):
    for name, data in {"SN1.png": encoded(), "SN1.CR3": RAW, "README": b"a note\n", "SN2.CR3": RAW}.items():
        (tmp_path / name).write_bytes(data)
    layout = SimpleNamespace(
        units=("",), codes={}, sites=(SimpleNamespace(name="R1", unit="", component="C5", refdes="R1"),)
    )
    boards = WholeBoards(cast(Layout, layout), tmp_path)
    assert [(item.name, item.error is None) for item in boards.items] == [("SN1.png/R1", True), ("SN2.CR3/R1", False)]
    assert {entry.path.name for entry in boards.skipped} == {"SN1.CR3", "README"}
