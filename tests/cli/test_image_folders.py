"""Folders of images as nobody should leave them: names that disagree, links in circles, pipes, what may not be read."""

import json
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from picture_folders import make

from coe.cli import inspect as inspect_cli
from coe.errors import ConfigError
from coe.pictures.finding import find

COMPONENTS = {"C0", "C5", "R-0402", "QFP_1", "A__B"}

Make = Callable[[Path], None]


def only(folder):
    (item,) = find(folder, COMPONENTS)[0]
    return item


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("C0/R1__C5.png", "C5"),
        ("C5/R1__C0.jpg", "C0"),
        ("C0/__C5.png", "C5"),
        ("C0/R1__c5.png", "C5"),
        ("C0/R1__ C5 .png", "C5"),
        ("C0/R1__C5__2.png", "C5"),
        ("C0/R1__2__C5.png", "C5"),
        ("C0/R1__r-0402.tiff", "R-0402"),
        ("R-0402/R1__A__B.png", "A__B"),
        ("A__B/R1__C0.png", "C0"),
        ("C0/R1__qfp_1.bmp", "QFP_1"),
        ("c0/R1__C5.png", "C5"),
        ("r-0402/R1__c5.png", "C5"),
    ],
)
def test_two_names_that_disagree_are_an_error_and_no_guess(tmp_path, name, stated):
    item = only(make(tmp_path, name))
    assert item.component == ""
    folder = name.partition("/")[0]
    assert item.error == (
        f"its folder says component '{folder}' and its name says '{stated}'; rename one of them, or list the image in "
        "a table images.csv"
    )


@pytest.mark.parametrize("given", [".", "R1__C5.png"], ids=["the folder by itself", "the image by itself"])
def test_they_disagree_too_where_the_folder_is_not_a_part_of_the_name(tmp_path, given):
    make(tmp_path, "C0/R1__C5.png")
    item = only(tmp_path / "C0" / given)
    assert "its folder says component 'C0' and its name says 'C5'" in str(item.error)


def test_a_folder_given_by_way_of_its_child_has_its_own_name(tmp_path):
    make(tmp_path, "C0/R1__C5.png", "C0/inner/.keep")
    assert "says component 'C0'" in str(only(tmp_path / "C0" / "inner" / "..").error)


@pytest.mark.parametrize(
    ("name", "component", "serial", "refdes"),
    [
        ("C0/R1__C0.png", "C0", "", ""),
        ("C0/R1__c0.png", "C0", "", ""),
        ("C0/R1__C0__2.png", "C0", "", ""),
        ("C0/C5.png", "C0", "", ""),
        ("C0/C5__1.png", "C0", "", ""),
        ("C0/2026-01-01__camera2.png", "C0", "", ""),
        ("C0/R1__.png", "C0", "", ""),
        ("A__B/1.png", "A__B", "", ""),
        ("A__B/R1__A__B.png", "A__B", "", ""),
        ("SN1/R1__C5.png", "C5", "SN1", "R1"),
        ("SN1/C0__C5.png", "C5", "SN1", "C0"),
        ("c0/R1__C0.png", "C0", "c0", "R1"),
        ("SN1/R1__A__B.png", "A__B", "SN1", "R1"),
        ("SN__C0/R1__C5.png", "C5", "SN__C0", "R1"),
    ],
)
def test_names_that_agree_or_state_no_component_are_inspected(tmp_path, name, component, serial, refdes):
    item = only(make(tmp_path, name))
    assert (item.error, item.component, item.serial, item.refdes) == (None, component, serial, refdes)


@pytest.mark.parametrize("suffix", [".webp", ".WEBP", ".gif", ".jp2", ".heic", ".avif", ".ppm", ".dng"])
def test_a_picture_in_a_format_that_is_not_read_keeps_its_board_from_being_ok(tmp_path, suffix):
    make(tmp_path, "SN1/R1__C5.png", f"SN1/R2__C5{suffix}", "SN1/notes.txt")
    items, skipped = find(tmp_path, COMPONENTS)
    odd = items[1]
    assert (odd.component, odd.serial, odd.refdes) == ("C5", "SN1", "R2")
    assert odd.error == f"is a picture in an unsupported format ({suffix.lower()}); save it as PNG"
    assert [other.path.name for other in skipped] == ["notes.txt"]


