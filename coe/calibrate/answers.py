"""What experts say of verified pictures: each expert runs by itself, in full precision, with its raw scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coe.board.decoding import decode
from coe.board.image_source import ImageSource
from coe.board.router import GIVEN
from coe.board.rules import Rules
from coe.calibrate.verified import VerifiedPicture
from coe.core import FULL, Expert, Finding
from coe.errors import ConfigError, ImageError
from coe.inspector import references
from coe.runtime.cpu import CpuDevice
from coe.runtime.reference_source import ReferenceSource
from coe.store import kinds
from coe.store.kinds import Comparing, Image, Kind, Prepared, Reference
from coe.store.references import References
from coe.store.snapshot import Snapshot
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class Answer:
    """The true label of a picture, and its expert's finding."""

    truth: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one expert, whether it is a detector, and why other pictures have none, by name.

    `doubtful` holds the true labels of those of the others that could not be compared: a line calls them, as REVIEW.
    """

    expert: Expert
    detects: bool
    answers: tuple[Answer, ...]
    failed: Mapping[str, str]
    doubtful: tuple[str, ...] = ()


class BoardExperts:
    """Asks experts of a board, one after another."""

    def __init__(self, board: Rules, store: Store, allow_kinds: Collection[str] = ()) -> None:
        """Resolve the kinds; raises ConfigError, RulesError or StoreError as a line does when it is opened."""
        self._board, self._store = board, store
        self._kinds = {name: kinds.resolve(name, allow_kinds) for name in {e.kind for e in board.experts.values()}}
        references.check(board, self._kinds)
        self._references = References(store)

    def answers(self, id: str, pictures: Sequence[VerifiedPicture]) -> Answers:
        """Return what an expert says of its pictures; raises CoeError if it cannot run."""
        # Raw scores: what the rules say of an earlier calibration must not go into the next.
        expert = replace(self._board.experts[id], temperature=1.0, ignore_under={}, variant=FULL)
        kind = self._kinds[expert.kind]
        store = Snapshot(self._store, {expert.weights: self._store.manifest(expert.weights)})
        device = CpuDevice(store, {expert.kind: kind}, threads=0)
        device.load("calibrate", expert)
        answers, failed, doubtful = [], {}, []
        for picture in pictures:
            try:
                prepared = self._prepared(kind, expert, picture)
            except ImageError as error:
                failed[picture.name] = str(error)
                continue
            (finding,) = device.run("calibrate", "calibrate", expert, [prepared])
            if finding.doubt:
                failed[picture.name] = finding.doubt
                doubtful.append(picture.label)
            else:
                answers.append(Answer(picture.label, finding))
        device.evict("calibrate", expert)
        return Answers(expert, kind.task == "detect", tuple(answers), failed, tuple(doubtful))

    def _prepared(self, kind: Kind, expert: Expert, picture: VerifiedPicture) -> Prepared:
        pixels: Image = np.asarray(decode(picture.path), np.uint8)
        if isinstance(kind, Comparing):
            return kind.compare(pixels, self._reference(expert, picture), expert)
        return kind.preprocess(pixels, expert)

    def _reference(self, expert: Expert, picture: VerifiedPicture) -> Reference:
        if picture.reference is not None:
            return ReferenceSource(ImageSource.of(picture.reference, "RGB")).decode()
        served = [
            component
            for component in self._board.components.values()
            if any(step.expert == expert.id for step in component.root.walk())
        ]
        if len(ids := {component.reference for component in served}) == 1 and GIVEN not in ids:
            return references.proved(self._references, *ids).decode()
        raise ConfigError(
            f"expert '{expert.id}' compares with {'several references' if len(ids) > 1 else 'given references'}; list "
            "its pictures in images.csv with the column reference"
        )
