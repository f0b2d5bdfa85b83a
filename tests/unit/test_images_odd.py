"""Folders of images as nobody should leave them: names that disagree, links in circles, pipes, what may not be read."""

import os
import subprocess
from pathlib import Path

import pytest
from odd_files import ODD as ODD_FILES
from picture_folders import make

from coe.errors import ConfigError
from coe.pictures.finding import find

COMPONENTS = {"C0", "C5", "R-0402", "QFP_1", "A__B"}


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
    assert all(f"'{word}'" in item.error for word in (name.partition("/")[0], stated))


@pytest.mark.parametrize("given", [".", "R1__C5.png", "inner/.."])
def test_they_disagree_too_where_the_folder_is_not_a_part_of_the_name(tmp_path, given):
    make(tmp_path, "C0/R1__C5.png", "C0/inner/.keep")
    item = only(tmp_path / "C0" / given)
    assert all(f"'{word}'" in item.error for word in ("C0", "C5"))


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


@pytest.mark.parametrize("name", ["SN1/R1__c5.png", "SN1/R1__C5__2.png", "SN1/R1__.png", "SN1/R1_C5.png", "SN1/__.png"])
def test_a_serial_folder_takes_no_name_but_the_exact_one(tmp_path, name):
    assert "is not a component of the board" in str(only(make(tmp_path, name)).error)


def test_a_table_counts_whatever_folders_and_files_are_called_and_no_cell_is_passed_over(tmp_path):
    make(tmp_path, "C0/R1__C5.png", "a.png")
    rows = "C0/R1__C5.png,QFP_1,,\na.png,C0,C5\n"
    (tmp_path / "images.csv").write_text(f"path,component\n{rows}", encoding="utf-8")
    first, second = find(tmp_path, COMPONENTS)[0]
    assert (first.error, first.component) == (None, "QFP_1")
    assert second.error.startswith("images.csv:3: 'C5'")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("component", "path,component,component\na.png,C0,C5\n"),
        ("path", "path,path,component\na.png,b.png,C5\n"),
        ("serial", "path;component;Serial;serial\na.png;C0;1;2\n"),
    ],
)
def test_a_table_with_two_columns_of_one_name_is_refused(tmp_path, column, text):
    make(tmp_path, "a.png")
    (tmp_path / "images.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{column} .*twice"):
        find(tmp_path, COMPONENTS)


def to_each_other(path):
    path.symlink_to("other")
    path.with_name("other").symlink_to(path.name)


def below_a_file(path):
    path.with_name("file.txt").touch()
    path.symlink_to("file.txt/x.png")


ODD = {
    "pipe": (ODD_FILES["pipe"], "pipe"),
    "socket": (ODD_FILES["socket"], "socket"),
    "device": (ODD_FILES["endless-device"], "device"),
    "to itself": (ODD_FILES["link-to-itself"], "levels of symbolic links"),
    "to each other": (to_each_other, "levels of symbolic links"),
    "to nothing": (ODD_FILES["link-to-nothing"], "broken link"),
    "to too long a name": (lambda path: path.symlink_to("x" * 300), "too long"),
    "below a file": (below_a_file, "Not a directory"),
}
odd = pytest.mark.parametrize("odd", ODD)


def found_beside(folder, place, odd, *names):
    """Return what is found of an odd thing in a place beside pictures, by name."""
    make(folder, *names)
    (folder / place).parent.mkdir(exist_ok=True)
    ODD[odd][0](folder / place)
    return {item.name: item.error for item in find(folder, COMPONENTS)[0]}


@odd
@pytest.mark.parametrize("place", ["odd.png", "C0/odd.png", "SN1/R9__C0.png", "C0/deep/odd.png"])
def test_an_odd_image_is_one_error_and_the_others_are_found(tmp_path, odd, place):
    errors = found_beside(tmp_path, place, odd, "C0/good.png", "SN1/R1__C5.png")
    assert ODD[odd][1] in errors[place]
    assert {name for name, error in errors.items() if error is None} == {"C0/good.png", "SN1/R1__C5.png"}


@pytest.mark.parametrize("odd", [*ODD][3:])
@pytest.mark.parametrize("place", ["C5", "SN1/R1", "SN2"])
def test_a_link_that_may_have_been_a_folder_of_images_is_an_error(tmp_path, odd, place):
    errors = found_beside(tmp_path, place, odd, "C0/good.png", "SN1/R1__C5.png")
    assert ODD[odd][1] in errors[place]
    assert errors["C0/good.png"] is None


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


@pytest.mark.parametrize("odd", [*ODD][:3])
def test_what_is_neither_a_file_nor_called_an_image_is_left_alone_and_named(tmp_path, odd):
    assert found_beside(tmp_path, "C0/control", odd, "C0/good.png") == {"C0/good.png": None}
    (skipped,) = find(tmp_path, COMPONENTS)[1]
    assert (skipped.path.name, "not a file" in skipped.reason) == ("control", True)


@odd
@pytest.mark.parametrize("given", ["images.csv", "other.CSV", "picture.png"])
def test_an_odd_table_or_image_given_by_itself_is_refused_at_once(tmp_path, odd, given):
    ODD[odd][0](tmp_path / given)
    with pytest.raises(ConfigError):
        find(tmp_path / given, COMPONENTS)


@pytest.mark.parametrize("odd", [*ODD, "folder"])
def test_a_folder_whose_table_is_odd_is_refused_because_the_table_would_count_alone(tmp_path, odd):
    make(tmp_path, "C0/good.png")
    create, said = ODD.get(odd) or (ODD_FILES["folder"], "folder")
    create(tmp_path / "images.csv")
    with pytest.raises(ConfigError, match=rf"images\.csv .*{said}"):
        find(tmp_path, COMPONENTS)


@odd
def test_an_odd_file_that_a_table_lists_is_an_error_of_that_row(tmp_path, odd):
    make(tmp_path, "good.png")
    ODD[odd][0](tmp_path / "odd.png")
    (tmp_path / "images.csv").write_text("path,component\nodd.png,C0\ngood.png,C0\n", encoding="utf-8")
    first, second = find(tmp_path, COMPONENTS)[0]
    assert (first.error.startswith("images.csv:2: 'odd.png'"), ODD[odd][1] in first.error) == (True, True)
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
    assert {other.path.name for other in skipped} == {"up", "SN1"}


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
