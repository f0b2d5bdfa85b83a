"""Experts with one body: stored once, whole to everybody who reads them, and equal to the bit in every variant."""

import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from built_once import linked_copy
from common_trunk import AGREEMENT, IDS, LABELS, share, weights
from fake_gpu import FakeDriver
from full_disk import disk_of
from tables import with_slow_rows

from coe.cli import experts_command
from coe.config import KEPT_VERSIONS_VARIABLE
from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.files import DiskFull
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import bodies, kinds, variants, weights_file
from coe.store.kinds import ExpertInput
from coe.store.store import Store
from coe.store.store_reader import Snapshot, reading
from coe.variants.fold import fold
from coe.variants.layout import lay_out
from coe.variants.prepare import Preparer


@pytest.fixture
def whole(prepared_trunk, tmp_path):
    return Store(linked_copy(prepared_trunk, tmp_path / "store"))


@pytest.fixture
def shared(shared_trunk, tmp_path):
    return Store(shutil.copytree(shared_trunk, tmp_path / "shared"))


def manifests(store):
    return {id: store.manifest(id) for id in IDS}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def put(store, id, state):
    store.put(id, kind="narrow", labels=LABELS.get(id[-1], ("ok", "bad")), input_size=32, state=state)


def prepare(store, id, *wanted):
    manifest = store.manifest(id)
    folded = fold(kinds.resolve("narrow"), Expert(id, "narrow", manifest.labels, 32, id), store.load(id))

    def identity(manifest):
        path = store.folder(id) / manifest.file
        with reading(id, path):
            return weights_file.header(path).identity

    for variant in wanted:
        # Another writer may replace the file meanwhile.
        own = store.steady(id, identity)
        made = lay_out(folded, variant, kind="narrow", labels=len(manifest.labels), identity=own)
        with store.changing(id) as manifest:
            variants.put(store, manifest, made.bytes, agreement=AGREEMENT, escalate_below=0.0)


def test_a_body_is_stored_once_and_every_expert_is_whole_to_its_reader(whole):
    before, states = manifests(whole), {id: whole.load(id) for id in IDS}
    share(whole)
    after = manifests(whole)
    assert after["trunk/d"] == before["trunk/d"]
    # One file for the trained tensors, and one for each variant.
    assert len({file.file for id in IDS for file in after[id].bodies}) == len(list(whole.bodies.iterdir())) == 3
    (body,) = {after[id].body for id in IDS[:3]}
    assert sum(after[id].bytes for id in IDS) == pytest.approx(sum(before[id].bytes for id in IDS) - 3 * body.bytes, 1)
    for id in IDS:
        assert same(whole.load(id), states[id])
        whole.check(id)


def test_blobs_keep_their_bytes_their_agreement_and_their_thresholds(whole):
    before = manifests(whole)

    def held(manifest, variant):
        blob = bodies.whole_blob(whole, manifest, manifest.variants[variant])
        return {name: (bytes(one.data), bytes(one.scales or b"")) for name, one in blob.tensors().items()}

    tensors = {(id, variant): held(before[id], variant) for id in IDS for variant in before[id].variants}
    share(whole)
    for (id, variant), expected in tensors.items():
        manifest = whole.manifest(id)
        blob, was = manifest.variants[variant], before[id].variants[variant]
        assert held(manifest, variant) == expected
        assert (blob.agreement, blob.escalate_below) == (was.agreement, was.escalate_below)
        if blob.body is not None:
            assert blob.whole_bytes == pytest.approx(was.bytes, rel=0.02)
            assert blob.bytes < 0.75 * was.bytes


def test_a_divided_expert_that_is_prepared_again_has_the_same_body(shared):
    before = shared.manifest("trunk/b")
    outcome = Preparer(shared, [*before.variants], force=True).prepare("trunk/b")
    after = shared.manifest("trunk/b")
    assert (set(outcome.made), outcome.failed) == ({"fp32", "q8"}, {})
    for variant, blob in before.variants.items():
        assert blob.body is not None
        assert (blob.digest, blob.body) == (after.variants[variant].digest, after.variants[variant].body)
    shared.check("trunk/b")


def test_bodies_that_no_version_names_are_swept_away(shared, monkeypatch):
    monkeypatch.setenv(KEPT_VERSIONS_VARIABLE, "0")
    for id in IDS[:3]:
        put(shared, id, shared.load(id))
    bodies.sweep(shared)
    assert list(shared.bodies.iterdir()) == []
    put(shared, "other/x", weights("d"))
    (shared.folder("other/x") / "manifest.json").write_text("{", encoding="utf-8")
    (old := shared.bodies / "old.safetensors").write_bytes(b"nobody knows")
    bodies.sweep(shared)
    assert old.exists(), "an expert that nobody can read may need it"


def test_no_expert_may_lie_among_the_bodies_and_a_line_says_that_an_expert_changed(whole):
    for id in ("bodies", "bodies/x", "Bodies/x"):
        with pytest.raises(StoreError, match=f"'{id}'"):
            put(whole, id, weights("d"))
    put(whole, "line/bodies", weights("d"))
    snapshot = Snapshot(whole, manifests(whole))
    share(whole)
    assert snapshot.manifest("trunk/d").id == "trunk/d"
    with pytest.raises(StoreError, match=r"'trunk/a' changed.*\(weights, fp32, q8\)"):
        snapshot.manifest("trunk/a")


