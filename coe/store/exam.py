"""What an expert was shown that must not pass, made from the pictures that taught it, and how often it passed.

Held-out pictures say how an expert judges defects like those that it was taught. The exam says how it judges a part
that is missing, turned, or of another kind, which a line fears and nobody photographs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from pydantic import model_validator

from coe.core import Shown
from coe.errors import list_few
from coe.helpers.rates import Rate
from coe.helpers.strict_model import Bytes, Count, StrictModel

LEAST_SHOWN = 10
"""So many pictures tell whether an expert passes an item; fewer may tell that it is blind."""
MOST = 0.1
"""An expert is blind to an item of which, with a confidence of 95 %, more than this share passes."""
_WORDS = {
    Shown.MISSING: "missing parts",
    Shown.TURNED: "turned parts",
    Shown.NEIGHBOUR: "other parts of the board",
    Shown.UNTAUGHT: "untaught defects, such as '{label}',",
}
NO_EXAM = "took no exam: which defects pass is unknown; run coe-experts calibrate --write"
NO_GOOD = "no good parts known: an untaught defect may be OK; run coe-experts calibrate --near"
NOT_TOLD: dict[tuple[Shown, ...], str] = {
    items: f"no exam shows whether {' or '.join(items)} parts pass: give bad pictures of such parts"
    for items in ((Shown.MISSING,), (Shown.TURNED,), (Shown.MISSING, Shown.TURNED))
}
"""What is said of an expert by the items, of those that decide, of which neither it nor another there has a row."""
_NAMED = 5


class ExamItem(StrictModel):
    """One row of an exam: of `shown` pictures `passed` were OK; `label` is that of `untaught`, "" of other items.

    Of an expert that judges each component by its own good parts, a row may be of one `component`, to which the rows of
    all do not apply then.
    """

    item: Shown
    shown: Count
    passed: Bytes
    label: str = ""
    component: str = ""

    @model_validator(mode="after")
    def _refuse_more_than_shown(self) -> Self:
        if self.passed > self.shown:
            raise ValueError(f"of {self.shown} pictures of '{self.name}' {self.passed} cannot have passed")
        return self

    @property
    def rate(self) -> Rate:
        """The share that passed, with its bounds."""
        return Rate(self.passed, self.shown)

    @property
    def is_blind(self) -> bool:
        """Whether more than a tenth passes, by the lower bound."""
        return self.rate.is_above(MOST)

    @property
    def is_passed(self) -> bool:
        """Whether at most a tenth passed, of enough pictures to tell."""
        return self.shown >= LEAST_SHOWN and self.rate.share <= MOST

    @property
    def name(self) -> str:
        """The item as people and `accepts:` in a board file name it, such as `turned` or `untaught scratch`."""
        of_label = f"{self.item} {self.label}" if self.label else str(self.item)
        return f"{of_label} at {self.component}" if self.component else of_label

    def is_of(self, component: str, rows: Iterable[ExamItem]) -> bool:
        """Tell whether the row applies to a component, of these rows of its exam."""
        own = any(row.component == component for row in rows if (row.item, row.label) == (self.item, self.label))
        return self.component == component if own else not self.component

    @property
    def words(self) -> str:
        """What was shown, as the subject or object of a sentence."""
        return _WORDS[self.item].format(label=self.label)


class Exam(StrictModel):
    """The exam of one expert.

    `is_surface` says that its pictures do not show where the part is, so that nothing could be shown as missing: such
    an expert needs bad pictures of each kind. `left_out` names pictures that were given as good, look bad, and were not
    learned from.
    """

    items: tuple[ExamItem, ...] = ()
    is_surface: bool = False
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, items: Iterable[ExamItem], left_out: Iterable[str] = ()) -> Exam:
        """Return an exam of these rows; without missing parts among them nobody can tell where the part is."""
        rows = tuple(items)
        unplaced = not any(row.item is Shown.MISSING for row in rows)
        return cls(items=_proving(rows) if unplaced else rows, is_surface=unplaced, left_out=tuple(left_out))

    def again(self, items: Iterable[ExamItem]) -> Exam:
        """Return the exam with rows that were taken again in the place of those of the same items.

        An item that was decided stays as it is if too few pictures were shown now to decide it: a gap that many good
        parts have proved is not closed by one.
        """
        again, kept = _proving(items) if self.is_surface else tuple(items), self.items
        for name in {(item.item, item.label): None for item in again}:
            now, before = ([one for one in rows if (one.item, one.label) == name] for rows in (again, kept))
            if _is_decided(now) or not _is_decided(before):
                kept = (*(one for one in kept if one not in before), *now)
        return self.model_copy(update={"items": kept})

    @property
    def is_taken(self) -> bool:
        """Whether it tells what passes, or that its pictures cannot tell."""
        return bool(self.items) or self.is_surface

    @property
    def blind(self) -> tuple[ExamItem, ...]:
        """The items of which more than a tenth passes."""
        return tuple(item for item in self.items if item.is_blind)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the pictures that the expert learned from."""
        notes = []
        if self.is_surface:
            notes.append(
                "its pictures do not show where the part is (a surface, a part that fills them, or a part that lies "
                "anywhere), so no exam shows that it stops missing or turned parts: give bad pictures of each"
            )
        if self.left_out:
            few = list_few(self.left_out, _NAMED)
            notes.append(f"left out of training, because they look bad among the good ones: {few}")
        return tuple(notes)


