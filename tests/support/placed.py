"""Placement files read for tests, with a unit as a person says it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import openpyxl

from coe.bring.parts import converting
from coe.bring.parts.answers import AS_IT_IS
from coe.bring.parts.bom import read_bom


def _with(answers, units):
    return answers.with_more({"unit": units}) if units else answers


def written(path, content):
    """Write a text, bytes, or the rows of a spreadsheet, and return the path."""
    if isinstance(content, list):
        book = openpyxl.Workbook()
        for row in content:
            book.active.append(row)
        book.save(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read_file(path, units="", answers=AS_IT_IS):
    return converting.read_file(path, _with(answers, units), None)


def parse_file(path, raw, units="", answers=AS_IT_IS, bom=None):
    with TemporaryDirectory() as folder:
        return converting.read_file(written(Path(folder) / path, raw), _with(answers, units), bom)


def read_placements(path, units="", answers=AS_IT_IS):
    return read_file(path, units, answers).placements


def parse_placements(path, raw, units="", answers=AS_IT_IS):
    return parse_file(path, raw, units, answers).placements


def parse_bom(path, raw, answers=AS_IT_IS, **more):
    return read_bom(path, answers, raw=raw, **more)
