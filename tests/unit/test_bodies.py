"""Experts that share a body: stored once, whole to everybody who reads them, and equal to the bit in every variant."""

import shutil
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from built_once import VARIANTS, linked_copy
from common_trunk import IDS, LABELS, TRUNK
from hypothesis import given
from hypothesis import strategies as st

from coe.config import KEPT_VERSIONS_VARIABLE
from coe.errors import StoreError
from coe.prepare.prepare import Preparer
from coe.prepare.sharing import Sharing, TensorDigest, shared_bodies, stored
from coe.store import bodies, weights_file
from coe.store.manifest import Manifest
from coe.store.snapshot import Snapshot
from coe.store.store import Store


@pytest.fixture
def whole(prepared_trunk: Path, tmp_path: Path) -> Store:
    return Store(linked_copy(prepared_trunk, tmp_path / "store"))


@pytest.fixture
def shared(shared_trunk: Path, tmp_path: Path) -> Store:
    return Store(shutil.copytree(shared_trunk, tmp_path / "shared"))


def manifests(store: Store) -> dict[str, Manifest]:
    return {id: store.manifest(id) for id in IDS}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What is shared


def test_a_body_is_stored_once_and_every_expert_is_whole_to_its_reader(whole: Store) -> None:
    before, states = manifests(whole), {id: whole.load(id) for id in IDS}
    outcome = Sharing(whole).share(IDS)
    (body,) = outcome.shared
    assert (body.experts, outcome.divided, outcome.failed) == (tuple(IDS[:3]), tuple(IDS[:3]), {})
    assert all(name.startswith(TRUNK) for name in body.names)
    after = manifests(whole)
    assert after["trunk/d"] == before["trunk/d"]
    # One file for the trained tensors, and one for each variant.
    assert len({file.file for id in IDS for file in after[id].bodies}) == len(list(whole.bodies.iterdir())) == 3
    assert outcome.whole_bytes - outcome.bytes == pytest.approx(2 * body.bytes, rel=0.02)
    assert stored(list(after.values())) == outcome.bytes
    for id in IDS:
        assert same(whole.load(id), states[id])
        whole.check(id)


def test_the_weights_of_a_shared_expert_are_exported_as_they_were(whole: Store, tmp_path: Path) -> None:
    file, checksum = whole.path("trunk/a").read_bytes(), whole.manifest("trunk/a").checksum
    Sharing(whole).share(IDS)
    exported = bodies.export(whole, "trunk/a", tmp_path / "a.safetensors")
    assert exported.read_bytes() == file
    assert weights_file.checksum(exported) == checksum
    assert bodies.whole_file(whole, "trunk/d", tmp_path) == whole.path("trunk/d")


def test_blobs_keep_their_bytes_their_agreement_and_their_thresholds(whole: Store) -> None:
    before = manifests(whole)
    tensors = {
        (id, variant): bodies.whole_blob(whole, before[id], blob).tensors()
        for id in IDS
        for variant, blob in before[id].variants.items()
    }
    Sharing(whole).share(IDS)
    for (id, variant), expected in tensors.items():
        manifest = whole.manifest(id)
        blob = manifest.variants[variant]
        actual = bodies.whole_blob(whole, manifest, blob)
        assert {name: (bytes(t.data), bytes(t.scales or b"")) for name, t in actual.tensors().items()} == {
            name: (bytes(t.data), bytes(t.scales or b"")) for name, t in expected.items()
        }
        assert (blob.agreement, blob.escalate_below) == (
            before[id].variants[variant].agreement,
            before[id].variants[variant].escalate_below,
        )
        if blob.body is not None:
            whole_bytes = before[id].variants[variant].bytes
            assert blob.whole_bytes == pytest.approx(whole_bytes, rel=0.02)
            assert blob.bytes < 0.75 * whole_bytes
    sizes = [stored([one.variants["q8"] for one in found.values()]) for found in (before, manifests(whole))]
    assert sizes[1] < 0.85 * sizes[0]


def test_to_share_again_changes_nothing_and_a_new_expert_joins(shared: Store) -> None:
    before = manifests(shared)
    assert Sharing(shared).share(IDS).divided == ()
    assert manifests(shared) == before
    state = shared.load("trunk/a")
    state["fc.bias"] = state["fc.bias"] + 1
    shared.put("trunk/e", kind="narrow", labels=("ok", "bad"), input_size=32, state=state)
    outcome = Sharing(shared).share([*IDS, "trunk/e"])
    assert shared.manifest("trunk/e").body is not None
    assert outcome.failed == {}
    for id in (*IDS, "trunk/e"):
        shared.check(id)
    assert same(shared.load("trunk/e"), state)


