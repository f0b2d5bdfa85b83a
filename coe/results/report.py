"""`report.html`: a page that needs no other file. Jinja2 alone escapes all text that comes from outside.

The text of the page is in `report.html.j2`; this file prepares the results for it. The page loads nothing (its content
security policy forbids it), and can be read without scripts and on paper.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from coe import config
from coe.board.completeness import is_absent
from coe.core import FULL, Result, Verdict
from coe.helpers.files import write_atomically
from coe.helpers.visible import visible
from coe.pictures.photographs import natural
from coe.placement.board_view import LOCATION_STEP
from coe.results.drawing import shown_score
from coe.results.report_cards import CropMark, EmbeddedPicture, PixelSource, card
from coe.results.run_file import RunUsed
from coe.results.summary import OutcomeCounts, Summary, is_skipped

TAGGED_BOXES = 3
"""Up to this many boxes have their label in the picture; if there are more, each has a number, and its label below."""
STRIP_COLUMNS = 40
NAMED_PER_BOARD = 6
UNFOLDED_BOARDS = 24
UNFOLDED_ROWS = 20
"""Further boards or components are folded behind a line, so that the pictures are never far down."""

_ORDER = {"NG": 0, "ERROR": 1, "REVIEW": 2, "MISSING": 3, "SKIPPED": 4, "OK": 5}


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A board at a glance: its strip of `cells`, (outcome, column, row) for each image.

    `named` are the images that keep it from being OK, the worst first. `picture` is there for the worst boards of a run
    of whole boards.
    """

    serial: str
    counts: OutcomeCounts
    cells: tuple[tuple[str, int, int], ...]
    columns: int
    rows: int
    named: tuple[tuple[str, str], ...]
    unnamed: int
    picture: EmbeddedPicture | None = None


def write_report(
    path: Path,
    board: str,
    results: Sequence[Result],
    summary: Summary,
    source: PixelSource,
    *,
    pictures: int = config.REPORT_PICTURES,
    side: int = config.REPORT_PICTURE_SIDE,
    used: RunUsed | None = None,
) -> None:
    """Write the report of a run, as a whole or not at all.

    It shows the first `pictures` NG and REVIEW images, which `source` gives, each beside its reference and the
    difference of both, if it has a reference. `used` is what the run was made with. Raises DiskFull, or NotWritten for
    another reason.
    """
    uncut = Counter(map(_uncut, results))
    firsts = [result for result in _firsts(results) if not is_absent(result)]
    shown = [result for verdict in (Verdict.NG, Verdict.REVIEW) for result in firsts if result.verdict is verdict]
    in_gallery = [result.request for result in shown[:pictures]]
    components = sorted({summary.titled(request, request.component) for request in in_gallery}, key=natural)
    content = page(
        "report.html.j2",
        board=board,
        summary=summary,
        boards=_boards(results, summary, source),
        components=sorted(summary.components.items(), key=lambda named: named[1].good_share or 0.0),
        cards=(replace(card(r, source, side), alike=uncut[_uncut(r)] - 1) for r in shown[:pictures]),
        shown=min(len(shown), pictures),
        left_out=max(0, len(shown) - pictures),
        gallery_components=components,
        errors=[result for result in results if result.error is not None and not is_skipped(result)],
        used=used,
        exams=() if used is None else used.exams,
    )
    write_atomically(path, content)


def page(template: str, **shown: object) -> Iterator[str]:
    """Yield the parts of a page, by the name of its template, which is the report's or extends it."""
    main = _environment().get_template("report.html.j2")
    script = "".join(main.blocks["script"](main.new_context()))
    return (
        _environment()
        .get_template(template)
        .generate(
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            full=FULL,
            location_step=LOCATION_STEP,
            tagged_boxes=TAGGED_BOXES,
            unfolded_boards=UNFOLDED_BOARDS,
            unfolded_rows=UNFOLDED_ROWS,
            **shown,
        )
    )


