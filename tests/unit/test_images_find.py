"""No image is dropped and none is guessed at."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_folders import make
from texts import texts

from coe.errors import ConfigError
from coe.pictures.finding import find
from coe.pictures.photographs import natural

COMPONENTS = {"R0402", "C0603", "U-QFP32"}


def told(items):
    return [(item.name, item.component, item.serial, item.refdes) for item in items if item.error is None]


def test_a_folder_per_component_in_natural_order(tmp_path):
    make(tmp_path, "R0402/10.png", "R0402/9.JPG", "C0603/a.tif", "C0603/b__c.TIFF", "R0402/x.bmp")
    items, skipped = find(tmp_path, COMPONENTS)
    names = ["C0603/a.tif", "C0603/b__c.TIFF", "R0402/9.JPG", "R0402/10.png", "R0402/x.bmp"]
    assert [(item.name, item.component) for item in items] == [(name, name.partition("/")[0]) for name in names]
    assert skipped == []
    assert items[0].path == tmp_path / "C0603/a.tif"


def test_a_folder_per_serial(tmp_path):
    make(tmp_path, "SN2/R1__R0402.png", "SN10/U3__U-QFP32.jpeg", "SN2/R10__R0402.png", "SN2/R2__R0402.png")
    assert told(find(tmp_path, COMPONENTS)[0]) == [
        ("SN2/R1__R0402.png", "R0402", "SN2", "R1"),
        ("SN2/R2__R0402.png", "R0402", "SN2", "R2"),
        ("SN2/R10__R0402.png", "R0402", "SN2", "R10"),
        ("SN10/U3__U-QFP32.jpeg", "U-QFP32", "SN10", "U3"),
    ]


def test_one_board_or_one_component_may_be_given_by_itself(tmp_path):
    make(tmp_path, "SN2/R1__R0402.png", "C0603/a.png")
    assert told(find(tmp_path / "SN2", COMPONENTS)[0]) == [("R1__R0402.png", "R0402", "SN2", "R1")]
    assert told(find(tmp_path / "C0603", COMPONENTS)[0]) == [("a.png", "C0603", "", "")]
    assert told(find(tmp_path / "SN2/R1__R0402.png", COMPONENTS)[0]) == [("R1__R0402.png", "R0402", "SN2", "R1")]
    assert told(find(tmp_path / "C0603/a.png", COMPONENTS)[0]) == [("a.png", "C0603", "", "")]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/R0402").symlink_to(tmp_path / "C0603")
    assert told(find(tmp_path / "set", COMPONENTS)[0]) == [("R0402/a.png", "R0402", "", "")], "a link is followed"


def test_what_fits_no_layout_gets_an_error_of_its_own(tmp_path):
    make(tmp_path, "SN1/R1__R042.png", "R042/a.png", "SN1/R1__R0402.png", "SN1/deep/R2__R0402.png", "top.png")
    items, _ = find(tmp_path, COMPONENTS)
    errors = {item.name: item.error for item in items}
    assert errors["SN1/R1__R0402.png"] is None
    for name, words in (
        ("SN1/R1__R042.png", ("'R042'", "'R0402'")),
        ("R042/a.png", ("folder 'R042'", "'R0402'")),
        ("SN1/deep/R2__R0402.png", ("too deep",)),
        ("top.png", ("component",)),
    ):
        assert all(word in errors[name] for word in words)
    wrong = next(item for item in items if item.name == "SN1/R1__R042.png")
    assert (wrong.serial, wrong.refdes, wrong.component) == ("SN1", "R1", "R042")


def test_other_files_are_reported(tmp_path):
    make(tmp_path, "R0402/a.png", "R0402/Thumbs.db", "notes.txt", ".DS_Store", ".git/x.png")
    items, skipped = find(tmp_path, COMPONENTS)
    assert [item.name for item in items] == ["R0402/a.png"]
    assert [other.path.name for other in skipped] == [".DS_Store", ".git", "Thumbs.db", "notes.txt"]
    assert "'.db'" in skipped[2].reason


@pytest.mark.parametrize("name", ["empty", "absent", "only-others", "R0402.txt", "R0402.zip"])
def test_nothing_to_inspect_is_a_clear_error(tmp_path, name):
    make(tmp_path, "only-others/a.txt", "R0402.txt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "R0402.zip").write_bytes(b"PK\x03\x04\x14\x00\x00\x00")
    with pytest.raises(ConfigError, match=r"no images|no such folder|is not an image"):
        find(tmp_path / name, COMPONENTS)


def test_an_unreadable_folder_stops_before_anything_starts(tmp_path, monkeypatch):
    make(tmp_path, "R0402/a.png")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # root may read everything, so the system cannot refuse by itself
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        find(tmp_path, COMPONENTS)


def table(folder, text, encoding="utf-8"):
    path = folder / "images.csv"
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_table_counts_alone(tmp_path, mark, encoding):
    make(tmp_path, "img/ü.png", "img/b.png", "R0402/not-listed.png")
    lines = ["Path,component,serial,refdes", "img\\ü.png,R0402,SN1,R1", "", "./img/b.png,C0603,,"]
    path = table(tmp_path, "\r\n".join(lines).replace(",", mark), encoding)
    expected = [("img/ü.png", "R0402", "SN1", "R1"), ("img/b.png", "C0603", "", "")]
    assert told(find(tmp_path, COMPONENTS)[0]) == expected
    assert told(find(path, COMPONENTS)[0]) == expected


def test_line_ends_within_a_cell_stay_as_they_are(tmp_path):
    make(tmp_path, "a\rb.png")
    (tmp_path / "images.csv").write_bytes(b'path,component,serial\r\n"a\rb.png",R0402,"SN\r\n1"\r\n')
    assert told(find(tmp_path, COMPONENTS)[0]) == [("a\rb.png", "R0402", "SN\r\n1", "")]


def test_a_bad_row_is_an_error_of_that_image_alone(tmp_path):
    make(tmp_path, "a.png", "b.png")
    rows = ["a.png,R0402", "gone.png,R0402", "../a.png,R0402", "/etc/a.png,R0402", ",R0402", "x/../a2.png,"]
    table(tmp_path, "\n".join(["path,component", *rows, "b.png,R042", ""]))
    items, _ = find(tmp_path, COMPONENTS)
    assert items[0].error is None
    words = ("'gone.png'", "'../a.png' is outside", "'/etc/a.png' is outside", "empty", "'a2.png'", "'R0402'")
    for line, (item, word) in enumerate(zip(items[1:], words, strict=True), 3):
        assert (item.error.startswith(f"images.csv:{line}: "), word in item.error) == (True, True)
    assert items[4].name == "images.csv:6"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column path"),
        ("file,component\n", "images.csv:1: .*column path"),
        ("path,component\n", "no images"),
        ("path,component\na.png,R0402\n./a.png,C0603\n", "images.csv:3: 'a.png'.*line 2"),
        ('path,component\n"a.png,R0402\n', "CSV"),
        ("path,component\nü.png,R0402\n", "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, text, says):
    make(tmp_path, "a.png")
    table(tmp_path, text, "latin-1")
    with pytest.raises(ConfigError, match=says):
        find(tmp_path, COMPONENTS)


@given(st.lists(texts()))
def test_natural_order_is_an_order_of_any_text(names):
    backwards = names[::-1]
    assert sorted(names, key=natural) == sorted(backwards, key=natural)
    assert sorted(["R10", "R2", "R1"], key=natural) == ["R1", "R2", "R10"]
