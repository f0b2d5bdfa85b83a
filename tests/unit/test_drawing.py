"""A result as JSON, as a table, and drawn into its image."""

import dataclasses
import json
import math
import re

import numpy as np
import pages
import pytest
from matplotlib.lines import Line2D

from coe import Box, Failure, FailureKind, Finding, Request, Result, Verdict, draw
from coe.core import Heat
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
