"""What a line takes over from an earlier one: anything else is refused by its name, before any thread starts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coe import Inspector
from coe.errors import ConfigError

WRONG = [
    *(("store", value) for value in (5, b"experts", "", True, ["experts"])),
    *(("costs", value) for value in (5, "costs.json", {}, [], lambda *_: None)),
]


@pytest.mark.parametrize(
    ("name", "value"), WRONG, ids=lambda value: type(value).__name__ if callable(value) else str(value)
)
def test_what_no_earlier_line_gave_is_refused_by_its_name(tiny: tuple[Path, Path], name: str, value: object) -> None:
    board, store = tiny
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=f"^{name}=.*: give "):
        Inspector(board, **{"store": store, "profile": None, name: value})  # type: ignore[arg-type]
    assert threading.active_count() == threads
