"""Exams made by hand, for experts of a board or of a store."""

from dataclasses import replace

from coe.board.union import Member, union
from coe.core import Shown
from coe.store.exam import Exam, ExamItem, stops_of

PASSED_OF_20 = {True: 0, False: 19}
"""How many of 20 an expert lets pass that stops an item, and one that is blind to it."""


def exam(**stops):
    """Return an exam of 20 pictures of each item, by whether the expert stops it."""
    return Exam(
        items=tuple(
            ExamItem(item=Shown(name), shown=20, passed=PASSED_OF_20[is_stopped]) for name, is_stopped in stops.items()
        )
    )


def give(store, weights, taken):
    with store.changing(weights) as manifest:
        store.rewrite(manifest.model_copy(update={"exam": taken}))


def examined(rules, exams):
    """Return a board whose experts took exams, as a line makes it of their manifests."""
    experts = {id: replace(expert, stops=stops_of(exams.get(id))) for id, expert in rules.experts.items()}
    return union([Member("", rules, experts)])
