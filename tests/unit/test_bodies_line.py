"""A line of experts that share a body finds what it found before they shared, to the digit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from common_trunk import BOARD
from fake_gpu import FakeDriver

from coe import Inspector, Picture
from coe.core import FailureKind, Finding, Result
from coe.runtime.blob import Blob
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Evict, Load
from coe.store.store import Store


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    chance = np.random.default_rng(3)
    noise = [chance.integers(0, 255, (32, 32, 3), dtype=np.uint8) // (1 + number % 5) for number in range(24)]
    return [Picture(pixels, "ABCD"[number % 4], name=f"{number}") for number, pixels in enumerate(noise)]


def inspected(store: Path, pictures: list[Picture], tmp_path: Path, **options: object) -> dict[str, Result]:
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(board, store=store, profile=None, **options) as line:  # type: ignore[arg-type]
        # One by one: which images share a batch may change the last digit of a score.
        return {p.name: line.submit(p.image, p.component, name=p.name).result() for p in pictures}


def found(results: dict[str, Result]) -> dict[str, tuple[Finding, ...]]:
    assert all(result.failure is None for result in results.values())
    return {name: result.findings for name, result in results.items()}


@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_every_finding_is_equal_to_the_digit_before_and_after_sharing(
    prepared_trunk: Path, shared_trunk: Path, pictures: list[Picture], tmp_path: Path, precision: str
) -> None:
    options = {"memory": "32MB", "precision": precision, "label_floor": 0.0, "executors": "cpu=1"}
    before = found(inspected(prepared_trunk, pictures, tmp_path, **options))
    assert found(inspected(shared_trunk, pictures, tmp_path, **options)) == before


def test_on_a_gpu_too(
    prepared_trunk: Path, shared_trunk: Path, pictures: list[Picture], tmp_path: Path, driver: FakeDriver
) -> None:
    options = {"device_memory": "100MB", "host_memory": "20MB", "executors": "cuda=1", "memory": "200MB"}
    before = found(inspected(prepared_trunk, pictures, tmp_path, **options))
    assert found(inspected(shared_trunk, pictures, tmp_path, **options)) == before


def test_a_body_that_is_missing_fails_the_images_of_its_experts_alone(
    shared_trunk: Path, pictures: list[Picture], tmp_path: Path
) -> None:
    store = Store(shutil.copytree(shared_trunk, tmp_path / "store"))
    body = store.manifest("trunk/a").variants["fp32"].body
    assert body is not None
    (store.bodies / body.file).unlink()
    results = inspected(store.root, pictures, tmp_path, memory="100MB", executors="cpu=1")
    for result in results.values():
        if result.request.component == "D":
            assert result.failure is None
        else:
            assert result.failure is not None
            assert result.failure.kind is FailureKind.LOAD
            assert f"body {body.file}" in result.failure.reason


def test_a_pool_brings_a_body_with_the_first_of_its_experts_and_drops_it_with_the_last(
    shared_trunk: Path, pictures: list[Picture], tmp_path: Path
) -> None:
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(board, store=shared_trunk, memory="32MB", executors="cpu=1", profile=None, keep_trace=True) as line:
        # Twice, so that experts leave and come again.
        for _ in range(2):
            found({result.request.image: result for result in line.stream(pictures)})
        device = line._assembly.devices["cpu"]
        assert isinstance(device, CpuDevice)
        pool = line.plan.pools[0].id
        resident = {expert for _, expert in device._resident}
        assert set(device._bodies) == ({(pool, _digest(shared_trunk))} if resident & set("abc") else set())
        assert not any(blob.owns_body for blob in device._resident.values() if isinstance(blob, Blob))
    commands = [command for _, _, some in line.trace for command in some]
    moves = [command for command in commands if isinstance(command, Load | Evict) and command.expert in "abc"]
    assert sum(isinstance(command, Load) for command in moves) > 3
    held: set[str] = set()
    for command in moves:
        if isinstance(command, Load):
            assert command.body or held
            held.add(command.expert)
        else:
            held.discard(command.expert)
            assert (command.body is not None) == (not held)


def _digest(store: Path) -> str:
    body = Store(store).manifest("trunk/a").variants["fp32"].body
    assert body is not None
    return body.digest
