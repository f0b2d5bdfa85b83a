"""Blind audits: parts that are OK, and known defects, among the calls of a board. Chance alone chooses them.

The draw depends on a secret of the service and on the board, so nobody at a page can foresee it, and a board that is
decided again after a crash gets the same audits. Each audit stands where a call of its part would stand, and no board
waits for it: its state and its verdict are those of its calls.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from coe.core import Verdict
from coe.serve.clock import HOUR_US
from coe.serve.component_pictures import CropPlace
from coe.serve.database import blind, recipe_versions, row_types
from coe.serve.database.blind import Face, KnownDefect, Lender
from coe.serve.database.decisions import Decision
from coe.serve.database.findings import GoodComponent
from coe.serve.database.tables import Call, NewCall, View
from coe.serve.enums import CallKind, CallReason
from coe.serve.secret_file import AUDITS, read_or_make
from coe.serve.service_config import Audits, ServeConfig

RESTS_US = 8 * HOUR_US
"""A known defect is shown again a shift after it was confirmed, when people have seen many others."""
_LEAST, _MOST = 0.55, 0.85
"""The range of the score, as a share of the part's own, on the face of a part whose type was never called."""


@dataclass(frozen=True, slots=True)
class Lottery:
    """A draw that only the holder of a secret can foresee; the same words always draw the same."""

    secret: bytes

    def share(self, *words: object) -> float:
        """Return a number from 0 up to 1 without 1; it is as if drawn evenly."""
        text = "\0".join(str(word) for word in words)
        drawn = hmac.digest(self.secret, text.encode(), hashlib.sha256)
        return int.from_bytes(drawn[:6]) / 2**48

    def number(self, below: int, *words: object) -> int:
        """Return a whole number from 0 up to `below` without it."""
        return int(self.share(*words) * below)


