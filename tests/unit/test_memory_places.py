"""The books of a GPU's memories follow a simulated run: what moves in runs, and in how many pieces copies lie."""

from __future__ import annotations

from apps.memory_places import watched
from coe.board import rules
from coe.lab.simulated_precision import VariantShares
from coe.sim.machine import Machine


def test_second_looks_move_gigabytes_in_runs_and_nothing_in_pieces() -> None:
    shares = VariantShares("mixed", doubtful=0.05, warm=True)
    places = watched(Machine("numa-rtx3080ti"), rules.load("board_a"), 2_500, shares, "line")
    in_runs, in_pieces = places.hosts
    assert sum(in_runs.moved) > 10**9
    assert in_runs.extents.used == in_pieces.extents.used > 11e9
    assert not in_pieces.moved
    assert 1 < max(in_pieces.pieces) < 20
    many = sum(number > 1 for number in in_pieces.pieces)
    assert str(in_pieces).startswith(f"{many} of {len(in_pieces.pieces)} copies")
