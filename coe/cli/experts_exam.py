"""The exams of experts as tables and sentences, for all commands that show what an expert's word is worth."""

from __future__ import annotations

from collections.abc import Sequence

from coe.board.rules import Rules
from coe.cli.common import out, point_out, wide
from coe.cli.console import table_of
from coe.inspector import weights_used
from coe.store.exam import Exam, ExamItem, ExamRow, warnings_of
from coe.store.store_reader import StoreReader

_COLUMNS = ("exam", "passed", "at most")


def show(name: str, exam: Exam | None) -> None:
    """Print what an expert was shown that must not pass, and what of it passed; nothing without an exam."""
    if exam is None:
        return
    table = table_of(name, *_COLUMNS, "", left=(name, "exam", ""))
    for item in exam.items:
        table.add_row("", *_cells(item), "still passes" if item.is_blind else "")
    if exam.items:
        wide(out).print(table)
    for note in exam.notes:
        point_out("note", f"{name}: {note}", out)


def show_rows(rows: Sequence[ExamRow]) -> None:
    """Print the exams of a board's experts, and what follows at its components; nothing without rows."""
    table = table_of("expert", *_COLUMNS, "", left=("expert", "exam", ""))
    for row in rows:
        table.add_row(row.expert, *(("", "", "") if row.item is None else _cells(row.item)), row.note or row.follows)
    if rows:
        wide(out).print(table)


def tell_gaps(board: Rules, store: StoreReader) -> bool:
    """Print what passes the experts of a board by their exams, and tell whether anything does."""
    warnings = warnings_of(weights_used.exam_rows(board, weights_used.manifests_of(board, store)))
    for warning in warnings:
        point_out("still passes", warning, out)
    return bool(warnings)


def lets_pass(exam: Exam | None) -> str:
    """Return in a few words what an expert lets pass; "no exam" if it took none."""
    if exam is None:
        return "no exam"
    return ", ".join(item.name for item in exam.blind) or "·"


def _cells(item: ExamItem) -> tuple[str, str, str]:
    return item.name, f"{item.passed} of {item.shown}", f"{item.rate.upper():.1%}"
