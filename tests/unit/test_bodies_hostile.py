"""Experts that share a body in a store where other things go wrong, or go on, at the same time."""

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from built_once import linked_copy
from common_trunk import AGREEMENT, IDS, LABELS, weights
from fake_gpu import FakeDriver
from full_disk import disk_of
from tables import with_slow_rows
from tiny_line import Call

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import StoreError
from coe.files import DiskFull
from coe.prepare.fold import fold
from coe.prepare.layout import lay_out
from coe.prepare.sharing import Sharing
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import bodies, kinds, variants
from coe.store.blob_format import Identity, Variant
from coe.store.kinds import ExpertInput
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.store.store_reader import reading
from coe.store.weights_file import header


@pytest.fixture
def whole(prepared_trunk: Path, tmp_path: Path) -> Store:
    return Store(linked_copy(prepared_trunk, tmp_path / "store"))


@pytest.fixture
def shared(shared_trunk: Path, tmp_path: Path) -> Store:
    return Store(shutil.copytree(shared_trunk, tmp_path / "shared"))


def put(store: Store, id: str, state: dict[str, torch.Tensor]) -> None:
    store.put(id, kind="narrow", labels=("ok", "bad"), input_size=32, state=state)


# Other experts of the store


def test_a_damaged_expert_elsewhere_in_the_store_does_not_keep_a_board_from_sharing(whole: Store) -> None:
    put(whole, "other/x", weights("d"))
    (whole.folder("other/x") / "manifest.json").write_text("{", encoding="utf-8")
    (whole.bodies).mkdir()
    (whole.bodies / "old.safetensors").write_bytes(b"nobody knows")
    outcome = Sharing(whole).share(IDS)
    assert (outcome.divided, outcome.failed) == (tuple(IDS[:3]), {})
    # It may be the body of the expert whose manifest cannot be read.
    assert (whole.bodies / "old.safetensors").exists()


def test_no_expert_may_lie_in_the_folder_of_the_bodies(whole: Store) -> None:
    for id in ("bodies", "bodies/x", "Bodies/x"):
        with pytest.raises(StoreError, match=f"'{id}' is not an expert id"):
            put(whole, id, weights("d"))
    put(whole, "line/bodies", weights("d"))


# A body that is smaller than a layer


def prepare(store: Store, id: str, *wanted: Variant) -> None:
    kind, manifest = kinds.resolve("narrow"), store.manifest(id)
    assert isinstance(kind, kinds.ModuleKind)
    folded = fold(kind, Expert(id, "narrow", manifest.labels, 32, id), store.load(id))

    def identity(manifest: Manifest) -> Identity | None:
        path = store.folder(id) / manifest.file
        with reading(id, path):
            return header(path).identity

    for variant in wanted:
        # Another writer may replace the file meanwhile.
        own = store.steady(id, identity)
        made = lay_out(folded, variant, kind="narrow", labels=len(manifest.labels), identity=own)
        with store.changing(id) as manifest:
            variants.put(store, manifest, made.bytes, agreement=AGREEMENT, escalate_below=0.0)


@pytest.mark.parametrize("is_prepared_before", with_slow_rows([True, False], fast=1))
def test_a_layer_whose_norm_was_trained_on_is_in_no_prepared_body(tmp_path: Path, is_prepared_before: bool) -> None:
    """Folded, the layer is the expert's own: its blobs have no body, and the trained weights have."""
    store, id = Store(tmp_path / "store"), "t/a"
    put(store, id, weights("a"))
    if is_prepared_before:
        prepare(store, id, "fp32", "q8")
    with store.changing(id) as manifest:
        bodies.divide(store, manifest, {"conv1.weight", "bn1.weight", "bn1.bias"})
    if not is_prepared_before:
        prepare(store, id, "fp32", "q8")
    manifest = store.manifest(id)
    assert manifest.body is not None
    assert [blob.body for blob in manifest.variants.values()] == [None, None]
    store.check(id)
    expert, images = (
        Expert("a", "narrow", ("ok", "bad"), 32, id),
        [ExpertInput(np.full((3, 32, 32), 9, np.uint8), 32, 32)],
    )
    cpu = CpuDevice(store, {"narrow": kinds.resolve("narrow")}, 1)
    gpu = CudaDevice(store, {"narrow": kinds.resolve("narrow")}, FakeDriver(), executors=1, memory_bytes=100 << 20)
    found = []
    for device in (cpu, gpu):
        device.prepare([expert])
        device.read("pool", expert, body=True)
        device.load("pool", expert, body=True)
        found.append(device.run("one", "pool", expert, images)[0].label)
    assert found[0] == found[1]


