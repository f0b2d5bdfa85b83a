"""A line on machines of a Ray cluster: real processes, which are killed and started in the middle of a run.

`tests/unit/test_cluster_line.py` has the cases; here is proof that Ray carries the same messages.
"""

from __future__ import annotations

import os
import queue
import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from narrow_deadly import DEADLY
from thread_boxes import same
from tiny_line import fill

from coe import Inspector, Picture
from coe.board import rules
from coe.cluster import actor, over_ray
from coe.core import Failure, FailureKind
from coe.errors import ConfigError
from coe.store.store import Store
from coe.testing import Experiment

pytest.importorskip("ray", reason="Ray is not installed (requirements.real.lock)")
pytestmark = [pytest.mark.slow, pytest.mark.serial, pytest.mark.filterwarnings("default")]

STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def cluster():
    """A head node, whose processors are not for Ray; each test adds machines."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parents[1]
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here.parent), str(here / "installed"), *_path()]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray lets its processes wait for all others: where other tests keep the cores busy, they began after minutes.
        patch.setenv("RAY_worker_niceness", "0")
        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


def _path():
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture
def machine(cluster):
    nodes = []

    def add():
        nodes.append(cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))
        return nodes[-1]

    yield add
    for node in nodes:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)


def test_other_versions_and_a_cluster_without_machines_are_refused(cluster, machine, tiny, monkeypatch):
    with pytest.raises(ConfigError, match="processors"):
        Inspector(tiny[0], store=tiny[1], cluster=cluster.address)
    machine()
    monkeypatch.setattr(over_ray, "versions", lambda: {**actor.versions(), "coe": "9"})
    with pytest.raises(ConfigError, match=r"box1@.* coe .* 9"):
        Inspector(tiny[0], store=tiny[1], cluster=cluster.address)


def test_a_day_of_three_machines(cluster, machine, tiny, pictures, alone):
    """Two machines; one is killed in the middle of a run; another comes. Every result is that of one box."""
    machine()
    dies, said = machine(), queue.SimpleQueue[str]()
    with Inspector(tiny[0], store=tiny[1], cluster=cluster.address, say=said.put) as line:
        assert line.ready(60)
        same({result.request.image: result for result in line.stream(pictures)}, alone)
        assert line.metrics().stages == sum(len(result.findings) for result in alone.values())
        results = {}
        again = [replace(picture, name=f"{picture.name}/{turn}") for turn in range(20) for picture in pictures]
        for result in line.stream(again):
            assert result.request.image not in results
            results[result.request.image] = result
            if len(results) == 100:
                cluster.remove_node(dies, allow_graceful=False)
        assert len(results) == len(again)
        for turn in range(20):
            part = {name: results[f"{name}/{turn}"] for name in alone}
            same({n: replace(r, request=replace(r.request, image=n)) for n, r in part.items()}, alone)
        assert "1 boxes" in repr(line)
        machine()
        while "joined" not in said.get(timeout=90):
            pass
        same({result.request.image: result for result in line.stream(pictures)}, alone)
        assert "2 boxes" in repr(line)


def test_a_picture_that_ends_processes_ends_two_and_is_answered(cluster, machine, own_tiny, pictures, capfd):
    board, store = own_tiny
    board.write_text(board.read_text(encoding="utf-8").replace("kind: narrow,", "kind: narrow_deadly,"), "utf-8")
    fill(Store(store), rules.load(board))
    with Inspector(board, store=store) as line:
        expected = {result.request.image: result.verdict for result in line.stream(pictures)}
    deadly = np.full((60, 60, 3), DEADLY[::-1], np.uint8)
    shown = [*pictures[:9], Picture(deadly, "A", name="deadly"), *pictures[9:]]
    for _ in range(3):
        machine()
    with Inspector(board, store=store, cluster=cluster.address) as line:
        results = {result.request.image: result for result in line.stream(shown)}
        assert "1 boxes" in repr(line)
    failure = results.pop("deadly").failure
    assert failure.kind is FailureKind.RUN
    assert re.fullmatch(r"box\d@\S+ and box\d@\S+ crashed while they had this image; .*", failure.reason)
    assert {name: result.verdict for name, result in results.items()} == expected
    assert "raylet" not in capfd.readouterr().out, "results may go to standard output"


def test_two_lines_of_one_process_share_a_cluster(cluster, machine, tiny, pictures, alone):
    machine()
    with Inspector(tiny[0], store=tiny[1], cluster=cluster.address) as second:
        with Inspector(tiny[0], store=tiny[1], cluster="auto", experiment=Experiment(costs=second.costs)) as first:
            same({result.request.image: result for result in first.stream(pictures)}, alone)
        same({result.request.image: result for result in second.stream(pictures)}, alone)


def test_an_image_larger_than_the_object_store_goes_over_the_disk_and_a_killed_process_is_noticed(
    cluster, machine, tiny, pictures
):
    machine()
    side = round((STORE_BYTES / 3) ** 0.5) + 100
    with Inspector(tiny[0], store=tiny[1], cluster=cluster.address) as line:
        assert line.submit(np.full((side, side, 3), 90, np.uint8), "A").result(100).error is None
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "BoxProcess" in " ".join(process.cmdline()):
                    process.kill()
        while "0 boxes" not in repr(line):
            time.sleep(0.1)
        failure = line.submit(pictures[0].image, "A").result(20).failure
    assert failure == Failure(FailureKind.DEVICE, "every box of the cluster is lost")
