"""The text of a calibration file, its entries from such a text, and what a calibration changes in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from coe.board import calibration_file, rules
from coe.board.board_spec import BoardSpec, StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExam, CalibratedExpert, parse
from coe.board.rules import Rules
from coe.errors import ConfigError, list_few
from coe.helpers import strict_yaml
from coe.helpers.files import FolderLock, NoLocks, NotWritten, write_atomically
from coe.helpers.strict_model import of_yaml
from coe.store.exam import ExamItem

if TYPE_CHECKING:
    from coe.learn.calibration import ExpertCalibration

_HEAD = """\
# Written by `coe-experts calibrate`; it overrides what {board} states for these experts.
# To go back to the board file, remove an expert's entry, or delete this file.
"""


def entries(board: Path, raw: bytes) -> dict[str, CalibratedExpert]:
    """Return the entries of a board file's calibration from its bytes; raises RulesError with file and line."""
    return dict(of_yaml(parse(board, raw), BoardCalibration).experts)


def text(board: Path, calibration: BoardCalibration) -> str:
    """Return the text of the calibration file of a board file."""
    data = calibration.model_dump(mode="json", exclude_defaults=True)
    head = _HEAD.format(board=board.resolve().name)
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


class Change(NamedTuple):
    """What a calibration changes: its file with the text of now and then, for how many experts, and remarks on it."""

    path: Path
    before: str
    after: str
    experts: int
    notes: tuple[str, ...]

    def write(self) -> None:
        """Write the file; a link stays a link. Raises NotWritten."""
        write_atomically(self.path.resolve(), [self.after])


def change(board: Rules, outcomes: Sequence[ExpertCalibration]) -> Change:
    """Return what outcomes change in the calibration of a board as its files are now.

    Raises ConfigError for an expert that was taken out meanwhile, and RulesError for what would not load afterwards.
    """
    raw, old = strict_yaml.content(board.path), calibration_file.content(board.path)
    before = rules.of_bytes(board.path, raw, old)
    spec = of_yaml(strict_yaml.parse(board.path, raw), BoardSpec)
    present = entries(board.path, old) if old is not None else {}
    changed: dict[str, CalibratedExpert] = {}
    for outcome in outcomes:
        id = outcome.answers.expert.id
        if id not in spec.experts:
            raise ConfigError(f"{board.path.name}: expert '{id}' was removed meanwhile; calibrate again")
        if outcome.answers.answers:  # else the expert stays as it is
            stated = spec.experts[id].stated_scores()
            changed[id] = outcome.entry(present.get(id, stated), stated, date.today().isoformat())
    new = text(board.path, BoardCalibration(board=spec.board, experts={**present, **changed}))
    after = rules.of_bytes(board.path, raw, new.encode())
    notes = tuple(_scores_of_steps(before, after, changed))
    return Change(calibration_file.path_for(board.path), (old or b"").decode(), new, len(changed), notes)


def put_exams(board: Path, exams: Mapping[str, Sequence[ExamItem]]) -> None:
    """Write the exams that experts took with their calibrated scores into their entries; others stay as they are.

    Raises RulesError, NotWritten.
    """
    if (raw := calibration_file.content(board)) is None:
        return
    whole = of_yaml(parse(board, raw), BoardCalibration)
    experts = {
        id: entry.model_copy(update={"exam": tuple(_row(item) for item in exams.get(id, ()))}) if id in exams else entry
        for id, entry in whole.experts.items()
    }
    new = text(board, whole.model_copy(update={"experts": experts}))
    write_atomically(calibration_file.path_for(board).resolve(), [new])


def _row(item: ExamItem) -> CalibratedExam:
    return CalibratedExam(item=item.item, shown=item.shown, passed=item.passed, component=item.component)


def _scores_of_steps(before: Rules, after: Rules, changed: Mapping[str, StatedScores]) -> Iterator[str]:
    """Yield which components state scores of their own: a finding must reach `min_score`, and `min_scores` go first."""
    for id, entry in changed.items():
        rescaled = before.experts[id].temperature != after.experts[id].temperature
        defaults = entry.min_scores
        least, first = [], []
        for name, component in after.components.items():
            steps = component.steps_of(id)
            if (defaults or rescaled) and any(step.min_score > 0 for step in steps):
                least.append(name)
            if any(step.min_scores != defaults for step in steps):
                first.append(name)
        scale = "; its scores have another scale now, so check it" if rescaled else ""
        if least:
            yield (f"{id}: `min_score` of {list_few(least)} still applies, too{scale}")
        if first:
            yield f"{id}: `min_scores` of {list_few(first)} apply instead of those written here{scale}"


@contextmanager
def alone(board: Path) -> Iterator[None]:
    """Hold the lock of a board file's folder, in which its calibration is written; raises NotWritten."""
    path, lock = calibration_file.path_for(board), None
    try:
        with suppress(NoLocks):
            lock = FolderLock.take(path.parent, wait=True)
    except OSError as error:
        way = (
            f"copy {board.name}, with its calibration if it has one, into a folder of your own, and calibrate it there"
        )
        raise NotWritten(f"{path} cannot be written: {error.strerror}; {way}") from error
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
