"""The table of a run's results: no cell is a formula, and every name is given back."""

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.helpers.files import write_atomically
from coe.results.csv_table import COLUMNS, guarded, restored, rows


def table(*results):
    return list(csv.reader(io.StringIO("".join(rows(results)), newline="")))


def named(image, serial="", component="R", refdes=""):
    return Result(Request(0, component, image, serial, refdes), Verdict.OK, (), 0.25)


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
    of_board = {name: replace(named("i"), request=Request(0, "R", "i", board=name)) for name in ("a", "b")}
    assert tuple(table(of_board["a"])[0]) == COLUMNS
    heads, *rest = table(of_board["a"], of_board["b"])
    assert tuple(heads) == (*COLUMNS, "board")
    assert [row[-1] for row in rest] == ["a", "b"]
