"""What leaves the service: reports of a time as tables, verified pictures as labelled folders."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import Field, ValidationError
from sqlalchemy import Connection, select
from starlette.responses import Response, StreamingResponse

from coe.core import NOTHING, Verdict
from coe.errors import CoeError, ImageError
from coe.helpers import system
from coe.helpers.files import save_tree
from coe.helpers.strict_model import StrictModel
from coe.pictures.picture_file import PictureFile
from coe.results import csv_table, marks
from coe.results.marks import PictureMark
from coe.serve.clock import DAY_US, iso
from coe.serve.component_pictures import CropPlace, Cutter
from coe.serve.database import audit, recipe_versions
from coe.serve.database.board_rows import unpack
from coe.serve.database.connecting import Database
from coe.serve.database.hourly import Window, decided_in, of_recipe
from coe.serve.database.repairs import SuspectedPictures
from coe.serve.database.tables import Recipe, board, call, recipe, verification, view
from coe.serve.enums import Outcome
from coe.serve.gate import stats_routes
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ENGINEER, READ, JsonForm, OperationRouter, Visit
from coe.serve.gate.recipe_routes import expect_recipe
from coe.serve.gate.stats_routes import WindowQuery
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent
from coe.serve.text_checks import Text

# Verified pictures as labelled folders for training. A person's word gives the label, and a folder is whole
FOLDER, MANIFEST = "exports", "manifest.json"  # exports in the folder of a service, and the manifest in each
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_GONE = "the picture is deleted"
_UNSAID = "no answer has a label that can be the name of a folder"
_PASSES = "it is a defect, but its label is one that passes: the answer names no defect"
_ESCAPED = "a later test found a defect there"
_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp"}  # first bytes of a picture's file; others are TIFF
_GOOD_BOARDS = 200  # how many boards are looked through for pictures of good parts


@dataclass(frozen=True, slots=True)
class Example:
    """A picture and its label; `file` is its path in the export, `outcome` None for a part that the line called OK.

    `sha256` is that of the exported file. `place` says where the part lies in the view of a whole board, out of which
    it is cut as the experts saw it; None if the view shows it alone.
    """

    file: str
    expert: str
    label: str
    outcome: Outcome | None
    board: int | None
    refdes: str
    component: str
    sha256: str
    call: int | None = None
    verified_by: str = ""
    verified: str = ""
    source: str = ""
    place: Any = None


@dataclass(frozen=True, slots=True)
class Export:
    """An export: its name, the number of pictures by expert and label, and why the others were left out."""

    name: str
    counts: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExportScope:
    """What is exported: answers from `start_us` on and before `end_us`; of a recipe; so many good parts by label."""

    start_us: int
    end_us: int
    recipe: str = ""
    good: int = 0


def export(
    database: Database, pictures: Pictures, folder: Path, asked: ExportScope, now_us: int, *, limit_pixels: int
) -> Export:
    """Write an export into a new folder below `folder`; raises DatabaseError, and OSError.

    A view of more than `limit_pixels` is not cut. A crash leaves a hidden folder that no export is; nothing is deleted
    from the pictures.
    """
    with database.reading() as connection:
        suspects = SuspectedPictures(connection)
        good = _good(connection, asked, suspects)
        answered, unlabelled = _answered(connection, asked, good, suspects)
    left_out = Counter(unlabelled.values())
    cutter = Cutter(kept_pixels=limit_pixels)
    name = iso(now_us)[:19].replace(":", "") + "-" + secrets.token_hex(3)
    staging = folder / f".{name}"
    staging.mkdir(parents=True)
    try:
        kept = []
        # The parts of a view one after the other, so that each view is decoded once.
        examples = [*answered, *_limited(good, asked.good)]
        for example in sorted(examples, key=lambda one: one.source if one.place else ""):
            try:
                kept.append(_written(pictures.path(example.source), example, staging, cutter, limit_pixels))
            except FileNotFoundError:  # retention was quicker
                left_out[_GONE] += 1
            except ImageError:
                left_out["the picture cannot be read"] += 1
        manifest = {
            "made": iso(now_us),
            "from": iso(asked.start_us),
            "until": iso(asked.end_us),
            "recipe": asked.recipe,
            "left_out": dict(left_out),
            "left_out_calls": [{"call": call, "why": why} for call, why in unlabelled.items()],
            "pictures": [_row(example) for example in kept],
        }
        marks.write(staging, (_mark(example) for example in kept if example.outcome is not None))
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        save_tree(staging)
        staging.rename(folder / name)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    system.save_names(folder)
    return Export(name, _counts(kept), dict(left_out))


def _mark(example: Example) -> PictureMark:
    said = {"component": example.component, "by": example.verified_by, "at": example.verified}
    return PictureMark(image=example.file, label=example.label, expert=example.expert, **said)


def _answered(
    connection: Connection, asked: ExportScope, good: Sequence[Example], suspects: SuspectedPictures
) -> tuple[list[Example], dict[int, str]]:
    query = (
        select(call, verification.c.outcome, verification.c.label.label("word"), verification.c.verified_us,
               verification.c.verified_by, view.c.file, view.c.sha256, view.c.removed_us, board.c.recipe_id)
        .join(verification, verification.c.id == call.c.verification_id)
        .join(board, board.c.id == call.c.board_id)
        .outerjoin(view, view.c.id == call.c.view_id)
        .where(verification.c.verified_us >= asked.start_us, verification.c.verified_us < asked.end_us)
        .where(of_recipe(asked.recipe, board.c.recipe_id))
        .order_by(call.c.id)
    )  # fmt: skip
    examples, left_out = [], dict[int, str]()
    good_labels = {expert: labels.most_common(1)[0][0] for expert, labels in _counts(good).items()}
    rows = connection.execute(query).all()
    passing = Passing(connection, {row.recipe_id for row in rows}, ((one.expert, one.label) for one in good))
    for row in rows:
        is_good = row.outcome is Outcome.FALSE_CALL
        label = row.word or _unsaid_label(row, good_labels, good=is_good)
        why = _why_not(row, label)
        if not (why or is_good) and passing.may_pass(row.expert, label, said=bool(row.word), verdict=row.verdict):
            why = _PASSES
        if is_good and suspects.has(row.board_id, row.refdes):
            why = _ESCAPED
        if why:
            left_out[row.id] = why
            continue
        file = f"{row.expert}/{label}/call-{row.id}"
        examples.append(
            Example(file, row.expert, label, row.outcome, row.board_id, row.refdes, row.component, row.sha256, row.id,
                    row.verified_by, iso(row.verified_us), row.file, row.place)
        )  # fmt: skip
    return examples, left_out


def _unsaid_label(row: Any, good_labels: Mapping[str, str], *, good: bool) -> str:
    return good_labels.get(row.expert, "") if good else row.label


class Passing:
    """Labels by expert that do not speak against a part in some version, and those in `found`, of OK parts."""

    def __init__(self, connection: Connection, recipe_ids: Iterable[int], found: Iterable[tuple[str, str]]) -> None:
        self._passing, self._known = set(found), set[str]()
        for id in recipe_ids:
            self._add(recipe_versions.get(connection, id))

    def _add(self, recipe: Recipe) -> None:
        try:
            components = RecipeContent.model_validate(recipe.content).board(recipe.name).components.values()
        except (CoeError, ValidationError):  # its experts stay unknown
            return
        for step in {step for component in components for step in component.root.walk()}:
            self._known.add(step.expert)
            self._passing |= {
                (step.expert, label)
                for label, outcome in step.outcomes.items()
                if outcome not in (Verdict.NG, Verdict.REVIEW)
            }

    def may_pass(self, expert: str, label: str, *, said: bool, verdict: Verdict) -> bool:
        """Tell whether a label, `said` by a person or an expert, may pass, so that no defect must stand under it."""
        if label == NOTHING or (expert, label) in self._passing:
            return True
        return expert not in self._known and not said and verdict is not Verdict.NG


def _why_not(row: Any, label: str) -> str:
    if row.file is None or row.removed_us is not None:
        return _GONE
    if row.place is not None and CropPlace.of(row.place) is None:
        return "the place of the part on its board is unknown"
    if not _PLAIN.fullmatch(row.expert):
        return "no expert decided"
    return "" if _PLAIN.fullmatch(label) else _UNSAID


def _written(source: Path, example: Example, folder: Path, cutter: Cutter, limit_pixels: int) -> Example:
    """Copy a picture, or cut a part out of it, and return it with path and digest; raises OSError, ImageError."""
    place = CropPlace.of(example.place)
    with source.open("rb") as file:
        suffix = ".png" if place else _SUFFIXES.get(file.read(2), ".tif")
    named = replace(example, file=example.file + suffix)
    view = PictureFile(source, example.sha256)
    part = Image.fromarray(cutter.cut(view, place, limit_pixels)) if place else None
    target = folder / named.file
    target.parent.mkdir(parents=True, exist_ok=True)  # once there is a picture: a folder is a label
    if part is None:
        shutil.copyfile(source, target)
        return named
    part.save(target, "png", compress_level=1)
    return replace(named, sha256=hashlib.sha256(target.read_bytes()).hexdigest())


def _good(connection: Connection, asked: ExportScope, suspects: SuspectedPictures) -> list[Example]:
    """Return pictures of parts that the line called OK, the newest boards first, by the last expert that saw each."""
    decided = (*decided_in(Window(asked.start_us, asked.end_us, asked.recipe)), board.c.findings.is_not(None))
    query = select(board.c.id, board.c.findings, board.c.key).where(*decided)
    examples = []
    for row in connection.execute(query.order_by(board.c.id.desc()).limit(_GOOD_BOARDS)):
        # A part on which a person gave a word is exported with that word.
        asked_about = set(connection.scalars(select(call.c.refdes).where(call.c.board_id == row.id)))
        of_board = select(view).where(view.c.board_key == row.key, view.c.removed_us.is_(None))
        views = {row_of_view.id: row_of_view for row_of_view in connection.execute(of_board)}
        for number, part in enumerate(unpack(row.findings)):
            if part.view_id not in views or part.refdes in asked_about or not part.findings:
                continue
            if suspects.has(row.id, part.refdes):
                continue
            if part.place is not None and CropPlace.of(part.place) is None:
                continue
            expert, label = part.findings[-1]["expert"], part.findings[-1]["label"]
            if not (_PLAIN.fullmatch(expert) and _PLAIN.fullmatch(label)):
                continue
            picture = views[part.view_id]
            which = f"{picture.id}" if part.place is None else f"{picture.id}-{number}"
            examples.append(
                Example(f"{expert}/{label}/good-{which}", expert, label, None, row.id, part.refdes, part.component,
                        picture.sha256, source=picture.file, place=part.place)
            )  # fmt: skip
    return examples


def _limited(good: Sequence[Example], most: int) -> list[Example]:
    taken: Counter[tuple[str, str]] = Counter()
    limited = []
    for example in good:
        taken[example.expert, example.label] += 1
        if taken[example.expert, example.label] <= most:
            limited.append(example)
    return limited


def _counts(examples: Sequence[Example]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for example in examples:
        counts[example.expert][example.label] += 1
    return counts


def _row(example: Example) -> dict[str, Any]:
    row = {name: value for name, value in asdict(example).items() if name != "source"}
    return row | {"outcome": example.outcome and example.outcome.value}


router = OperationRouter()
TOGETHER = 2000  # how many calls are read at a time
_CSV = "text/csv; charset=utf-8"
_EXPORT = JsonForm("Export", Export, "counts left_out export=name", {"folder": str, "manifest": str})
_MARK = "\ufeff"  # spreadsheets take a table without this mark for one of the characters of the country


_FIGURES = "name title value unit lower upper events trials asked open missing definition"
_CALLS = (
    "board serial key recipe version decided refdes component verdict reason expert label score "
    "outcome said_label note answered by pass"
)


@router.read("/api/v1/reports/figures.csv", READ, query=WindowQuery, sends="text/csv")
def figures_csv(visit: Visit, connection: Connection) -> Response:
    """Get figures as CSV. Each has its bounds."""
    window = stats_routes.window_of(visit, connection)
    names = _FIGURES.split()
    figures = stats_routes.counts(connection, window).figures
    rows = ([getattr(one, name) for name in names] for one in figures)
    text = _MARK + "".join(_line(values) for values in (names, *rows))
    return Response(text, media_type=_CSV, headers=_named(visit.gate, window, "figures"))


@router.add("GET", "/api/v1/reports/calls.csv", ENGINEER, query=WindowQuery, sends="text/csv")
async def calls_csv(visit: Visit) -> Response:
    """Get calls as CSV. Each has its latest answer."""
    window = await visit.gate.read(partial(stats_routes.window_of, visit))
    headers = _named(visit.gate, window, "calls")
    return StreamingResponse(_calls(visit, window), media_type=_CSV, headers=headers)


async def _calls(visit: Visit, window: Window) -> AsyncIterator[str]:
    gate = visit.gate
    yield _MARK + _line(_CALLS.split())
    after = (window.start_us, 0)
    while rows := await gate.read(partial(_some_calls, window, after)):
        yield "".join(_line(_cells(gate, row)) for row in rows)
        after = (rows[-1].opened_us, rows[-1].id)


def _some_calls(window: Window, after: tuple[int, int], connection: Connection) -> list[Any]:
    opened_us, id = after
    is_after = (call.c.opened_us > opened_us) | ((call.c.opened_us == opened_us) & (call.c.id > id))
    query = (
        select(call, board.c.serial, board.c.key, board.c.pass_number, board.c.decided_us)
        .add_columns(recipe.c.name.label("recipe"), recipe.c.version)
        .add_columns(verification.c.outcome, verification.c.label.label("said_label"), verification.c.note)
        .add_columns(verification.c.verified_us, verification.c.verified_by)
        .join(board, board.c.id == call.c.board_id)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(call.c.opened_us < window.end_us, is_after)
        .where(of_recipe(window.recipe, board.c.recipe_id))
        .order_by(call.c.opened_us, call.c.id)
        .limit(TOGETHER)
    )
    return list(connection.execute(query))


def _cells(gate: Gate, row: Any) -> Sequence[object]:
    def time(moment_us: int | None) -> str:
        return "" if moment_us is None else gate.config.local.at(moment_us).isoformat(sep=" ", timespec="seconds")

    return (
        row.board_id, row.serial, row.key, row.recipe, row.version, time(row.decided_us), row.refdes, row.component,
        row.verdict, row.reason, row.expert, row.label, row.score, row.outcome, row.said_label, row.note,
        time(row.verified_us), row.verified_by, row.pass_number,
    )  # fmt: skip


def _line(values: Iterable[object]) -> str:
    return csv_table.row("" if value is None else str(value) for value in values)


def _named(gate: Gate, window: Window, name: str) -> dict[str, str]:
    begins = gate.config.local.at(window.start_us)
    return {"Content-Disposition": f'attachment; filename="{name}-{begins:%Y-%m-%dT%H%M}.csv"'}


class ExportRequest(StrictModel):
    """Answers of the last `days`; of one recipe's boards; and up to `good` good parts of each expert and label."""

    days: Annotated[int, Field(ge=1, le=36500)] = 30
    recipe: Text = ""
    good: Annotated[int, Field(ge=0, le=100_000)] = 500


@router.add("POST", "/api/v1/exports", ENGINEER, body=ExportRequest, sends=_EXPORT, status=201)
async def post_export(visit: Visit) -> Mapping[str, Any]:
    """Export verified pictures. They lie as EXPERT/LABEL/PICTURE in a new folder of the service, with a manifest."""
    gate = visit.gate
    form: ExportRequest = visit.body.form
    await gate.read(lambda connection: expect_recipe(connection, form.recipe))
    now_us = gate.now_us()
    asked = ExportScope(now_us - form.days * DAY_US, now_us, form.recipe, form.good)
    folder = gate.config.data / FOLDER
    write = partial(export, gate.database, gate.pictures, folder, asked, now_us)
    made = await gate.keep(partial(write, limit_pixels=gate.config.limits.pixels))
    number = sum(sum(labels.values()) for labels in made.counts.values())
    detail = {"pictures": number, "recipe": form.recipe, "days": form.days}
    await gate.write(
        lambda connection: audit.append(
            connection, visit.caller, "export", made.name, now_us=gate.now_us(), detail=detail
        )
    )
    return _EXPORT(made, folder=str(folder / made.name), manifest=str(folder / made.name / MANIFEST))