@cache
def _environment() -> Environment:
    """Return what keeps the templates; they take longer to compile than a small report takes to write."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": config.format_bytes,
        "duration": _duration,
        "moment": _moment,
        "percent": config.percent,
        "score": shown_score,
    }
    return environment


def _shown(value: object) -> object:
    """Return a value with its hidden characters made visible, so that no name looks like another. Markup stays."""
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def outcome(result: Result) -> str:
    """Return the verdict as a word, or SKIPPED or ERROR without a verdict."""
    return result.verdict.value if result.verdict else "SKIPPED" if is_skipped(result) else "ERROR"


def _boards(results: Iterable[Result], summary: Summary, source: PixelSource) -> list[BoardRow]:
    by_serial: dict[str, list[Result]] = {serial: [] for serial in summary.boards}
    for result in results:
        if (serial := summary.titled(result.request, result.request.serial)) in by_serial:
            by_serial[serial].append(result)
    boards = [_board(serial, by_serial[serial], counts) for serial, counts in summary.boards.items()]
    boards.sort(key=lambda board: -board.counts.verdict.severity)  # stable: natural order within a verdict
    for index, board in enumerate(boards[: config.REPORT_BOARDS]):
        boards[index] = replace(board, picture=_whole(board.serial, by_serial[board.serial], source))
    return boards


def _whole(serial: str, results: list[Result], source: PixelSource) -> EmbeddedPicture | None:
    """Return the picture of a whole board with the outcome of each of its crops; None if there is none."""
    try:
        view = source.board(serial)
    except Exception:  # the caller's function failed: the report can do without a picture
        return None
    if view is None:
        return None
    marks = [
        CropMark(outcome(result), _place(result), " ".join(f"{x:.1f},{y:.1f}" for x, y in view.crops[name]))
        for result in sorted(results, key=lambda result: -_ORDER[outcome(result)])
        if (name := result.request.image) in view.crops
    ]
    return EmbeddedPicture.of(view.pixels, config.REPORT_BOARD_SIDE, marks=tuple(marks), note=view.note)


def _board(serial: str, results: list[Result], counts: OutcomeCounts) -> BoardRow:
    results = sorted(results, key=lambda result: natural(_place(result)))
    outcomes = [outcome(result) for result in results] + ["MISSING"] * counts.missing
    cells = tuple((word, at % STRIP_COLUMNS, at // STRIP_COLUMNS) for at, word in enumerate(outcomes))
    faults = [result for result in results if outcome(result) not in ("OK", "SKIPPED")]
    faults.sort(key=lambda result: _ORDER[outcome(result)])
    named = tuple((outcome(result), _place(result)) for result in faults[:NAMED_PER_BOARD])
    columns, rows = min(len(cells), STRIP_COLUMNS), math.ceil(len(cells) / STRIP_COLUMNS)
    return BoardRow(serial, counts, cells, columns, rows, named, max(0, len(faults) - NAMED_PER_BOARD))


def _place(result: Result) -> str:
    return result.request.refdes or result.request.component or result.request.image


def _uncut(result: Result) -> tuple[str, str] | None:
    """Return the board of a component that was not cut out of it, and the reason; None for other images."""
    if not result.findings or result.findings[0].expert != LOCATION_STEP:
        return None
    return f"{result.request.board}/{result.request.serial}", result.findings[0].doubt


def _firsts(results: Iterable[Result]) -> Iterator[Result]:
    """Yield the results, but of the components that were not cut for one reason, the first of a board alone."""
    seen: set[tuple[str, str]] = set()
    for result in results:
        reason = _uncut(result)
        if reason is None or reason not in seen:
            yield result
        if reason is not None:
            seen.add(reason)


def _moment(text: str) -> str:
    """Write an ISO date and time for people; any other text stays unchanged."""
    try:
        return datetime.fromisoformat(text).strftime("%d %B %Y, %H:%M").lstrip("0")
    except ValueError:
        return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
