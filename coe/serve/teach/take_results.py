"""`python -m coe.serve.teach.take_results WHAT FOLDER NAME ...`: puts what a command made into a draft.

WHAT is `map`, `crops`, `chosen STORE`, or `scores STORE [EXPERT THRESHOLD]`. Nothing that a person said is lost: of a
new recipe only the map is taken if there is one already, and a photograph that is cut again stays in its folder.
Components with too few pictures stay compared with a good part; what that needs is made, too.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from coe.board import rules
from coe.cli.start import Exit
from coe.errors import CoeError, ConfigError
from coe.helpers import strict_yaml
from coe.helpers.files import write_atomically
from coe.helpers.rates import CONFIDENCE, Rate
from coe.learn import calibration, calibration_text, labelled, thresholds
from coe.learn.answers import BoardExperts
from coe.learn.calibration import ExpertCalibration
from coe.learn.thresholds import Curve, Goal, ThresholdChoice, ThresholdPoint, Use, WantedRate
from coe.pictures.photographs import Photograph
from coe.placement import read_board, read_places
from coe.serve.teach import board_map
from coe.serve.teach.teach_draft import CHOSEN, CUT, FOUND, SCORES, BoardDraft, DraftState, files_in, text_of
from coe.serve.teach.teach_steps import crops
from coe.serve.teach.teach_work import command_of
from coe.store.store import Store

_OF_THE_MAP = ("um_per_pixel", "camera", "fiducials", "held", "picture", "landmark")


def take_map(draft: BoardDraft) -> None:
    """Take recipe, rules and overlays; of the recipe only the map if there is one, and no rules then."""
    made, state = BoardDraft(draft.folder / FOUND, draft.name), draft.state
    found = made.state
    assert found.recipe is not None
    if state.recipe is None:
        made.parts.replace(draft.parts)
        made.answers.replace(draft.answers)
        state = state.model_copy(update={"recipe": found.recipe, "open": found.open})
    else:
        kept = {key: value for key, value in state.recipe.items() if key not in _OF_THE_MAP}
        of_map = {key: found.recipe[key] for key in _OF_THE_MAP if key in found.recipe}
        still = [word for word in state.open if word not in _OF_THE_MAP]
        still += [word for word in found.open if word in _OF_THE_MAP]
        state = state.model_copy(update={"recipe": kept | of_map, "open": tuple(still)})
        state = _with_new_parts(draft, made, found, state)
    for picture in files_in(made.folder):
        if picture.name.startswith("overlay-"):
            picture.replace(draft.folder / picture.name)
    draft.say(state.model_copy(update={"rules": state.rules or found.rules}))
    shutil.rmtree(draft.folder / FOUND)


def _with_new_parts(draft: BoardDraft, made: BoardDraft, found: DraftState, state: DraftState) -> DraftState:
    """Return the draft with new components of another placement file; unseen parts are not inspected."""
    assert state.recipe is not None
    assert found.recipe is not None
    known = state.recipe["components"]
    seen = {part.refdes for part in read_places(made.parts) if part.component}
    read = draft.read(state)
    new = [part for part in read.parts if part.side == state.side and part.component not in {"", *known}]
    unseen = [part.refdes for part in new if part.refdes not in seen]
    said = read.answers
    more = {"not_inspected": (*said.not_inspected, *unseen)}
    draft.keep(draft.read(state, said=said.model_copy(update=more)))
    names = dict.fromkeys(part.component for part in new if part.refdes in seen)
    changes: dict[str, Any] = {"open": (*state.open, *(word for word in found.open if word in names))}
    for key, mine, theirs in (("recipe", state.recipe, found.recipe), ("rules", state.rules, found.rules)):
        if mine is not None and theirs is not None:
            added = {name: theirs["components"][name] for name in names if name in theirs["components"]}
            changes[key] = {**mine, "components": added | mine["components"]}
    return state.model_copy(update=changes)


def take_crops(draft: BoardDraft) -> None:
    """Take photographs: known ones in place, new ones beside the folders of labels, cut as a person showed."""
    there = {(crop.component, crop.name): crop.path for found in crops(draft).values() for crop in found}
    for picture in draft.pictures:
        if picture.name not in draft.state.shown:
            continue
        board = read_board(picture, draft.layout, picture.stem)
        if board.location is None:
            continue
        location = board_map.as_shown(draft, picture.name, board.location)
        for part in replace(board, location=location).pictures() if location is not board.location else ():
            place = draft.folder / CUT / part.component / f"{part.refdes}-{part.serial}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.ascontiguousarray(np.asarray(part.image)[:, :, ::-1])).save(place, "PNG")
    for folder in sorted((draft.folder / CUT).iterdir()):
        for picture in files_in(folder):
            place = draft.photos / there.get((folder.name, picture.stem), f"{folder.name}/{picture.name}")
            place.parent.mkdir(parents=True, exist_ok=True)
            picture.replace(place)
    shutil.rmtree(draft.folder / CUT)


def take_chosen(draft: BoardDraft) -> list[str]:
    """Take the chosen experts into the rules; return the components that have none."""
    chosen, state = draft.folder / CHOSEN / f"{draft.name}.yaml", draft.state
    assert state.rules is not None
    board = deepcopy(state.rules)
    found = strict_yaml.parse(chosen, chosen.read_bytes()).data if chosen.is_file() else {"components": {}}
    for name, one in found["components"].items():
        board["experts"][name] = found["experts"][name]
        component = board["components"][name]
        component["inspect"] = name
        if "polarity" in one:
            component.setdefault("polarity", one["polarity"])
        component.pop("reference", None)  # it has learned without one
    rules.of_bytes(draft.rules, text_of(board).encode())
    draft.say(state.model_copy(update={"rules": board}))
    return [name for name in board["components"] if name not in found["components"]]


def compared(draft: BoardDraft, store: str) -> list[tuple[str, ...]]:
    """Return the commands that make references, and train the experts that compare with them."""
    board = rules.load(str(draft.rules))
    comparing = {one.root.expert for one in board.components.values() if one.references and one.root.expert}
    own = sorted(id for id in comparing if board.experts[id].kind == "difference")
    if not own:
        return []
    file, photos = draft.named(draft.rules), draft.named(draft.photos)
    make = ("coe-experts", "reference", file, "--images", photos, "--first-of-two", "--store", store)
    learn = ("--data", photos, "--epochs", "1", "--no-prepare", "--store", store)
    return [make, *(("coe-experts", "train", board.experts[id].weights, "--board", file, *learn) for id in own)]


def _learn_rest(draft: BoardDraft, store: str) -> None:
    """Take the chosen experts, and make what the others need; ends with the status of a command that failed."""
    if rest := take_chosen(draft):
        print(f"too few pictures, so only compared with a good part: {', '.join(rest)}", flush=True)
    for words in compared(draft, store):
        status = subprocess.run(command_of(words), check=False).returncode
        if status not in (Exit.OK, Exit.NOT_GOOD):
            sys.exit(status)


# The scores of a draft's photographs
_WANTED = WantedRate(Goal.ESCAPES, 0.0)
_CALLED_FROM = 0.5  # what a box must reach where no file says another number


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


def take_scores(draft: BoardDraft, store: str, id: str = "", threshold: str = "") -> None:
    """Write `scores.json`: what each threshold would let pass and call, as `coe-experts calibrate` counts it.

    A `threshold` of an expert `id` goes into the calibration file first, as `calibrate --write --unproven` writes it.
    """
    board, of_store = rules.load(str(draft.rules)), Store(Path(store))
    of_expert = labelled.by_expert(labelled.find(draft.photos, board.experts, board.components))
    if id:
        chosen = ExpertScores(board, of_store, id, of_expert[id]).at(float(threshold))
        calibration_text.change(board, [chosen]).write()
        board = rules.load(str(draft.rules))
    found = [ExpertScores(board, of_store, id, pictures).shown() for id, pictures in of_expert.items()]
    write_atomically(draft.folder / SCORES, [json.dumps({"confidence": CONFIDENCE, "experts": found})])
    print(f"{sum(len(one['pictures']) for one in found)} photographs have scores")


_TAKERS: dict[str, Callable[..., None]] = {
    "map": take_map,
    "crops": take_crops,
    "chosen": _learn_rest,
    "scores": take_scores,
}


def main() -> None:
    """Take what the arguments name."""
    what, root, name, *rest = sys.argv[1:]
    try:
        _TAKERS[what](BoardDraft(Path(root), name), *rest)
    except CoeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
