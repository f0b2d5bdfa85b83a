"""`python -m coe.serve.teach.teach_scores FOLDER NAME STORE [EXPERT THRESHOLD]`: the scores of a draft's photographs.

They go into `scores.json`, with what each threshold would let pass and call, as `coe-experts calibrate` counts it. With
a threshold, that goes into the calibration file first, as `calibrate --write --unproven` writes it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coe.board import rules
from coe.errors import CoeError, ConfigError
from coe.helpers.files import write_atomically
from coe.helpers.rates import CONFIDENCE, Rate
from coe.learn import calibration, calibration_text, labelled, thresholds
from coe.learn.answers import BoardExperts
from coe.learn.calibration import ExpertCalibration
from coe.learn.thresholds import Curve, Goal, ThresholdChoice, ThresholdPoint, Use, WantedRate
from coe.pictures.photographs import Photograph
from coe.serve.teach.teach_draft import SCORES, BoardDraft
from coe.store.store import Store

_WANTED = WantedRate(Goal.ESCAPES, 0.0)
_CALLED_FROM = 0.5
"""What a box must reach where no file says another number."""


class ExpertScores:
    """An expert of a board with all its photographs, and those that it has not learned from."""

    def __init__(self, board: rules.Rules, store: Store, id: str, pictures: Sequence[Photograph]) -> None:
        """Ask the expert; raises CoeError if it cannot run."""
        asked, expert = BoardExperts(board, store), board.experts[id]
        known = {*(asked.learned_from(expert, pictures) or ()), *asked.in_references(expert, pictures)}
        self.board, self.id, self.pictures, self.known = board, id, pictures, known
        # Of good and of bad parts those count that it has not learned from; where there are none, all of them.
        of_truth = [[one for one in pictures if (one.label in expert.reject) == is_bad] for is_bad in (False, True)]
        strange = [[one for one in those if one.name not in known] for those in of_truth]
        self.knows_all = [bool(those) and not new for those, new in zip(of_truth, strange, strict=True)]
        self._asked = asked
        counted = [one for those, new in zip(of_truth, strange, strict=True) for one in new or those]
        self.outcome: ExpertCalibration = calibration.calibrate(asked.answers(id, counted), _WANTED, unproven=True)

    def at(self, threshold: float) -> ExpertCalibration:
        """Return the calibration with the threshold that is nearest to one; raises ConfigError if it has none."""
        curve = self.outcome.curve
        if curve is None:
            raise ConfigError(f"expert '{self.id}' has no label with a threshold")
        point = min(curve.points, key=lambda one: abs(one.threshold - threshold))
        return replace(self.outcome, choice=ThresholdChoice(point, proven=False, by_label={}))

    def shown(self) -> dict[str, Any]:
        """Return the scores as JSON."""
        curve, outcome = self.outcome.curve, self.outcome
        if curve is None:
            return {"expert": self.id, "points": [], "pictures": []}
        threshold = self._threshold(curve)
        return {
            "expert": self.id,
            "called_above": curve.use is Use.IGNORE_UNDER,
            "threshold": threshold,
            "now": _point(thresholds.point_at(outcome.answers, curve, outcome.temperature, threshold)),
            "knows_all": dict(zip(("false_calls", "escapes"), self.knows_all, strict=True)),
            "points": [_point(point) for point in curve.points],
            "pictures": self._scores(curve),
        }

    def _threshold(self, curve: Curve) -> float:
        """Return the threshold that counts now."""
        is_above, stated = curve.use is Use.IGNORE_UNDER, dict(self.board.experts[self.id].ignore_under)
        if not is_above:
            stated = {key: score for step in self.board.steps_of(self.id) for key, score in step.min_scores.items()}
        return next((stated[label] for label in curve.labels if label in stated), _CALLED_FROM if is_above else 0.0)

    def _scores(self, curve: Curve) -> list[dict[str, Any]]:
        answers = self._asked.answers(self.id, self.pictures)
        shown = [one for one in self.pictures if one.name not in answers.failed and one.name not in answers.doubtful]
        told = thresholds.scored(answers, curve.labels, self.outcome.temperature)
        return [
            {
                "photo": one.name,
                "good": truth not in answers.expert.reject,
                "score": score if math.isfinite(score) else None,
                "learned": one.name in self.known,
            }
            for one, (truth, score) in zip(shown, told, strict=False)
        ]


def _point(point: ThresholdPoint) -> dict[str, Any]:
    return {"threshold": point.threshold, "escapes": _rate(point.escapes), "false_calls": _rate(point.false_calls)}


def _rate(rate: Rate | None) -> Mapping[str, Any] | None:
    if rate is None:
        return None
    return {"events": rate.events, "trials": rate.trials, "at_most": round(rate.upper(CONFIDENCE), 4)}


def main() -> None:
    """Write the scores of the draft that the arguments name."""
    draft, store = BoardDraft(Path(sys.argv[1]), sys.argv[2]), Store(Path(sys.argv[3]))
    board = rules.load(str(draft.rules))
    of_expert = labelled.by_expert(labelled.find(draft.photos, board.experts, board.components))
    try:
        if len(sys.argv) > 4:
            id, threshold = sys.argv[4], float(sys.argv[5])
            chosen = ExpertScores(board, store, id, of_expert[id]).at(threshold)
            calibration_text.change(board, [chosen]).write()
            board = rules.load(str(draft.rules))
        found = [ExpertScores(board, store, id, pictures).shown() for id, pictures in of_expert.items()]
    except CoeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    write_atomically(draft.folder / SCORES, [json.dumps({"confidence": CONFIDENCE, "experts": found})])
    print(f"{sum(len(one['pictures']) for one in found)} photographs have scores")


if __name__ == "__main__":
    main()
