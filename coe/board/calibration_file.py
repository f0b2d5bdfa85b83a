"""The calibration of a board, in a file of its own beside the board file, laid over it when the rules are read.

`line7.calibration.yaml` is the calibration of `line7.yaml`. Where it names an expert, its `temperature`, `min_scores`
and `ignore_under` count in the place of those of the expert's entry in the board file. A file that cannot be read, or
that does not fit the board file any more, is refused: without it pictures would pass that it sends to REVIEW.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from coe.board.board_spec import BoardSpec, StatedScores
from coe.core import NOTHING, Shown
from coe.errors import RulesError, did_you_mean
from coe.helpers import strict_yaml
from coe.helpers.spelling import composed
from coe.helpers.strict_model import Name, Share, StrictModel, of_yaml
from coe.helpers.strict_yaml import KeyPath, YamlDocument

_SUFFIX = ".calibration.yaml"
_CALIBRATION = re.compile(r"\.calibration\.ya?ml$", re.IGNORECASE)
_Count = Annotated[int, Field(ge=0)]


class CountedRate(StrictModel):
    """Events among trials, and the bound above the true rate."""

    events: _Count
    trials: Annotated[int, Field(ge=1)]
    at_most: Share


class CalibrationOrigin(StrictModel):
    """Where an expert's calibration comes from.

    `pictures_sha256` is that of its pictures with their labels, `weights` the checksum of its weights, `version` the
    version of CoE. `wanted` is the rate that was asked for, by name; `threshold` is None if none was written.
    """

    date: str
    version: str
    weights: str
    pictures: _Count
    not_compared: _Count = 0
    pictures_sha256: str
    wanted: dict[str, Share]
    confidence: Share
    proven: bool
    threshold: Share | None = None
    escapes: CountedRate | None = None
    false_calls: CountedRate | None = None
    ece_before: Share | None = None
    ece_after: Share | None = None


class CalibratedExam(StrictModel):
    """A row of the exam that an expert took with its calibrated scores, as `coe.store.exam.ExamItem` has it."""

    item: Shown
    shown: Annotated[int, Field(ge=1)]
    passed: _Count
    component: str = ""

    @model_validator(mode="after")
    def _refuse_more_than_shown(self) -> Self:
        if self.passed > self.shown:
            raise ValueError(f"of {self.shown} pictures {self.passed} cannot have passed")
        return self


class CalibratedExpert(StatedScores):
    """An expert's scores as calibrated, and what the board file stated in their place at that time.

    `exam` holds with these scores and weights alone, so it goes with them.
    """

    stated: StatedScores = StatedScores()
    origin: CalibrationOrigin | None = None
    exam: tuple[CalibratedExam, ...] = ()


class BoardCalibration(StrictModel):
    """A calibration file: the calibrated experts, and at the end the board's name, which a file cut short lacks."""

    experts: dict[Name, CalibratedExpert]
    board: Name


def is_calibration(path: Path) -> bool:
    """Tell whether a file has the name of a calibration, and so is no board file."""
    return path.name.endswith(_SUFFIX)


def path_for(board: Path) -> Path:
    """Return where the calibration of a board file lies: beside the file itself, also if a link leads to it."""
    board = board.resolve()
    return board.with_name(board.stem + _SUFFIX)


def content(board: Path) -> bytes | None:
    """Return the bytes of a board file's calibration; None if it has none.

    Raises RulesError, also for a calibration of the board that lies in its folder under another name.
    """
    path, beside = path_for(board), board.with_name(board.stem + _SUFFIX)
    if os.path.lexists(beside) and beside.resolve() != path.resolve():
        raise RulesError(
            f"{beside}: {board.name} is a link, so the calibration must be beside the linked file; move it to {path}"
        )
    if os.path.lexists(path):
        return strict_yaml.content(path, "calibration file")
    if strays := _strays(path):
        name = _board_of(board)
        for stray in strays:
            if _spelled(stray) == _spelled(path) or (name is not None and _board_of(stray) == name):
                why = "no board file has the name of this calibration"
                raise RulesError(
                    f"{stray}: {why}; if it belongs to {board.name}, rename it to {path.name}, otherwise delete it"
                )
    return None


def _strays(path: Path) -> list[Path]:
    """Return the calibrations in a folder that lie beside no board file of their name, as after a renaming."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:  # who may read a file of a folder need not be allowed to list it
        return []
    return [
        path.with_name(name) for name in names if _CALIBRATION.search(name) and not _has_board(path.with_name(name))
    ]


def _has_board(calibration: Path) -> bool:
    boards = (calibration.name.removesuffix(_SUFFIX) + suffix for suffix in (".yaml", ".yml"))
    return is_calibration(calibration) and any(calibration.with_name(name).is_file() for name in boards)


def _spelled(calibration: Path) -> str:
    """Return the name of a calibration's board, however it is spelled."""
    return composed(_CALIBRATION.sub("", calibration.name)).lower()


def _board_of(path: Path) -> str | None:
    """Return the board's name that a file states; None if the file cannot be read."""
    try:
        return cast(dict[str, Any], strict_yaml.parse(path, strict_yaml.content(path)).data).get("board")
    except RulesError:
        return None


def digest_of_rules(board: Path) -> str:
    """Return the digest of the rules in a board file as it is now, without reading them; raises RulesError."""
    files = (strict_yaml.content(board), content(board))
    return strict_yaml.digest_of_all([hashlib.sha256(data).hexdigest() for data in files if data is not None])


def parse(board: Path, raw: bytes) -> YamlDocument:
    """Return the calibration file of a board file from its bytes; raises RulesError with file and line."""
    return strict_yaml.parse(board.with_name(board.stem + _SUFFIX), raw, "board and experts")


def laid_over(
    board: BoardSpec, name: str, document: YamlDocument
) -> tuple[BoardSpec, dict[str, tuple[str, tuple[CalibratedExam, ...]]]]:
    """Return a board, whose file has this name, with its calibration; by expert the weights that this was measured with
    (a checksum), and the exam that it took then.

    Raises RulesError for a calibration that does not fit.
    """
    calibration = of_yaml(document, BoardCalibration)
    if calibration.board != board.board:
        why = f"this is the calibration of '{calibration.board}', and {name} is '{board.board}'"
        raise document.error(("board",), why)
    experts = dict(board.experts)
    for id, entry in calibration.experts.items():
        place: KeyPath = ("experts", id)
        if id not in experts:
            why = f"'{id}' is not an expert of {name}{did_you_mean(id, experts)}; correct the entry, or remove it"
            raise document.error(place, why)
        expert = experts[id]
        _check_labels(document, (*place, "min_scores"), entry.min_scores, [*expert.labels, NOTHING])
        _check_labels(document, (*place, "ignore_under"), entry.ignore_under, expert.labels)
        if entry.stated != expert.stated_scores():
            why = f"{name} states other scores of '{id}' than when it was calibrated; remove this entry, and"
            raise document.error(place, f"{why} calibrate '{id}' again")
        scores = entry.model_dump(include=set(StatedScores.model_fields))
        experts[id] = expert.model_copy(update=scores)
    measured = {
        id: (entry.origin.weights, entry.exam) for id, entry in calibration.experts.items() if entry.origin is not None
    }
    return board.model_copy(update={"experts": experts}), measured


def _check_labels(document: YamlDocument, place: KeyPath, scores: Iterable[str], labels: list[str]) -> None:
    for label in scores:
        if label not in labels:
            why = f"'{label}' is not a label of '{place[1]}'{did_you_mean(label, labels)}"
            raise document.error((*place, label), f"{why}; correct the entry, or remove it")