@pytest.mark.parametrize("is_prepared_before", with_slow_rows([True, False], fast=1))
def test_a_layer_whose_norm_was_trained_on_is_in_no_prepared_body(tmp_path, is_prepared_before):
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
    expert = Expert("a", "narrow", ("ok", "bad"), 32, id)
    images, known = [ExpertInput(np.full((3, 32, 32), 9, np.uint8), 32, 32)], {"narrow": kinds.resolve("narrow")}
    gpu = CudaDevice(store, known, FakeDriver(), executors=1, memory_bytes=100 << 20)
    found = set()
    for device in (CpuDevice(store, known, 1), gpu):
        device.prepare([expert])
        device.read("pool", expert)
        device.load("pool", expert)
        found.add(device.run("one", "pool", expert, images)[0].label)
    assert len(found) == 1


@pytest.mark.parametrize("variant", [None, "q8"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "train|prepare"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "damaged|truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "damaged"),
    ],
)
def test_a_body_that_is_missing_or_damaged_is_said_and_who_needs_it_not_linked(shared, variant, damage, words):
    manifest = shared.manifest("trunk/a")
    body = manifest.body if variant is None else manifest.variants["q8"].body
    damage(shared.bodies / body.file)
    with pytest.raises(StoreError, match=words):
        shared.check("trunk/a")
    shared.check("trunk/d")
    if variant is None and not (shared.bodies / body.file).exists():
        with pytest.raises(StoreError, match=body.file):
            shared.link("trunk/e", "trunk/a", labels=("ok", "bad"))
        assert "trunk/e" not in shared.ids()


def test_a_kill_between_the_body_and_the_rest_leaves_the_expert_as_it_was(whole, monkeypatch):
    before, state = whole.manifest("trunk/a"), whole.load("trunk/a")

    def kill(*_):
        raise KeyboardInterrupt

    for place in ("coe.store.bodies.tensor_files.write", "coe.store.bodies.Store.rewrite"):
        with monkeypatch.context() as patched:
            patched.setattr(place, kill)
            with pytest.raises(KeyboardInterrupt):
                share(whole, "trunk/a")
        assert whole.check("trunk/a") == before
        assert same(whole.load("trunk/a"), state)
    share(whole, "trunk/a")
    files, after = {path.name for path in whole.folder("trunk/a").iterdir()}, whole.manifest("trunk/a")
    assert files - {".lock"} == {"manifest.json", after.file, *(blob.file for blob in after.variants.values())}


@pytest.mark.parametrize("size", [1 << 12, 2_200_000])
def test_a_disk_that_is_full_for_the_body_or_for_the_rest_leaves_the_expert_whole(whole, size):
    """The body has 2.0 MB, and the rest has 2.4."""
    before = whole.manifest("trunk/a")
    with disk_of(size), pytest.raises(DiskFull, match="trunk/a"):
        share(whole, "trunk/a")
    assert whole.check("trunk/a") == before
    share(whole)
    assert not list(whole.root.rglob(".*.tmp"))


def test_an_export_onto_a_full_disk_says_so_and_leaves_nothing(shared, call, tmp_path):
    with disk_of(1 << 20):
        to = ("--weights", tmp_path / "a.safetensors", "--store", shared.root)
        said = call("show", "trunk/a", *to, command=experts_command)
    assert (said.status, "a.safetensors" in said.words) == (2, True)
    assert not list(tmp_path.glob("*safetensors*"))


@contextmanager
def swept_by_another(store, monkeypatch, id):
    """Just before the manifest of an expert is written, train `trunk/a` again, and sweep."""
    rewrite = Store.rewrite
    threads = []

    def rewritten(self, manifest):
        if manifest.id == id and not threads:
            put(store, "trunk/a", weights("d"))
            threads.append(threading.Thread(target=bodies.sweep, args=[store]))
            threads[0].start()
            threads[0].join(0.3)
        rewrite(self, manifest)

    monkeypatch.setattr(Store, "rewrite", rewritten)
    yield
    threads[0].join()


def test_no_body_is_swept_away_while_another_expert_is_linked_to_it(shared, monkeypatch):
    for id in IDS[1:3]:  # so that a alone holds the body
        put(shared, id, weights("d"))
    with swept_by_another(shared, monkeypatch, "trunk/e"):
        shared.link("trunk/e", "trunk/a", labels=("ok", "bad"))
    shared.check("trunk/e")


def test_experts_are_trained_prepared_linked_swept_and_removed_at_once(whole):
    """Each writer succeeds, or says what another did. In the end every expert is sound, and no body lies idle."""
    states = {id: whole.load(id) for id in IDS}
    said = []

    def tell(work):
        for _ in range(3):
            try:
                work()
            except StoreError as error:
                said.append(str(error))

    def train(id):
        put(whole, id, states[id])
        share(whole, id)

    def remove():
        shutil.rmtree(whole.folder("trunk/d"), ignore_errors=True)
        put(whole, "trunk/d", states["trunk/d"])

    works = [
        lambda: train("trunk/a"),
        lambda: train("trunk/b"),
        lambda: bodies.sweep(whole),
        remove,
        lambda: prepare(whole, "trunk/a", "q8"),
        lambda: whole.link("trunk/e", "trunk/c", labels=LABELS["c"]),
    ]
    threads = [threading.Thread(target=tell, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    known = ("no expert 'trunk/d'", "cannot be written", "trunk/d: weights")
    assert [reason for reason in said if not any(words in reason for words in known)] == []
    put(whole, "trunk/d", states["trunk/d"])
    share(whole, "trunk/c")
    bodies.sweep(whole)
    for id in [*IDS, "trunk/e"]:
        whole.check(id)
    assert len({whole.manifest(id).body for id in IDS[:3]}) == 1
    named = {body.file for id in whole.ids() for body in whole.manifest(id).bodies}
    assert named <= {path.name for path in whole.bodies.glob("*.safetensors")}
