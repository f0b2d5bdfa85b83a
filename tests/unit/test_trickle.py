"""The boards of `python -m apps.trickle`; the runs themselves are measured by hand (docs/results/foresight.md)."""

from __future__ import annotations

from apps.trickle import pictures
from coe.board.parts import PlacedPart

PARTS = (PlacedPart("C", "C1"), PlacedPart("R", "R1"))


def places(*, named: bool) -> list[tuple[str, str, str]]:
    return [(each.component, each.serial, each.refdes) for each in pictures(PARTS, 2, 0, named=named)]


def test_boards_come_one_after_another_with_the_names_of_their_parts() -> None:
    assert places(named=True) == [("C", "S0", "C1"), ("R", "S0", "R1"), ("C", "S1", "C1"), ("R", "S1", "R1")]


def test_without_names_nothing_can_be_foreseen() -> None:
    assert places(named=False) == [("C", "", ""), ("R", "", ""), ("C", "", ""), ("R", "", "")]