def test_a_divided_expert_that_is_prepared_again_has_the_same_body(shared: Store) -> None:
    before = shared.manifest("trunk/b")
    outcome = Preparer(shared, VARIANTS, force=True).prepare("trunk/b")
    after = shared.manifest("trunk/b")
    assert (set(outcome.made), outcome.failed) == (set(VARIANTS), {})
    assert all(after.variants[variant].body is not None for variant in VARIANTS)
    assert {v: (blob.digest, blob.body) for v, blob in before.variants.items()} == {
        v: (after.variants[v].digest, after.variants[v].body) for v in before.variants
    }
    shared.check("trunk/b")


def test_bodies_that_no_version_names_are_swept_away(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEPT_VERSIONS_VARIABLE, "0")
    for id in IDS[:3]:
        shared.put(id, kind="narrow", labels=LABELS[id[-1]], input_size=32, state=shared.load(id))
    bodies.sweep(shared)
    assert list(shared.bodies.iterdir()) == []


# A parent and its child


def test_a_new_expert_takes_the_body_of_its_parent_and_leaves_the_parent_alone(shared: Store) -> None:
    state = shared.load("trunk/a")
    state["fc.bias"] = state["fc.bias"] + 1
    shared.put("trunk/e", kind="narrow", labels=("ok", "bad"), input_size=32, state=state)
    before = manifests(shared)
    body = Sharing(shared).share_new("trunk/e", "trunk/a")
    assert body is not None
    assert shared.manifest("trunk/e").body == before["trunk/a"].body
    assert manifests(shared) == before


def test_a_new_expert_of_a_whole_parent_gets_a_body_that_the_parent_can_take(whole: Store) -> None:
    before = whole.manifest("trunk/a")
    body = Sharing(whole).share_new("trunk/b", "trunk/a")
    assert body is not None
    assert whole.manifest("trunk/a") == before
    Sharing(whole).share(IDS)
    assert len({whole.manifest(id).body for id in IDS[:3]}) == 1
    assert Sharing(whole).share_new("trunk/d", "trunk/a") is None


# What goes wrong


@pytest.mark.parametrize("variant", [None, "q8"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file.*; .* (train|prepare)"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5000]), "damaged|truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"), "damaged"),
    ],
)
def test_a_body_that_is_missing_or_damaged_is_said_in_one_sentence(shared: Store, variant, damage, words) -> None:
    manifest = shared.manifest("trunk/a")
    body = manifest.body if variant is None else manifest.variants["q8"].body
    damage(shared.bodies / body.file)
    with pytest.raises(StoreError, match=words) as error:
        shared.check("trunk/a")
    assert "\n" not in str(error.value)
    shared.check("trunk/d")


def test_to_share_again_repairs_nothing_silently_but_the_others_are_shared(whole: Store) -> None:
    path = whole.path("trunk/b")
    path.unlink()
    outcome = Sharing(whole).share(IDS)
    assert set(outcome.divided) == {"trunk/a", "trunk/c"}
    assert list(outcome.failed) == ["trunk/b"]


def test_a_kill_between_the_body_and_the_rest_leaves_the_expert_as_it_was(whole: Store, monkeypatch) -> None:
    before, state = whole.manifest("trunk/a"), whole.load("trunk/a")

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    for place in ("coe.store.bodies.tensor_files.write", "coe.store.bodies.Store.rewrite"):
        with monkeypatch.context() as patched:
            patched.setattr(place, kill)
            with pytest.raises(Killed):
                Sharing(whole).share(IDS)
        assert whole.check("trunk/a") == before
        assert same(whole.load("trunk/a"), state)
    assert Sharing(whole).share(IDS).divided == tuple(IDS[:3])
    files = {path.name for path in whole.folder("trunk/a").iterdir()}
    after = whole.manifest("trunk/a")
    assert files - {".lock"} == {"manifest.json", after.file, *(blob.file for blob in after.variants.values())}


