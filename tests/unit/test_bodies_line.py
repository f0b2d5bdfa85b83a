"""A line of experts that have a body finds what it finds with whole experts, to the digit."""

import shutil

import numpy as np
import pytest
from common_trunk import BOARD, share
from tables import with_slow_rows

from coe import Inspector, Picture
from coe.core import FailureKind
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Load
from coe.store import bodies
from coe.store.store import Store
from coe.store.variants import put
from coe.testing import Experiment


@pytest.fixture(scope="module")
def pictures():
    chance = np.random.default_rng(3)
    noise = [chance.integers(0, 255, (32, 32, 3), dtype=np.uint8) // (1 + number % 5) for number in range(24)]
    return [Picture(pixels, "ABCD"[number % 4], name=f"{number}") for number, pixels in enumerate(noise)]


def inspected(store, pictures, tmp_path, **options):
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(board, store=store, profile=None, **options) as line:
        # One by one: which images share a batch may change the last digit of a score.
        return {p.name: line.submit(p.image, p.component, name=p.name).result() for p in pictures}


def found(results):
    assert all(result.failure is None for result in results.values())
    return {name: result.findings for name, result in results.items()}


ON_CPU = {"memory": "13MB", "executors": "cpu=1"}
ON_GPU = {"device_memory": "80MB", "host_memory": "8MB", "executors": "cuda=1", "memory": "200MB"}


@pytest.mark.parametrize("options", [ON_CPU, ON_GPU], ids=["cpu", "gpu"])
def test_every_finding_is_equal_to_the_digit_whole_and_with_a_body(
    prepared_trunk, shared_trunk, pictures, tmp_path, driver, options
):
    before = found(inspected(prepared_trunk, pictures, tmp_path, **options))
    assert found(inspected(shared_trunk, pictures, tmp_path, **options)) == before


def test_a_missing_body_fails_its_experts_alone(shared_trunk, pictures, tmp_path):
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


def body_of(store):
    body = Store(store).manifest("trunk/a").variants["fp32"].body
    return body


def test_a_body_stays_while_experts_come_and_go(shared_trunk, pictures, tmp_path):
    board = tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    with Inspector(board, store=shared_trunk, profile=None, experiment=Experiment(keep_trace=True), **ON_CPU) as line:
        (device,) = line._assembly.devices.values()
        assert isinstance(device, CpuDevice)
        # Twice, so that experts leave and come again.
        for _ in range(2):
            found({result.request.image: result for result in line.stream(pictures)})
            assert list(device._bodies) == [body_of(shared_trunk).digest]
    commands = [command for _, _, some in line.trace for command in some]
    assert sum(isinstance(command, Load) and command.expert in "abc" for command in commands) > 3


def test_pools_give_up_what_a_body_takes_that_a_change_of_boards_brings(shared_trunk, tmp_path):
    both, alone = tmp_path / "trunk.yaml", tmp_path / "alone.yaml"
    both.write_text(BOARD, encoding="utf-8")
    alone.write_text(
        "board: alone\nexperts:\n  d: {kind: narrow, labels: [ok, bad], input: 32, weights: trunk/d}\n"
        "components:\n  D: {count: 1, inspect: d, then: {ok: OK, bad: NG}}\n",
        encoding="utf-8",
    )
    options = {"store": shared_trunk, "profile": None, **ON_CPU}
    with Inspector(alone, **options) as line:
        before = line.plan.pools[0].capacity_bytes
        line.set_boards(both)
        after = line.plan.pools[0].capacity_bytes
        assert before - after >= body_of(shared_trunk).bytes
        line.set_boards(alone)
        assert line.plan.pools[0].capacity_bytes == after, "the body stays"
    with Inspector(both, **options) as line:
        assert line.plan.pools[0].capacity_bytes == pytest.approx(after, rel=0.02)


@pytest.mark.parametrize("on_gpu", with_slow_rows([False, True], fast=1))
def test_an_expert_that_is_trained_again_joins_the_body_that_is_resident(
    shared_trunk, pictures, tmp_path, driver, on_gpu
):
    """b is trained again with the same layers frozen, and comes with the next change of boards."""
    store, board = Store(shutil.copytree(shared_trunk, tmp_path / "store")), tmp_path / "trunk.yaml"
    board.write_text(BOARD, encoding="utf-8")
    few = [picture for picture in pictures if picture.component in "ABD"]
    with Inspector(board, store=store.root, profile=None, **(ON_GPU if on_gpu else ON_CPU)) as line:
        before = labels(line, few)
        manifest, state = store.manifest("trunk/b"), store.load("trunk/b")
        prepared = manifest.variants["fp32"]
        blob = bodies.whole_blob(store, manifest, prepared)
        state["fc.bias"] = state["fc.bias"] + 1  # of both labels, so it says the same
        store.put("trunk/b", kind="narrow", labels=manifest.labels, input_size=32, state=state)
        with store.changing("trunk/b") as trained:
            put(store, trained, blob, agreement=prepared.agreement, escalate_below=0.0)
        share(store, "trunk/b")
        line.set_boards(board)
        assert "b" not in line.rules.experts  # it has another name, as it has other weights
        assert labels(line, few) == labels(line, few) == before
        line.drain()
        (pool,) = line._engine.controller.pools.values()
        pool.check()
        (device,) = line._assembly.devices.values()
        held = device.memory.bodies if on_gpu else device
        assert list(held._bodies) == [body_of(store.root).digest]


def labels(line, pictures):
    results = {result.request.image: result for result in line.stream(pictures)}
    return {name: [finding.label for finding in findings] for name, findings in found(results).items()}
