"""How many threads a line has for its pictures and its networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from coe import Inspector, system
from coe.inspector import cores, line_devices


@pytest.mark.parametrize(("usable", "workers"), [(1, 2), (2, 2), (4, 2), (5, 3), (16, 14)])
def test_pictures_are_decoded_by_all_threads_but_two(
    monkeypatch: pytest.MonkeyPatch, usable: int, workers: int
) -> None:
    monkeypatch.setattr(line_devices, "usable_cores", lambda: usable)
    assert line_devices.decode_workers() == workers


def test_a_line_opens_with_the_cores_that_other_programs_leave_free(
    monkeypatch: pytest.MonkeyPatch, tiny: tuple[Path, Path]
) -> None:
    path, store = tiny
    monkeypatch.setattr(cores, "_looks", [])
    monkeypatch.setattr(cores, "free_cores", lambda: 1)
    monkeypatch.setattr(system, "usable_cores", lambda: 2)
    made = []

    def noted(numbers, store, known, threads, **options):
        made.append(dict(threads))
        return line_devices.make(numbers, store, known, threads, **options)

    with Inspector(path, store=store, make_devices=noted):
        pass
    assert made == [{"cpu": 1}]
