"""`report.html`: a page that needs no other file. Jinja2 alone escapes all text that comes from outside.

The text of the page is in `report.html.j2`; this file prepares the results for it. The page loads nothing (its content
security policy forbids it), and can be read without scripts and on paper.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from coe import config
from coe.board.completeness import is_absent
from coe.core import FULL, Box, Finding, Result, Verdict, deciding
from coe.errors import CoeError
from coe.files import write_atomically
from coe.pictures.finding import natural
from coe.placement.board_view import LOCATION_STEP, BoardView
from coe.results.drawing import enlarged_pair, heated, shown_score
from coe.results.run_used import RunUsed
from coe.results.summary import OutcomeCounts, Summary, is_skipped
from coe.visible import visible

TAGGED_BOXES = 3
"""Up to this many boxes have their label in the picture; if there are more, each has a number, and its label below."""
STRIP_COLUMNS = 40
NAMED_PER_BOARD = 6
UNFOLDED_BOARDS = 24
UNFOLDED_ROWS = 20
"""Further boards or components are folded behind a line, so that the pictures are never far down."""

_ORDER = {"NG": 0, "ERROR": 1, "REVIEW": 2, "MISSING": 3, "SKIPPED": 4, "OK": 5}


@dataclass(frozen=True, slots=True)
class CropMark:
    """The outline of a crop in the picture of a board, as the points of a polygon, and the crop's outcome."""

    outcome: str
    place: str
    points: str


@dataclass(frozen=True, slots=True)
class BoxMark:
    """A box: pixels for its drawing, percents of the picture for its tag."""

    box: Box
    number: int
    decides: bool
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class EmbeddedPicture:
    """A picture as a data address, the size in pixels of the original, and what is drawn over it, the last on top.

    `title` and `note` stand under it, and `checksum` is shown where a reader points.
    """

    address: str
    width: int
    height: int
    marks: tuple[BoxMark, ...] | tuple[CropMark, ...] = ()
    title: str = ""
    note: str = ""
    checksum: str = ""

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], side: int, **said: Any) -> EmbeddedPicture:
        """Embed pixels (H, W, 3) or (H, W) as a JPEG of up to `side` pixels a side."""
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=82, optimize=True)
        address = "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
        return cls(address, pixels.shape[1], pixels.shape[0], **said)


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


@dataclass(frozen=True, slots=True)
class Card:
    """An image of the gallery; `picture` is None if it can no longer be read.

    `beside` holds what stands beside it: its reference, and the difference of both, if its experts compared them; and
    the heat map of each expert that made one. `alike` further images of its board were not cut out for its reason.
    `lost` says why its reference is not shown, `said` what a person said of it.
    """

    result: Result
    picture: EmbeddedPicture | None
    boxes: tuple[Box, ...]
    beside: tuple[EmbeddedPicture, ...] = ()
    alike: int = 0
    lost: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class ReferencePicture:
    """The good part with which an image was compared: `image` (H, W, 3) and `spread` (H, W), uint8, None for 0.

    `name` says which it is, as "demo/U1, version 3"; `checksum` is that of the store, "" for a given reference.
    """

    image: NDArray[np.uint8]
    spread: NDArray[np.uint8] | None = None
    name: str = "given with the image"
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class PixelSource:
    """Where the pixels of an image come from, by its name in the results, and the reference that it was compared with.

    `image` returns (H, W, 3) uint8 RGB; `reference` returns None for an image without a reference. `board` returns a
    whole board by its serial, as the summary names it, or None. They are called for what the report shows, one at a
    time. If one raises, only that picture is missing.
    """

    image: Callable[[str], NDArray[np.uint8]]
    reference: Callable[[Result], ReferencePicture | None] = lambda result: None
    board: Callable[[str], BoardView | None] = lambda serial: None


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
        "percent": percent,
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


def card(result: Result, source: PixelSource, side: int, said: str = "") -> Card:
    """Return an image for the gallery, with pictures of up to `side` pixels."""
    pairs = [(finding, box) for finding in deciding(result.findings) for box in finding.boxes]
    pairs.sort(key=lambda pair: (pair[1].label != pair[0].label, -pair[1].score))  # deciding boxes come first
    boxes = tuple(box for _, box in pairs)
    try:
        pixels = source.image(result.request.image)
        height, width = pixels.shape[:2]
        picture = EmbeddedPicture.of(pixels, side, marks=tuple(_marks(pairs, width, height)))
    except Exception:  # the caller's function failed: the report can do without a picture
        return Card(result, None, boxes, said=said)
    reference, lost = None, ""
    try:
        reference = source.reference(result)
    except CoeError as error:
        lost = f"The reference is not shown: {error}."
    except Exception:  # as for the image
        lost = "The reference can no longer be read."
    compared = () if reference is None else _beside(pixels, reference, side)
    return Card(result, picture, boxes, (*compared, *_heat_maps(result, pixels, side)), lost=lost, said=said)


def _beside(pixels: NDArray[np.uint8], reference: ReferencePicture, side: int) -> Iterator[EmbeddedPicture]:
    """Yield the reference of an image, and the difference of both, as the experts see it, if they can be compared."""
    from coe.comparing.comparison import compare

    checksum = reference.checksum
    yield EmbeddedPicture.of(reference.image, side, title="Reference", note=reference.name, checksum=checksum)
    try:
        difference = compare(pixels, reference.image, reference.spread).difference
    except Exception:  # a report of hours of work can do without the difference
        return
    if difference is not None:
        yield EmbeddedPicture.of(difference, side, title="Difference", note="brighter is more")


def _heat_maps(result: Result, pixels: NDArray[np.uint8], side: int) -> Iterator[EmbeddedPicture]:
    """Yield the heat map of each deciding finding over the image in grey: the redder, the higher its score there.

    After it come what deviates most, and what is most like it in good parts, if the kind tells.
    """
    for finding in deciding(result.findings):
        if finding.heat is not None:
            yield EmbeddedPicture.of(heated(pixels, finding.heat), side, title="Heat map")
        if (likeness := finding.likeness) is not None:
            here, good = enlarged_pair(pixels, likeness)
            yield EmbeddedPicture.of(here, side, title="Most unlike", note="cut out of the image")
            yield EmbeddedPicture.of(good, side, title="Nearest good", note="the most like it of all good parts")


def _marks(pairs: Iterable[tuple[Finding, Box]], width: int, height: int) -> Iterator[BoxMark]:
    for number, (finding, box) in enumerate(pairs, 1):
        if not all(map(math.isfinite, box.xyxy)):
            continue
        x0, x1 = (min(max(x, 0.0), width) for x in (box.xyxy[0], box.xyxy[2]))
        y0, y1 = (min(max(y, 0.0), height) for y in (box.xyxy[1], box.xyxy[3]))
        if x1 < x0 or y1 < y0:
            continue
        drawn = Box(box.label, box.score, (round(x0, 2), round(y0, 2), round(x1, 2), round(y1, 2)))
        percents = (100 * x0 / width, 100 * y0 / height, 100 * x1 / width, 100 * y1 / height)
        left, top, right, bottom = (round(percent, 2) for percent in percents)
        yield BoxMark(drawn, number, box.label == finding.label, left, top, right, bottom)


def percent(share: float | None) -> str:
    """Write a share for people; a share is never rounded up to 100 % or down to 0 %."""
    if share is None or not math.isfinite(share):
        return "–"
    percent = round(100 * share, 1)
    if share < 1:
        percent = min(percent, 99.9)
    if share > 0:
        percent = max(percent, 0.1)
    return f"{percent:g}\N{NO-BREAK SPACE}%"


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