# What goes on at the same time


@contextmanager
def swept_by_another(store: Store, monkeypatch: pytest.MonkeyPatch, id: str) -> Iterator[None]:
    """Just before the manifest of an expert is written, train `trunk/a` again, and sweep as `share` does."""
    rewrite = Store.rewrite
    threads: list[threading.Thread] = []

    def rewritten(self: Store, manifest: Manifest) -> None:
        if manifest.id == id and not threads:
            put(store, "trunk/a", weights("d"))
            threads.append(threading.Thread(target=bodies.sweep, args=[store]))
            threads[0].start()
            threads[0].join(0.3)
        rewrite(self, manifest)

    monkeypatch.setattr(Store, "rewrite", rewritten)
    yield
    threads[0].join()


def test_no_body_is_swept_away_while_another_expert_is_linked_to_it(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in IDS[1:3]:  # so that a alone holds the body
        put(shared, id, weights("d"))
    with swept_by_another(shared, monkeypatch, "trunk/e"):
        shared.link("trunk/e", "trunk/a", labels=("ok", "bad"))
    shared.check("trunk/e")


def test_an_expert_whose_body_is_missing_is_not_linked(shared: Store) -> None:
    body = shared.manifest("trunk/a").body
    (shared.bodies / body.file).unlink()
    with pytest.raises(StoreError, match=rf"trunk/a: {body.file}.*No such file"):
        shared.link("trunk/e", "trunk/a", labels=("ok", "bad"))
    assert "trunk/e" not in shared.ids()


def test_an_expert_that_is_removed_meanwhile_is_named_and_the_others_are_shared(
    whole: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = bodies.sweep

    def removed(store: Store) -> None:
        shutil.rmtree(store.folder("trunk/d"))
        sweep(store)

    monkeypatch.setattr(bodies, "sweep", removed)
    outcome = Sharing(whole).share(IDS)
    assert outcome.divided == tuple(IDS[:3])
    assert "no expert 'trunk/d'" in outcome.failed["trunk/d"]


# A full disk


@pytest.mark.parametrize("size", [1 << 12, 2_200_000])
def test_a_disk_that_is_full_for_the_body_or_for_the_rest_leaves_the_expert_whole(whole: Store, size: int) -> None:
    """The body has 2.0 MB, and the rest has 2.4."""
    before = whole.manifest("trunk/a")
    with disk_of(size), pytest.raises(DiskFull, match="trunk/a: there is no room"):
        Sharing(whole).share(IDS)
    assert whole.check("trunk/a") == before
    assert Sharing(whole).share(IDS).divided == tuple(IDS[:3])
    assert not list(whole.root.rglob(".*.tmp"))


def test_an_export_onto_a_full_disk_says_so_and_leaves_nothing(shared: Store, call: Call, tmp_path: Path) -> None:
    with disk_of(1 << 20):
        said = call("export", "trunk/a", tmp_path / "a.safetensors", "--store", shared.root, command=experts_command)
    assert said.status == 2
    assert "a.safetensors cannot be written: File too large" in said.words
    assert sorted(path.name for path in tmp_path.iterdir() if "safetensors" in path.name) == []


# All at once


def test_experts_are_shared_trained_prepared_linked_and_removed_at_once(whole: Store) -> None:
    """Each writer succeeds, or says what another did. In the end every expert is sound, and no body lies idle."""
    states = {id: whole.load(id) for id in IDS}
    said: list[str] = []

    def tell(work: Callable[[], object]) -> None:
        for _ in range(3):
            try:
                work()
            except StoreError as error:
                said.append(str(error))

    def share() -> None:
        said.extend(Sharing(whole).share(IDS).failed.values())

    def remove() -> None:
        shutil.rmtree(whole.folder("trunk/d"), ignore_errors=True)
        put(whole, "trunk/d", states["trunk/d"])

    works = [
        share,
        share,
        remove,
        lambda: put(whole, "trunk/b", states["trunk/b"]),
        lambda: prepare(whole, "trunk/a", "q8"),
        lambda: whole.link("trunk/e", "trunk/a", labels=("ok", "bad")),
    ]
    threads = [threading.Thread(target=tell, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    known = ("changed while it was compared", "no expert 'trunk/d'", "cannot be written", "trunk/d: weights")
    assert [reason for reason in said if not any(words in reason for words in known)] == []
    put(whole, "trunk/d", states["trunk/d"])
    assert Sharing(whole).share(IDS).failed == {}
    for id in [*IDS, "trunk/e"]:
        whole.check(id)
    assert len({whole.manifest(id).body for id in IDS[:3]}) == 1
    named = {body.file for id in whole.ids() for body in whole.manifest(id).bodies}
    assert {path.name for path in whole.bodies.glob("*.safetensors")} == named


# Random loads, evictions and batches on a CPU


IMAGE = ExpertInput(np.random.default_rng(5).integers(0, 255, (3, 32, 32), dtype=np.uint8), 32, 32)
VARIANTS: tuple[Variant, ...] = ("fp32", "q8")
EXPERTS = [
    Expert(f"{name} {variant}", "narrow", labels, 32, f"trunk/{name}", variant)
    for name, labels in LABELS.items()
    for variant in VARIANTS
]


class Pool:
    """A pool of a device, and the experts that hold each body there."""

    def __init__(self, store: Store) -> None:
        self.store, self.device = store, CpuDevice(store, {"narrow": kinds.resolve("narrow")}, 1)
        self.device.prepare(EXPERTS, executors=2)
        self.here: list[Expert] = []

    def body_of(self, expert: Expert) -> str | None:
        body = self.store.manifest(expert.weights).variants[expert.variant].body
        return None if body is None else body.digest

    def is_held(self, body: str | None) -> bool:
        return any(self.body_of(expert) == body for expert in self.here)

    def load(self, expert: Expert) -> None:
        body = self.body_of(expert)
        self.device.load("pool", expert, body=body is not None and not self.is_held(body))
        self.here.append(expert)

    def evict(self, expert: Expert) -> None:
        self.here.remove(expert)
        body = self.body_of(expert)
        self.device.evict("pool", expert, body=None if self.is_held(body) else body)

    def score(self, executor: str, expert: Expert) -> float:
        return self.device.run(executor, "pool", expert, [IMAGE])[0].score


@pytest.fixture(scope="module")
def expected(prepared_trunk: Path) -> dict[str, float]:
    """What each expert says while nothing is shared."""
    pool, scores = Pool(Store(prepared_trunk)), {}
    for expert in EXPERTS:
        pool.load(expert)
        scores[expert.id] = pool.score("one", expert)
    return scores


@pytest.mark.parametrize("seed", with_slow_rows(range(3), fast=1))
def test_slots_bind_the_right_body_whatever_came_before(
    shared_trunk: Path, expected: dict[str, float], seed: int
) -> None:
    dice, pool = random.Random(seed), Pool(Store(shared_trunk))
    for _ in range(60):
        expert = dice.choice(EXPERTS)
        if expert not in pool.here:
            pool.load(expert)
        elif dice.random() < 0.4:
            pool.evict(expert)
            continue
        for executor in dice.sample(["one", "two"], k=dice.randint(1, 2)):
            assert pool.score(executor, expert) == expected[expert.id]
    for expert in list(pool.here):
        pool.evict(expert)
    assert not list(pool.device._bodies)
    pool.device.trim()
    assert pool.device._buffers.allocated_bytes == 0
