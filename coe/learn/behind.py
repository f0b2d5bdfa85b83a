"""Good parts for a classifier that knows none, as an imported one: an expert of kind `patch` stands behind its OK.

It learns from verified pictures of good parts. It is an expert of the board like others: the rules name it, and its
limits and its exam are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.board.drafting import flow
from coe.board.rules import Rules
from coe.config import CHOSEN_INPUT
from coe.core import NOTHING, Expert, Verdict
from coe.learn import backbones, evaluation, learning
from coe.learn.data_set import STRANGE
from coe.pictures.photographs import Photograph
from coe.store import kinds
from coe.store.kinds import Trained, TrainingPlan
from coe.store.store import Store

SUFFIX = "-near"
"""What the name of an expert behind another adds to its name."""
_KIND = "patch"


@dataclass(frozen=True, slots=True)
class Behind:
    """What an expert learned that is to stand behind another, and two lines of the board file that let it.

    `entry` is for `experts`, `then` for each step with the other expert.
    """

    id: str
    trained: Trained
    entry: str
    then: str


def learn(board: Rules, store: Store, id: str, pictures: Sequence[Photograph], root: Path) -> Behind:
    """Learn from those of an expert's verified pictures that are good, which lie in `root`, and store the new expert.

    Raises CoeError, as for too few good pictures.
    """
    of, new = board.experts[id], f"{id}{SUFFIX}"
    found = evaluation.good_of(board, id, pictures)
    good = tuple(Photograph(one.path, name=one.name, good=True) for one in found)
    expert = Expert(new, _KIND, (STRANGE,), CHOSEN_INPUT[1], f"{of.weights}{SUFFIX}", frozenset({STRANGE}))
    kind = kinds.resolve(_KIND)
    plan = TrainingPlan(root, root, 1, 1, 1e-3, photographs=good, bits=board.bits)
    start = backbones.start_of(store, kind)
    trained = learning.learn(store, expert, kind, plan, start, lambda *_: None)
    learning.put(store, expert, trained, start, f"learned from {len(good)} good pictures, as a check behind {id}")
    passing = [x for x in of.labels if any(step.outcomes.get(x) is Verdict.OK for step in board.steps_of(id))]
    entry = {"kind": _KIND, "labels": [STRANGE], "input": expert.input_size, "then": {STRANGE: "REVIEW", NOTHING: "OK"}}
    return Behind(new, trained, f"{flow(new)}: {flow(entry)}", f"then: {flow(dict.fromkeys(passing, new))}")