class ExamRow(StrictModel):
    """A row of the table of exams of a board: an item of an expert's exam, and what follows at components; or a note.

    A note, with which `item` is None, is about the exam as a whole. The components are those in which the expert is
    blind to the item: an OK is REVIEW at those of `review`; the board file accepts it at those of `accepted`; another
    expert stops it at those of `stopped`, where it looks; and at those of `passing` such a part passes, since nothing
    forbids it.
    """

    expert: str
    item: ExamItem | None = None
    note: str = ""
    review: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()

    @property
    def is_told(self) -> bool:
        """Whether it is shown although there are many rows: something passes, or the pictures have a fault."""
        return self.item.is_blind if self.item is not None else self.note not in (NO_EXAM, NO_GOOD, *NOT_TOLD.values())

    @property
    def follows(self) -> str:
        """What follows, in a few words; "" where the expert is not blind."""
        said = {
            "OK becomes REVIEW at": self.review,
            "accepted at": self.accepted,
            "another expert stops it at": self.stopped,
            "would pass at": self.passing,
        }
        return "; ".join(f"{what} {list_few(where, _NAMED)}" for what, where in said.items() if where)


def added(items: Iterable[ExamItem]) -> tuple[ExamItem, ...]:
    """Return the rows of one exam that was taken in parts: rows of one name are added up."""
    rows: dict[str, ExamItem] = {}
    for item in items:
        before = rows.get(item.name)
        counts = (0, 0) if before is None else (before.shown, before.passed)
        rows[item.name] = item.model_copy(update={"shown": item.shown + counts[0], "passed": item.passed + counts[1]})
    return tuple(rows.values())


def worst_of(exams: Sequence[Exam]) -> Exam:
    """Return one exam for experts that judge by the same weights with other thresholds.

    It has the rows to which one of them is blind, and those that all have, each as the expert took it that lets most
    pass.
    """
    rows: dict[str, list[ExamItem]] = {}
    for exam in exams:
        for item in exam.items:
            rows.setdefault(item.name, []).append(item)
    worst = (
        max(of_name, key=lambda row: (row.is_blind, not row.is_passed, row.rate.share)) for of_name in rows.values()
    )
    items = tuple(row for row in worst if row.is_blind or len(rows[row.name]) == len(exams))
    return exams[0].model_copy(update={"items": items})


def apart(items: Iterable[ExamItem]) -> tuple[ExamItem, ...]:
    """Return rows of single components as one row of each item, beside those of components of which too much passes.

    So a component that is blind, or may be, does not hide among others, nor are others thought blind because it is.
    """
    rows = tuple(items)
    several = len({row.component for row in rows}) > 1
    own = [row for row in rows if row.rate.share > MOST and several]
    others = [row.model_copy(update={"component": ""}) for row in rows if row not in own]
    return (*added(others), *own)


def warnings_of(rows: Iterable[ExamRow]) -> tuple[str, ...]:
    """Return the sentences that go with verdicts: what would pass, by the rows of a board, each thing once."""
    by_words: dict[str, list[ExamRow]] = {}
    for row in rows:
        if row.item is not None and row.item.is_blind:
            by_words.setdefault(row.item.words, []).append(row)
    review, accepted, passing = [], [], []
    for words, of_item in by_words.items():
        item = of_item[0].item
        name = "" if item is None else item.item.value
        if where := _where(of_item, "review"):
            mend = f"train its expert with {name} parts as bad ones, or write accepts: [{name}] at the component"
            review.append(f"every OK is REVIEW at {where}, since {words} would pass: {mend}")
        if where := _where(of_item, "accepted"):
            accepted.append(f"the board file accepts that {words} pass at {where}")
        if where := _where(of_item, "passing"):
            why = " (no polarity)" if name == Shown.TURNED else ""
            passing.append(f"{words} would pass at {where}{why}")
    return (*review, *accepted, *passing)


def _where(rows: Sequence[ExamRow], of: str) -> str:
    """Return the components of rows that `of` names, and their experts where they are called otherwise."""
    components = dict.fromkeys(name for row in rows for name in getattr(row, of))
    experts = [f"'{row.expert}'" for row in rows if getattr(row, of) and getattr(row, of) != (row.expert,)]
    return list_few(components, _NAMED) + (f" (by {list_few(experts, _NAMED)})" if experts else "")


def stops_of(exam: Exam | None) -> dict[str, dict[Shown, bool]]:
    """Return by component, "" for all others, whether an expert stops an item (True) or is blind to it (False).

    Neither, if too few were shown to tell. Rows of one item are taken together: it is blind if it is blind to one.
    """
    rows = () if exam is None else exam.items
    return {
        component: stops
        for component in dict.fromkeys(["", *(row.component for row in rows)])
        if (stops := _stops([row for row in rows if row.is_of(component, rows)])) or component
    }


def _proving(items: Iterable[ExamItem]) -> tuple[ExamItem, ...]:
    """Return the rows that hold of parts whose place is unknown.

    Surroundings that turn with a part give it away: that turned parts pass is proved then, and never that they do not.
    """
    return tuple(item for item in items if item.item is not Shown.TURNED or item.is_blind)


def _is_decided(rows: Iterable[ExamItem]) -> bool:
    """Return whether an expert is known to be blind to the item of these rows, or to pass it."""
    return any(row.is_blind or row.is_passed for row in rows)


def _stops(rows: Iterable[ExamItem]) -> dict[Shown, bool]:
    stops: dict[Shown, bool] = {}
    for row in rows:
        if row.is_blind or row.is_passed:
            stops[row.item] = stops.get(row.item, True) and not row.is_blind
    return stops
