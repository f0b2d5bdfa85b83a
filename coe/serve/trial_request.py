"""What a trial is asked for, and the recipe that it tries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from coe import strict_yaml
from coe.board.board_spec import BoardSpec, StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.calibrate import calibration_text
from coe.core import NOTHING
from coe.errors import RulesError, did_you_mean
from coe.serve.recipe_content import RecipeContent
from coe.strict_model import Name, StrictModel, of_yaml

MOST_BOARDS = 100_000


class TriedScores(StrictModel):
    """Scores of an expert that are tried in the place of those that count: by label, as in a calibration."""

    min_scores: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    ignore_under: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


class TrialRequest(StrictModel):
    """A version of a recipe (the active one if none is given), with other scores, on so many of its newest boards.

    With `inspect` the pictures of parts are inspected again whose findings do not tell what the tried recipe says. The
    findings of experts in `anew` tell nothing, as after a training under the same name. With `follow` the trial goes on
    with each board that is decided, until it is dropped.
    """

    recipe: str
    version: Annotated[int, Field(ge=1)] | None = None
    scores: dict[Name, TriedScores] = Field(default_factory=dict)
    boards: Annotated[int, Field(ge=1, le=MOST_BOARDS)] = 1000
    inspect: bool = False
    anew: tuple[Name, ...] = ()
    follow: bool = False


def tried(name: str, content: RecipeContent, scores: dict[str, TriedScores]) -> RecipeContent:
    """Return a recipe with other scores, in its calibration; raises RulesError for an unknown expert or label."""
    if not scores:
        return content
    path = Path(f"{name}.yaml")
    spec = of_yaml(strict_yaml.parse(path, content.rules.encode()), BoardSpec)
    entries = calibration_text.entries(path, content.calibration.encode()) if content.calibration else {}
    for expert, changed in scores.items():
        if expert not in spec.experts:
            raise RulesError(f"'{expert}' is not an expert of recipe '{name}'{did_you_mean(expert, spec.experts)}")
        labels = spec.experts[expert].labels
        for scored, known in ((changed.min_scores, [*labels, NOTHING]), (changed.ignore_under, labels)):
            for label in scored:
                if label not in known:
                    raise RulesError(f"'{label}' is not a label of '{expert}'{did_you_mean(label, known)}")
        stated = spec.experts[expert].stated_scores()
        before: StatedScores = entries.get(expert, stated)
        entries[expert] = CalibratedExpert(
            temperature=before.temperature,
            min_scores=before.min_scores | changed.min_scores,
            ignore_under=before.ignore_under | changed.ignore_under,
            stated=stated,
        )
    text = calibration_text.text(path, BoardCalibration(experts=entries, board=spec.board))
    found = content.model_copy(update={"calibration": text})
    found.board(name)
    return found