class BlindAudits:
    """Adds blind audits to decisions, as the config says."""

    def __init__(self, settings: Audits, lottery: Lottery) -> None:
        self._settings, self._lottery = settings, lottery

    @classmethod
    def of(cls, config: ServeConfig) -> BlindAudits:
        """Return the audits of a service; its secret is made if there are any. Raises OSError."""
        is_on = config.audits != Audits()
        return cls(config.audits, Lottery(read_or_make(config.data / AUDITS) if is_on else b""))

    def added(self, connection: Connection, decision: Decision, order: Sequence[str]) -> Decision:
        """Return a decision with its audits, drawn in the transaction that will write it.

        `order` are the parts of the board that were seen, in the order in which their calls are opened.
        """
        board_id = decision.board.id
        drawn = [part for part in decision.good if self._is_audited(board_id, part)]
        seeds = [call for call in decision.calls if self._has_seed(board_id, call)]
        if not drawn and not seeds:
            return decision
        recipe_name = recipe_versions.get(connection, decision.board.recipe_id).name
        audits = [self._audit(connection, decision, recipe_name, part) for part in drawn]
        taken = {call.refdes for call in (*decision.calls, *audits)}
        parts = {part.refdes: part for part in decision.good if part.refdes not in taken}
        if seeds and parts:
            before_us = decision.decided_us - RESTS_US
            known = blind.known_defects(connection, recipe_name, before_us)
            audits += self._seeded(board_id, seeds, known, parts)
        place = {refdes: number for number, refdes in enumerate(order)}
        calls = sorted((*decision.calls, *audits), key=lambda call: place.get(call.refdes, len(place)))
        return replace(decision, calls=calls)

    def _is_audited(self, board_id: int, part: GoodComponent) -> bool:
        share = self._settings.ok_per_1000 / 1000
        return share > 0 and self._lottery.share("ok", board_id, part.refdes) < share

    def _has_seed(self, board_id: int, call: NewCall) -> bool:
        share = self._settings.seeded_per_100_calls / 100
        return share > 0 and self._lottery.share("seed", board_id, call.refdes) < share

    def _audit(self, connection: Connection, decision: Decision, recipe_name: str, part: GoodComponent) -> NewCall:
        """Return a part that is OK as an audit; its face is that of an earlier call of its type, if there was any."""
        own = part.findings[-1] if part.findings else {}
        words = (decision.board.id, part.refdes)
        alike = [
            lender
            for lender in blind.lenders(connection, recipe_name, part.component)
            if (CropPlace.of(lender.call.place) is None) == (CropPlace.of(part.place) is None)
        ]
        if alike:
            view = row_types.get(connection, View, part.view_id)
            lender = alike[self._lottery.number(len(alike), "face", *words)]
            face = _lent(lender, _pixels(part.place, view.pixels if view is not None else 0))
        else:
            face = self._doubted(part, words)
        return NewCall(
            part.refdes,
            part.component,
            Verdict.OK,
            CallReason.BLIND,
            CallKind.AUDIT,
            part.view_id,
            part.place,
            expert=own.get("expert", ""),
            label=own.get("label", ""),
            score=own.get("score"),
            findings=part.findings,
            face=face.json,
        )

    def _doubted(self, part: GoodComponent, words: Sequence[object]) -> Face:
        """Return the face of a part whose type was never called: its own finding, with a score that leaves doubt."""
        if not part.findings:
            return Face(Verdict.REVIEW, "", "", "", None, [])
        *before, last = part.findings
        share = _LEAST + (_MOST - _LEAST) * self._lottery.share("score", *words)
        score = None if last["score"] is None else share * last["score"]
        # As many digits as the scores of calls have, which are rounded in their findings alone.
        findings = [*before, {**last, "score": score and round(score, 6)}]
        return Face(Verdict.REVIEW, "", last["expert"], last["label"], score, findings)

    def _seeded(
        self, board_id: int, seeds: Sequence[NewCall], known: Sequence[KnownDefect], parts: Mapping[str, GoodComponent]
    ) -> list[NewCall]:
        """Return a known defect for each of these calls, as far as there are such, each of a part of the board."""
        chosen: list[NewCall] = []
        left = [one for one in known if _could_be_of(one.call, parts.get(one.call.refdes))]
        for seed in seeds:
            if not left:
                break
            one = left[self._lottery.number(len(left), "which", board_id, seed.refdes)]
            left = [other for other in left if other.call.refdes != one.call.refdes]
            chosen.append(_as_seeded(one))
        return chosen


def _could_be_of(known: Call, part: GoodComponent | None) -> bool:
    """Return whether a known defect looks as if it were of a part: the same type, from the same kind of view."""
    if part is None or part.component != known.component:
        return False
    return (CropPlace.of(part.place) is None) == (CropPlace.of(known.place) is None)


def _as_seeded(known: KnownDefect) -> NewCall:
    one = known.call
    face, where = Face.of(one, one.findings), (one.view_id, one.place)
    new = NewCall(one.refdes, one.component, one.verdict, CallReason.BLIND, CallKind.SEEDED, *where, truth=known.label)
    return replace(new, **face.json, face=face.json)


def _lent(lender: Lender, pixels: int) -> Face:
    """Return the face of a call for a picture of so many pixels; its boxes are made as much larger or smaller."""
    one = lender.call
    before = _pixels(one.place, lender.pixels)
    scale = math.sqrt(pixels / before) if pixels and before else 1.0
    findings = [{**row, "boxes": [_scaled(box, scale) for box in row.get("boxes", ())]} for row in one.findings]
    return Face.of(one, findings)


def _scaled(box: Mapping[str, Any], scale: float) -> dict[str, Any]:
    return {**box, "xyxy": [at and round(at * scale, 2) for at in box["xyxy"]]}


def _pixels(place: Any, view_pixels: int) -> int:
    """Return how many pixels the experts saw of a part."""
    known = CropPlace.of(place)
    return view_pixels if known is None else known.width * known.height
