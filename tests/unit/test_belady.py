"""Belady's choice for stages in the order of their images."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from coe.lab.bounds.belady import belady_switches


def switches(stages: str, room: int, resident: str = "", sizes: dict[str, int] | None = None) -> int:
    return belady_switches(list(stages), sizes or dict.fromkeys("abcd", 1), room, list(resident))


def test_the_expert_whose_next_stage_is_furthest_off_leaves() -> None:
    assert switches("abcab", 2) == 4
    assert switches("abcabc", 3) == 3
    assert switches("abab", 2, resident="ab") == 0
    assert switches("abca", 2, resident="bc") == 2


def test_an_expert_that_is_needed_no_more_leaves_first() -> None:
    assert switches("abcbc", 2) == 3


def test_a_large_expert_takes_the_room_of_two() -> None:
    assert switches("abcab", 3, sizes={"a": 1, "b": 1, "c": 2}) == 4


@given(st.text("abcd", max_size=9), st.integers(1, 3), st.text("abcd", max_size=3))
def test_no_choice_of_who_leaves_switches_less(stages: str, room: int, first: str) -> None:
    resident = frozenset(list(dict.fromkeys(first))[:room])

    @cache
    def least(at: int, here: frozenset[str]) -> int:
        if at == len(stages):
            return 0
        if stages[at] in here:
            return least(at + 1, here)
        if len(here) < room:
            return 1 + least(at + 1, here | {stages[at]})
        return 1 + min(least(at + 1, here - {leaving} | {stages[at]}) for leaving in here)

    assert switches(stages, room, "".join(sorted(resident))) == least(0, resident)
