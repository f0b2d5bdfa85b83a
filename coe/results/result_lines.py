"""A result as a line of `results.jsonl`, and back. Every value of a line is checked before it is used."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from coe.core import Box, Failure, FailureKind, Finding, Heat, Likeness, Request, Result, Shown, Verdict
from coe.pictures.picture_file import FileStamp


def to_line(result: Result, taken: FileStamp | None = None) -> str:
    """Return a result as a line of JSON, with its line feed. Infinity and values that are not numbers become null.

    `taken` says of which file of the image's name the result is.
    """
    row = result.to_dict()
    if taken is not None:
        row["taken"] = {"bytes": taken.bytes, "modified_ns": taken.modified_ns}
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def taken_of(line: bytes) -> FileStamp | None:
    """Return of which file the result in a sound line is; None if it does not say. Raises ValueError."""
    taken = json.loads(line).get("taken") if b'"taken"' in line else None
    if taken is None:
        return None
    try:
        return FileStamp(int(taken["bytes"]), int(taken["modified_ns"]))
    except (KeyError, TypeError) as error:
        raise ValueError("`taken` does not identify its file") from error


def from_line(line: bytes, number: int) -> Result:
    """Read a line; `number` becomes the request's id. Raises ValueError with a reason if the line is not a result."""
    try:
        return _result(json.loads(line), number)
    except KeyError as error:
        raise ValueError(f"it has no {error}") from error
    except (TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _result(row: Any, number: int) -> Result:
    if (row["verdict"] is None) == (row["error"] is None):
        raise ValueError("it needs a verdict or an error, and not both")
    findings = tuple(finding_of(finding) for finding in row["findings"])
    component, image, serial, refdes = (_text(row[name]) for name in ("component", "image", "serial", "refdes"))
    request = Request(number, component, image, serial, refdes, board=_text(row.get("board", "")))
    verdict = None if row["verdict"] is None else Verdict(row["verdict"])
    failure = None if row["error"] is None else Failure(FailureKind(row["failure"]), _text(row["error"]))
    late = row.get("late", False) is True
    accepted = tuple(map(Shown, row.get("accepted", ())))
    return Result(request, verdict, findings, _float(row["latency_s"]), failure, late, accepted)


def finding_of(row: Any) -> Finding:
    """Return the finding of a row of `Finding.to_dict`; raises KeyError, TypeError or ValueError for another row."""
    return Finding(
        _text(row["expert"]),
        _text(row["variant"]),
        _text(row["label"]),
        _float(row["score"]),
        tuple(_box(box) for box in row["boxes"]),
        doubt=_text(row.get("doubt", "")),
        heat=_heat(row.get("heat")),
        likeness=_likeness(row.get("likeness")),
        read=None if row.get("read") is None else _text(row["read"]),
        allowed=tuple(map(_text, row.get("allowed", ()))),
        reference=_text(row.get("reference", "")),
        caution=_text(row.get("caution", "")),
    )


def _box(box: Any) -> Box:
    x0, y0, x1, y1 = map(_float, box["xyxy"])
    return Box(_text(box["label"]), _float(box["score"]), (x0, y0, x1, y1))


def _heat(row: Any) -> Heat | None:
    if row is None:
        return None
    return Heat(int(row["rows"]), int(row["columns"]), base64.b64decode(_text(row["values"]), validate=True))


def _likeness(row: Any) -> Likeness | None:
    if row is None:
        return None
    x1, y1, x2, y2 = map(_float, row["box"])
    return Likeness(int(row["side"]), base64.b64decode(_text(row["pixels"]), validate=True), (x1, y1, x2, y2))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where there must be text")
    return value


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