@pytest.mark.parametrize("name", ["SN1/R1__c5.png", "SN1/R1__C5__2.png", "SN1/R1__.png", "SN1/R1_C5.png", "SN1/__.png"])
def test_a_serial_folder_takes_no_name_but_the_exact_one(tmp_path, name):
    assert "is not a component of the board" in str(only(make(tmp_path, name)).error)


def test_a_table_counts_whatever_folders_and_files_are_called(tmp_path):
    make(tmp_path, "C0/R1__C5.png")
    (tmp_path / "images.csv").write_text("path,component\nC0/R1__C5.png,QFP_1\n", encoding="utf-8")
    item = only(tmp_path)
    assert (item.error, item.component) == (None, "QFP_1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("path,component,component\na.png,C0,C5\n", "the column component occurs twice"),
        ("path,path,component\na.png,b.png,C5\n", "the column path occurs twice"),
        ("path;component;Serial;serial\na.png;C0;1;2\n", "the column serial occurs twice"),
    ],
)
def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path, text, says):
    make(tmp_path, "a.png")
    (tmp_path / "images.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        find(tmp_path, COMPONENTS)


def test_a_cell_behind_the_last_column_is_not_passed_over(tmp_path):
    make(tmp_path, "a.png", "b.png")
    (tmp_path / "images.csv").write_text("path,component\na.png,C0,C5\nb.png,C0,,\n", encoding="utf-8")
    first, second = find(tmp_path, COMPONENTS)[0]
    assert first.error == "images.csv:2: 'C5' comes after the last column; quote cells that contain the separator"
    assert second.error is None


def pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    with inside(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # a path of a socket may have 107 letters only


@contextmanager
def inside(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def to_device(path):
    path.symlink_to("/dev/zero")


def to_itself(path):
    path.symlink_to(path.name)


def to_each_other(path):
    other = path.with_name(f"other-{path.name}")
    path.symlink_to(other.name)
    other.symlink_to(path.name)


def to_nothing(path):
    path.symlink_to("not-there")


def to_too_long_a_name(path):
    path.symlink_to("x" * 300)


def below_a_file(path):
    path.with_name("file.txt").write_text("")
    path.symlink_to("file.txt/x.png")


ODD = [
    (pipe, "is a pipe, not a file"),
    (unix_socket, "is a socket, not a file"),
    (to_device, "is a device, not a file"),
    (to_itself, "cannot be read: Too many levels of symbolic links"),
    (to_each_other, "cannot be read: Too many levels of symbolic links"),
    (to_nothing, "is a broken link"),
    (to_too_long_a_name, "cannot be read: File name too long"),
    (below_a_file, "cannot be read: Not a directory"),
]
odd = pytest.mark.parametrize(("create", "says"), ODD, ids=lambda value: getattr(value, "__name__", ""))


@odd
@pytest.mark.parametrize("place", ["odd.png", "C0/odd.png", "SN1/R9__C0.png", "C0/deep/odd.png"])
def test_an_odd_image_is_one_error_and_the_others_are_found(tmp_path, create, says, place):
    make(tmp_path, "C0/good.png", "SN1/R1__C5.png")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    create(tmp_path / place)
    items = {item.name: item for item in find(tmp_path, COMPONENTS)[0]}
    assert items[place].error == says
    assert {name for name, item in items.items() if item.error is None} == {"C0/good.png", "SN1/R1__C5.png"}


@pytest.mark.parametrize(("create", "says"), ODD[3:], ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("place", ["C5", "SN1/R1", "SN2"])
def test_a_link_that_may_have_been_a_folder_of_images_is_an_error(tmp_path, create, says, place):
    make(tmp_path, "C0/good.png", "SN1/R1__C5.png")
    create(tmp_path / place)
    items = {item.name: item for item in find(tmp_path, COMPONENTS)[0]}
    assert items[place].error == says
    assert items["C0/good.png"].error is None


def test_what_cannot_be_read_counts_for_the_board_in_whose_folder_it_lies(tmp_path):
    make(tmp_path, "SN1/R1__C5.png", "C0/good.png")
    (tmp_path / "SN1" / "loop").symlink_to("loop")
    (tmp_path / "C0" / "loop").symlink_to("loop")
    (tmp_path / "SN1" / "R2__C0.png").symlink_to("R2__C0.png")
    items = {item.name: (item.component, item.serial, item.refdes) for item in find(tmp_path, COMPONENTS)[0]}
    assert items["SN1/loop"] == ("", "SN1", "")
    assert items["SN1/R2__C0.png"] == ("C0", "SN1", "R2")
    assert items["C0/loop"] == ("C0", "", "")


@pytest.mark.parametrize("name", ["R2_C5.png", "photo.png", "deep/R2__C5.png", "deep/deeper/x.png", "R2__C55.png"])
def test_a_picture_that_fits_nothing_counts_for_the_board_in_whose_folder_it_lies(tmp_path, name):
    make(tmp_path, "SN1/R1__C5.png", f"SN1/{name}", "C55/a.png")
    items = {item.name: item for item in find(tmp_path, COMPONENTS)[0]}
    assert (items[f"SN1/{name}"].serial, items[f"SN1/{name}"].error is None) == ("SN1", False)
    assert items["C55/a.png"].serial == ""


@pytest.mark.parametrize("create", [pipe, unix_socket, to_device], ids=lambda create: create.__name__)
def test_what_is_neither_a_file_nor_called_an_image_is_left_alone_and_named(tmp_path, create):
    make(tmp_path, "C0/good.png")
    create(tmp_path / "C0" / "control")
    items, skipped = find(tmp_path, COMPONENTS)
    assert [item.name for item in items] == ["C0/good.png"]
    assert [other.path.name for other in skipped] == ["control"]
    assert "not a file" in skipped[0].reason


@odd
@pytest.mark.parametrize("given", ["images.csv", "other.CSV", "picture.png"])
def test_an_odd_table_or_image_given_by_itself_is_refused_at_once(tmp_path, create, says, given):
    create(tmp_path / given)
    with pytest.raises(ConfigError, match=r"not a file|no such folder or file|cannot be read"):
        find(tmp_path / given, COMPONENTS)


@odd
def test_a_folder_whose_table_is_odd_is_refused_because_the_table_would_count_alone(tmp_path, create, says):
    make(tmp_path, "C0/good.png")
    create(tmp_path / "images.csv")
    with pytest.raises(ConfigError) as told:
        find(tmp_path, COMPONENTS)
    assert f"images.csv {says}" in str(told.value)


def test_a_folder_in_the_place_of_the_table_is_refused(tmp_path):
    make(tmp_path, "C0/good.png", "images.csv/x.png")
    with pytest.raises(ConfigError, match=r"images\.csv is a folder, not a file"):
        find(tmp_path, COMPONENTS)


@odd
def test_an_odd_file_that_a_table_lists_is_an_error_of_that_row(tmp_path, create, says):
    make(tmp_path, "good.png")
    create(tmp_path / "odd.png")
    (tmp_path / "images.csv").write_text("path,component\nodd.png,C0\ngood.png,C0\n", encoding="utf-8")
    first, second = find(tmp_path, COMPONENTS)[0]
    assert first.error == f"images.csv:2: 'odd.png' {says}"
    assert second.error is None


@pytest.mark.parametrize("locked", ["C5", "SN1", "C0/deep", "a/b/c/d"])
@pytest.mark.parametrize("number", [13, 5, 116], ids=["not permitted", "damaged disk", "stale network folder"])
def test_a_folder_that_cannot_be_read_is_one_error(tmp_path, monkeypatch, locked, number):
    make(tmp_path, "C0/good.png", f"{locked}/lost.png", "SN2/R1__C5.png")
    look = os.scandir

    def refuse(path):
        if Path(path) == tmp_path / locked:
            raise OSError(number, os.strerror(number), str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", refuse)  # whoever runs this may be root, whom the system refuses nothing
    items = {item.name: item.error for item in find(tmp_path, COMPONENTS)[0]}
    assert items == {"C0/good.png": None, "SN2/R1__C5.png": None, locked: f"cannot be read: {os.strerror(number)}"}


def test_links_back_up_are_named_and_followed_no_further(tmp_path):
    make(tmp_path, "C0/good.png")
    (tmp_path / "C0" / "up").symlink_to(tmp_path)
    (tmp_path / "SN1").symlink_to(tmp_path)
    items, skipped = find(tmp_path, COMPONENTS)
    assert [item.name for item in items] == ["C0/good.png"]
    assert {(other.path.name, other.reason) for other in skipped} == {
        ("up", "is a link back to a folder that contains it"),
        ("SN1", "is a link back to a folder that contains it"),
    }


def test_folders_that_all_link_to_each_other_are_walked_in_no_time(tmp_path):
    names = [f"SN{number}" for number in range(14)]
    for name in names:
        make(tmp_path, f"{name}/R1__C0.png")
        for other in names:
            (tmp_path / name / f"to-{other}").symlink_to(tmp_path / other)
    items, _ = find(tmp_path, COMPONENTS)  # along every path, there would be more than 14! of them
    assert sum(item.error is None for item in items) == 14


def test_a_folder_as_deep_as_paths_go_is_walked_to_its_end(tmp_path):
    make(tmp_path, "C0/good.png")
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1300):  # more than the interpreter's recursion limit
            os.mkdir("d", dir_fd=number)
            deeper = os.open("d", os.O_RDONLY, dir_fd=number)
            os.close(number)
            number = deeper
        os.close(os.open("lost.png", os.O_WRONLY | os.O_CREAT, dir_fd=number))
    finally:
        os.close(number)
    try:
        items = find(tmp_path, COMPONENTS)[0]
    finally:  # pytest's own way to remove it would be one call deeper for each folder
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
    assert [item.error is None for item in items].count(True) == 1
    assert "is too deep" in str(next(item for item in items if item.error).error)


@pytest.mark.parametrize(
    "names",
    [
        (b"\xff.png", b"\xfe.png"),
        (b"\xff.png", b"\\xff.png"),
        (b"\\\\xff.png", b"\\\xff.png", b"\\xff.png"),
        (b"\xe2\x82.png", b"\xe2\x83.png", b"\xe2.png"),
        (b"\xc3\xbc.png", b"\xfc.png", b"u\xcc\x88.png"),
        (b"\xed\xa0\x80.png", b"\\xed\\xa0\\x80.png"),
        (b"\xf0\x9f\x98.png", b"\xf0\x9f\x98\x80.png"),
        (b"a\n.png", b"a\\n.png", b"a\r.png"),
        (b"\xff\xff.png", b"\xff\xfe.png", b"\xfe\xff.png"),
        (b"a\x00b.png".replace(b"\x00", b"\x01"), b"a\\x01b.png"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("folder", ["C0", "SN1"])
def test_every_name_has_a_row_of_its_own(tmp_path, names, folder):
    (tmp_path / folder).mkdir()
    mark = b"R1__C0" if folder == "SN1" else b""
    for name in names:
        with open(os.fsencode(tmp_path / folder) + b"/" + mark + name, "wb"):
            pass
    items = find(tmp_path, COMPONENTS)[0]
    assert len({item.name for item in items}) == len(names)
    for item in items:
        item.name.encode("utf-8")
        # What is shown leads back to the file.
        shown = item.name.encode("utf-8").replace(b"\\\\", b"\0")
        parts = shown.split(b"\\x")
        there = parts[0] + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in parts[1:])
        assert os.path.exists(os.fsencode(tmp_path) + b"/" + there.replace(b"\0", b"\\"))


def test_serials_that_are_no_text_stay_two_boards(tmp_path):
    for serial in (b"SN\xff", b"SN\xfe", b"SN\\xff"):
        os.mkdir(os.fsencode(tmp_path) + b"/" + serial)
        with open(os.fsencode(tmp_path) + b"/" + serial + b"/R1__C0.png", "wb"):
            pass
    assert len({item.serial for item in find(tmp_path, COMPONENTS)[0]}) == 3


def test_one_odd_entry_of_each_sort_ends_in_status_3_with_the_others_inspected(tiny, tmp_path, call):
    board, store = tiny
    folder = tmp_path / "images"
    for name in ("C/a.png", "SN1/R1__C.png", "A/R1__C.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), np.full((60, 60, 3), 90, np.uint8))
    for number, (create, _) in enumerate(ODD):
        (folder / str(number)).mkdir()
        create(folder / str(number) / "R1__C.png")
    (folder / "loop").symlink_to("loop")
    said = call(
        *("--board", board, "--store", store, "--images", folder, "--out", tmp_path / "out", "--memory", "12MB"),
        command=inspect_cli,
    )
    assert said.status == 3
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    by_name = {row["image"]: row for row in rows}
    assert by_name["C/a.png"]["verdict"]
    assert by_name["SN1/R1__C.png"]["verdict"]
    assert "its name says 'C'" in by_name["A/R1__C.png"]["error"]
    assert all(f"{number}/R1__C.png" in by_name for number in range(len(ODD)))
    assert "Traceback" not in said.err
