"""A result as JSON, as a table, as a row in which no cell is a formula, and drawn into its image."""

import csv
import dataclasses
import io
import json
import math
import re

import numpy as np
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.lines import Line2D
from texts import texts

from coe import Box, Failure, FailureKind, Finding, Request, Result, Verdict, draw
from coe.core import Heat
from coe.helpers.files import write_atomically
from coe.results.csv_table import COLUMNS, guarded, rows
from coe.results.plots import head, sheet
from coe.results.result_lines import from_line, to_line

GREY = np.full((200, 300, 3), 128, np.uint8)
BOX = Box("bridge", 0.9, (100.0, 60.0, 180.0, 120.0))
FAR = Box("x", 1, (9, 9, 1, math.inf))
FINDING = Finding("demo/joint", "fp32", "bridge", 0.9, (BOX,), 0.4, heat=Heat(2, 2, bytes([0, 0, 0, 255])))
NG = Result(Request(1, "R0402", "a.png", "SN1", "R7"), Verdict.NG, (FINDING,), 0.25)


def red(picture):
    return (picture[..., 2] > 180) & (picture[..., 0] < 80)


def test_a_box_is_drawn_where_it_is_in_the_colour_of_the_verdict_and_heat_is_red():
    plain = dataclasses.replace(NG, findings=(dataclasses.replace(FINDING, heat=None),))
    drawn = draw(plain, GREY)
    assert (drawn.shape, drawn.dtype) == (GREY.shape, np.uint8)
    assert red(drawn)[60, 100:180].all()
    assert red(drawn)[60:120, 100].all()
    assert not red(drawn)[80:100, 130:150].any(), "the inside of a box stays as it is"
    np.testing.assert_array_equal(draw(plain, GREY, order="RGB"), drawn[..., ::-1])
    assert (GREY == 128).all(), "the caller's image stays"
    drawn = draw(NG, GREY).astype(int)
    assert drawn[180, 270, 2] - drawn[180, 270, 0] > 100
    assert abs(drawn[130, 30, 2] - drawn[130, 30, 0]) < 60


@pytest.mark.parametrize(
    "result",
    [
        Result(Request(1, "R0402"), None, (), 0.0, Failure(FailureKind.IMAGE, "is no picture \x1b[31m")),
        Result(Request(1, "C1"), Verdict.OK, (Finding("e", "fp32", "none", math.nan),), 0.1),
        Result(Request(1, "電阻"), Verdict.REVIEW, (Finding("e", "fp32", "割れ", 0.5, (FAR,)),), 0.1),
    ],
)
def test_any_result_can_be_drawn(result):
    assert draw(result, np.zeros((16, 16), np.uint8)).shape == (16, 16, 3)


def test_a_result_is_finite_json_and_a_table_that_escapes_what_it_shows():
    never_due = Result(Request(1, "C1", due_s=math.inf), Verdict.OK, (Finding("e", "fp32", "ok", math.nan),), math.inf)
    for result in (NG, never_due):
        row = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert row == json.loads(to_line(result))
        assert from_line(json.dumps(row).encode(), 0).verdict is result.verdict
    table = Result(Request(1, "<b>C1</b>"), Verdict.NG, (Finding("<i>", "fp32", "&", 0.5),), 0.1)._repr_html_()
    assert ("<b>" in table, "<i>" in table, "NG" in table) == (False, False, True)
    assert "why not" in Result(Request(1, "C1"), None, (), 0.0, Failure(FailureKind.LOAD, "why not"))._repr_html_()


def test_errors_that_the_page_of_the_api_names_come_with_the_package():
    import coe
    import coe.errors

    page = (pages.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(?:coe\.)?([A-Z]\w+)`", page) if hasattr(coe.errors, name)}
    assert {"ConfigError", "LineFull", "LineClosed", "WouldWaitForItself"} <= named
    assert named <= set(coe.__all__)
    assert all(getattr(coe, name) is not None for name in coe.__all__)


@pytest.mark.parametrize("count", [1, 6, 13])
def test_a_legend_of_long_names_stays_on_the_sheet(count):
    figure, name = sheet((12.5, 4.0), None), "resnet101, onnxruntime, bf16, 224 px, {} threads"
    head(figure, "title", [Line2D([], [], label=name.format(index)) for index in range(count)])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def table(*results):
    return list(csv.reader(io.StringIO("".join(rows(results)), newline="")))


def named(image, serial="", component="R", refdes=""):
    return Result(Request(0, component, image, serial, refdes), Verdict.OK, (), 0.25)


def restored(cell):
    return cell[1:] if cell.startswith("'") and guarded(cell[1:]) == cell else cell


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(sign):
    text = f"{sign}cmd|' /C calc'!A0"
    finding = Finding(text, "fp32", "ok", 1.0)
    failed = Result(Request(0, text, text, text, text), None, (finding,), 0.0, Failure(FailureKind.RUN, text))
    heads, row = table(failed)
    assert tuple(heads) == COLUMNS
    cells = [cell for name, cell in zip(COLUMNS, row, strict=True) if name not in ("verdict", "latency_s", "late")]
    assert all(cell.startswith("'" + sign) for cell in cells)
    assert restored(row[0]) == text


@pytest.mark.parametrize(
    "name", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "a\r", "\r", "\n", "a;b", "a\tb", "a\x85b", "a\x0bb"]
)
def test_a_name_never_splits_a_row(name, tmp_path):
    write_atomically(tmp_path / "t.csv", rows([named(name, "SN1"), named("after")]))
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        _, first, second = csv.reader(file)
    assert (restored(first[0]), first[1], second[0]) == (name, "SN1", "after")
    # A reader that takes a carriage return outside quotes for the end of a row finds none there.
    text = (tmp_path / "t.csv").read_bytes().decode()
    outside = "".join(part for at, part in enumerate(text.split('"')) if at % 2 == 0)
    assert "\r" not in outside


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\nab ＝"), max_size=6))
def test_every_name_is_given_back(text):
    assert restored(guarded(text)) == text


@given(texts(8), texts(8))
def test_two_names_never_share_a_cell(one, other):
    assert (guarded(one) == guarded(other)) == (one == other)


@pytest.mark.parametrize("name", ["R0402", "SN1/R1__R0402.png", "'quoted'", "a=b", " =1", "1-2"])
def test_an_ordinary_name_stays_as_it_is(name):
    assert table(named(name))[1][0] == name


def test_a_column_names_the_board_where_there_are_several():
    of_board = {name: dataclasses.replace(named("i"), request=Request(0, "R", "i", board=name)) for name in ("a", "b")}
    assert tuple(table(of_board["a"])[0]) == COLUMNS
    heads, *rest = table(of_board["a"], of_board["b"])
    assert tuple(heads) == (*COLUMNS, "board")
    assert [row[-1] for row in rest] == ["a", "b"]