def test_an_expert_that_changes_meanwhile_stays_as_it_is(whole: Store, monkeypatch) -> None:
    sharing, divide = Sharing(whole), bodies.divide

    def trained_meanwhile(store: Store, manifest: Manifest, names: object) -> Manifest:
        if manifest.id == "trunk/a":
            whole.put("trunk/c", kind="narrow", labels=LABELS["c"], input_size=32, state=whole.load("trunk/c"))
        return divide(store, manifest, names)

    monkeypatch.setattr(bodies, "divide", trained_meanwhile)
    outcome = sharing.share(IDS)
    assert outcome.divided == ("trunk/a", "trunk/b")
    assert "changed while it was compared" in outcome.failed["trunk/c"]
    assert whole.manifest("trunk/c").body is None


def test_an_expert_that_is_replaced_while_it_is_compared_says_so(whole: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {**whole.load("trunk/c"), "fc.bias": torch.full((3,), 5.0)}
    read = Store.tensors

    def read_later(self: Store, manifest: Manifest) -> dict[str, torch.Tensor]:
        if manifest.id == "trunk/c":
            whole.put("trunk/c", kind="narrow", labels=LABELS["c"], input_size=32, state=state)
        return read(self, manifest)

    monkeypatch.setattr(Store, "tensors", read_later)
    failed = Sharing(whole).share(IDS).failed
    assert failed == {"trunk/c": "trunk/c: changed while it was compared with the others; share again"}


def test_two_writers_share_and_train_at_once(whole: Store) -> None:
    """Each expert ends whole or divided, and as one of the two left it; nothing that a manifest names is swept away."""
    states = [{**whole.load("trunk/c"), "fc.bias": torch.full((3,), float(number))} for number in range(4)]

    def train() -> None:
        for state in states:
            whole.put("trunk/c", kind="narrow", labels=LABELS["c"], input_size=32, state=state)

    failed: list[str] = []

    def share() -> None:
        for _ in range(3):
            failed.extend(Sharing(whole).share(IDS).failed.values())

    threads = [threading.Thread(target=work) for work in (train, share, share)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("changed while it was compared" in reason for reason in failed), failed
    assert Sharing(whole).share(IDS).failed == {}
    for id in IDS:
        whole.check(id)
    assert same(whole.load("trunk/c"), states[-1])
    assert whole.manifest("trunk/c").body == whole.manifest("trunk/a").body


def test_a_line_that_was_opened_before_says_that_the_expert_changed(whole: Store) -> None:
    snapshot = Snapshot(whole, manifests(whole))
    Sharing(whole).share(IDS)
    assert snapshot.manifest("trunk/d").id == "trunk/d"
    with pytest.raises(StoreError, match=r"'trunk/a' changed.*\(weights, fp32, q8\)"):
        snapshot.manifest("trunk/a")


# The best choice of bodies

DRAWN = st.lists(st.text("xyz", min_size=4, max_size=4), min_size=1, max_size=5)


def test_an_odd_expert_does_not_cost_the_others_their_body() -> None:
    def tensors(*digests: str) -> list[TensorDigest]:
        return [TensorDigest(f"t{place}", digest, 1 << 20) for place, digest in enumerate(digests)]

    experts = {"a": tensors(*"xyz1"), "b": tensors(*"xyz2"), "c": tensors(*"xyz3"), "odd": tensors(*"x234")}
    found = shared_bodies(experts)
    assert [(body.experts, body.names) for body in found] == [(("a", "b", "c"), ("t0", "t1", "t2"))]


@given(DRAWN)
def test_no_other_choice_of_bodies_saves_more(words: list[str]) -> None:
    """A body belongs to all experts that begin alike; all choices of such bodies without a common expert are tried."""
    mib = 1 << 20
    experts = {
        str(number): [TensorDigest(str(place), letter, mib) for place, letter in enumerate(word)]
        for number, word in enumerate(words)
    }
    beginnings = {word[:length] for word in words for length in (1, 2, 3)}
    groups = {
        beginning: frozenset(str(number) for number, word in enumerate(words) if word.startswith(beginning))
        for beginning in sorted(beginnings)
    }

    def saved(members: Collection[str], size: int) -> int:
        return (len(members) - 1) * size - (len(members) + 1) * 2 * 4096

    def best(left: list[str], taken: frozenset[str]) -> int:
        if not left:
            return 0
        without = best(left[1:], taken)
        members = groups[left[0]]
        if members & taken:
            return without
        return max(without, saved(members, len(left[0]) * mib) + best(left[1:], taken | members))

    found = shared_bodies(experts)
    assert sum(saved(body.experts, body.bytes) for body in found) == best(list(groups), frozenset())
