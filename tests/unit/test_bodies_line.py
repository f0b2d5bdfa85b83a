"""A line of experts that share a body finds what it found before they shared, to the digit."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common_trunk import BOARD
from fake_gpu import FakeDriver
from tables import with_slow_rows

from coe import Inspector, Picture
from coe.core import FailureKind, Finding, Result
from coe.prepare.sharing import Sharing
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Evict, Load
from coe.store import bodies
from coe.store.store import Store
from coe.store.variants import put
from coe.testing import Experiment


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    chance = np.random.default_rng(3)
    noise = [chance.integers(0, 255, (32, 32, 3), dtype=np.uint8) // (1 + number % 5) for number in range(24)]
    return [Picture(pixels, "ABCD"[number % 4], name=f"{number}") for number, pixels in enumerate(noise)]


def inspected(store: Path, pictures: list[Picture], tmp_path: Path, **options: object) -> dict[str, Result]:
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(board, store=store, profile=None, **options) as line:
        # One by one: which images share a batch may change the last digit of a score.
        return {p.name: line.submit(p.image, p.component, name=p.name).result() for p in pictures}


def found(results: dict[str, Result]) -> dict[str, tuple[Finding, ...]]:
    assert all(result.failure is None for result in results.values())
    return {name: result.findings for name, result in results.items()}


@pytest.mark.parametrize("precision", with_slow_rows(["mixed", "fp32"], fast=1))
def test_every_finding_is_equal_to_the_digit_before_and_after_sharing(
    prepared_trunk: Path, shared_trunk: Path, pictures: list[Picture], tmp_path: Path, precision: str
) -> None:
    options = {
        "memory": "13MB",
        "precision": precision,
        "experiment": Experiment(label_floor=0.0),
        "executors": "cpu=1",
    }
    before = found(inspected(prepared_trunk, pictures, tmp_path, **options))
    assert found(inspected(shared_trunk, pictures, tmp_path, **options)) == before


def test_on_a_gpu_too(
    prepared_trunk: Path, shared_trunk: Path, pictures: list[Picture], tmp_path: Path, driver: FakeDriver
) -> None:
    options = {"device_memory": "70MB", "host_memory": "8MB", "executors": "cuda=1", "memory": "200MB"}
    before = found(inspected(prepared_trunk, pictures, tmp_path, **options))
    assert found(inspected(shared_trunk, pictures, tmp_path, **options)) == before


def test_a_body_that_is_missing_fails_the_images_of_its_experts_alone(
    shared_trunk: Path, pictures: list[Picture], tmp_path: Path
) -> None:
    store = Store(shutil.copytree(shared_trunk, tmp_path / "store"))
    body = store.manifest("trunk/a").variants["fp32"].body
    (store.bodies / body.file).unlink()
    results = inspected(store.root, pictures, tmp_path, memory="100MB", executors="cpu=1")
    for result in results.values():
        if result.request.component == "D":
            assert result.failure is None
        else:
            assert result.failure.kind is FailureKind.LOAD
            assert f"body {body.file}" in result.failure.reason


def test_a_pool_brings_a_body_with_the_first_of_its_experts_and_drops_it_with_the_last(
    shared_trunk: Path, pictures: list[Picture], tmp_path: Path
) -> None:
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(
        board,
        store=shared_trunk,
        memory="13MB",
        executors="cpu=1",
        profile=None,
        experiment=Experiment(keep_trace=True),
    ) as line:
        # Twice, so that experts leave and come again.
        for _ in range(2):
            found({result.request.image: result for result in line.stream(pictures)})
        device = line._assembly.devices["cpu"]
        assert isinstance(device, CpuDevice)
        pool = line.plan.pools[0].id
        resident = {expert for _, expert in device._resident}
        assert set(device._bodies) == ({(pool, _digest(shared_trunk))} if resident & set("abc") else set())
        assert not any(loaded.blob.owns_body for loaded in device._resident.values())
    commands = [command for _, _, some in line.trace for command in some]
    moves = [command for command in commands if isinstance(command, Load | Evict) and command.expert in "abc"]
    assert sum(isinstance(command, Load) for command in moves) > 3
    held: set[str] = set()
    is_there = False
    for command in moves:  # the body stays for an expert that comes as the last one leaves
        if isinstance(command, Load):
            assert (command.body is None) == is_there
            held.add(command.expert)
            is_there = True
        else:
            held.discard(command.expert)
            if command.body is not None:
                assert not held
                is_there = False


def _digest(store: Path) -> str:
    body = Store(store).manifest("trunk/a").variants["fp32"].body
    return body.digest


@pytest.mark.parametrize("on_gpu", with_slow_rows([False, True], fast=1))
def test_an_expert_that_is_trained_again_joins_the_body_that_is_resident(
    shared_trunk: Path, pictures: list[Picture], tmp_path: Path, driver: FakeDriver, on_gpu: bool
) -> None:
    """b is trained again, shares again, and comes with the next change of boards; no body stays that nobody needs."""
    store, board = Store(shutil.copytree(shared_trunk, tmp_path / "store")), tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    options: dict[str, object] = {"store": store.root, "profile": None, "memory": "13MB", "executors": "cpu=1"}
    if on_gpu:
        options |= {"executors": "cuda=1", "memory": "200MB", "device_memory": "70MB", "host_memory": "8MB"}
    few = [picture for picture in pictures if picture.component in "ABD"]
    with Inspector(board, **options) as line:
        before = labels(line, few)
        manifest, state = store.manifest("trunk/b"), store.load("trunk/b")
        prepared = manifest.variants["fp32"]
        blob = bodies.whole_blob(store, manifest, prepared)
        state["fc.bias"] = state["fc.bias"] + 1  # of both labels, so it says the same
        store.put("trunk/b", kind="narrow", labels=manifest.labels, input_size=32, state=state)
        with store.changing("trunk/b") as trained:
            assert prepared.agreement is not None
            put(store, trained, blob, agreement=prepared.agreement, escalate_below=0.0)
        assert Sharing(store).share_new("trunk/b", "trunk/a") is not None
        line.set_boards(board)
        assert "b" not in line.rules.experts  # it has another name, as it has other weights
        assert labels(line, few) == labels(line, few) == before
        line.drain()
        (pool,) = line._engine.controller.pools.values()
        pool.check()
        sharers = [expert for expert in pool.by_arrival() if expert != "d"]
        (device,) = line._assembly.devices.values()
        held: Any = device.memory._bodies if on_gpu else device
        assert list(held._bodies) == ([(pool.id, _digest(store.root))] if sharers else [])


def labels(line: Inspector, pictures: list[Picture]) -> dict[str, list[str]]:
    results = {result.request.image: result for result in line.stream(pictures)}
    return {name: [finding.label for finding in findings] for name, findings in found(results).items()}
