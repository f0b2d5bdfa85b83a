"""The parts of an expert's id, with a board and without."""

from __future__ import annotations

import pytest

from coe.store.expert_id import ExpertId


@pytest.mark.parametrize(
    ("text", "board", "name", "folders"),
    [("demo/resistor", "demo", "resistor", ("demo", "resistor")), ("resistor", "", "resistor", ("resistor",))],
)
def test_an_id_is_its_parts_and_back(text: str, board: str, name: str, folders: tuple[str, ...]) -> None:
    expert = ExpertId.of(text)
    assert expert == ExpertId(board, name)
    assert (expert.folders, str(expert)) == (folders, text)
