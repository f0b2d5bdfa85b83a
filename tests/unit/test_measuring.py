"""Costs that are worked out from other measurings: an expert of another size, and another disk."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from coe.core import Expert
from coe.inspector.measuring import _adapted, _from_disk, _whole, divided, profiled_cost
from coe.scheduler.costs import Body, Cost
from coe.store.manifest import StoredFile

SMALL, LARGE = (Expert(name, "k", ("ok",), 64, f"t/{name}") for name in ("small", "large"))
COST = Cost(per_image_s=0.1, base_s=0.2, load_s=1.0, weights_bytes=1000, activation_bytes=10, copy_s=0.25)


def test_reads_and_copies_take_time_by_their_bytes() -> None:
    adapted = _adapted(COST, SMALL, LARGE, 1000, 3000)
    assert (adapted.load_s, adapted.copy_s) == (3.0, 0.75)
    line = SimpleNamespace(per_image_s=0.1, base_s=0.2)
    sizes = {"input_size": 64, "weights_bytes": 1000, "activation_bytes": 10, "workspace_bytes": 0, "max_batch": 8}
    kind = SimpleNamespace(line=line, load_s=1.0, copy_s=0.25, **sizes)
    cost = profiled_cost(kind, LARGE, 3000)  # type: ignore[arg-type]
    assert (cost.load_s, cost.copy_s) == (3.0, 0.75)


def test_a_session_takes_what_was_measured_and_no_less_than_its_file() -> None:
    sizes = {"input_size": 64, "weights_bytes": 9000, "activation_bytes": 10, "workspace_bytes": 0, "max_batch": 8}
    kind = SimpleNamespace(line=SimpleNamespace(per_image_s=0.1, base_s=0.2), load_s=1.0, copy_s=0.0, **sizes)
    taken = [
        profiled_cost(kind, replace(SMALL, variant=variant), size).weights_bytes  # type: ignore[arg-type]
        for variant, size in (("fp32", 4096), ("int8", 4096), ("int8", 12288))
    ]
    assert taken == [4096, 9000, 12288]


@pytest.mark.parametrize(("bytes_per_s", "load_s"), [(None, 1.0), (1000, 1.25), (100, 10.25), (10_000, 1.0)])
def test_a_slow_disk_holds_up_the_read_and_the_copy_comes_after_it(bytes_per_s: int | None, load_s: float) -> None:
    cost = _from_disk(COST, 1000, bytes_per_s)
    assert (cost.load_s, cost.copy_s) == (load_s, 0.25)


def test_an_expert_and_its_body_take_their_parts_of_the_time_of_the_whole() -> None:
    body = StoredFile(file="fp32-x.blob.safetensors", bytes=3000, digest="x")
    cost = divided(COST, 1000, body)
    assert (cost.load_s, cost.copy_s, cost.weights_bytes) == (0.25, 0.0625, 4096)
    assert cost.body == Body("x", 4096, 0.75, 0.1875)
    assert cost.whole_bytes == 2 * 4096
    whole = _whole(cost)
    assert (whole.load_s, whole.copy_s, whole.body) == (1.0, 0.25, None)
    assert _whole(COST) == COST
