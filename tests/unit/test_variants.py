"""Blobs in the store: there whole or not at all, damage is told, and two who prepare do it one after the other."""

import os
import threading
from pathlib import Path

import pytest
import torch
from full_disk import disk_of

from coe.errors import StoreError
from coe.helpers.files import DiskFull, FolderLock, alone
from coe.store import variants
from coe.store.blob_format import CHUNK, PAGE
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import Agreement
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.variants.fold import Folded
from coe.variants.layout import lay_out

AGREEMENT = Agreement(images=3, labels_equal=1.0, largest_score_difference=0.01)
STATE = {"weight": torch.arange(6.0).reshape(2, 3)}


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store")
    expert(made)
    return made


def expert(store, weights="demo/a"):
    return store.put(weights, kind="k", labels=["ok", "bad"], input_size=64, state=STATE)


def prepare(store, variant="fp32", *, scale=1.0, weights="demo/a", kind="k", elements=6):
    state = {"weight": scale * torch.arange(float(elements))[None]}
    blob = lay_out(Folded(state, ()), variant, kind=kind, labels=2)
    with store.changing(weights) as manifest:
        return variants.put(store, manifest, blob.bytes, agreement=AGREEMENT, escalate_below=0.125)


def files(store, weights="demo/a"):
    return sorted(path.name.partition("-")[0] for path in store.folder(weights).iterdir())


def blob(store, variant="fp32", weights="demo/a"):
    return store.folder(weights) / store.manifest(weights).variants[variant].file


def test_a_variant_lies_beside_the_weights_and_is_in_the_manifest(store):
    before = store.manifest("demo/a")
    prepare(store)
    made = prepare(store, "q8")
    assert made == store.manifest("demo/a") == store.check("demo/a")
    assert made.model_copy(update={"variants": {}}) == before
    assert {v: (p.agreement, p.escalate_below) for v, p in made.variants.items()} == {
        "fp32": (AGREEMENT, 0.125), "q8": (AGREEMENT, 0.125),
    }  # fmt: skip
    assert made.variants["fp32"].bytes == blob(store).stat().st_size == 2 * PAGE
    assert files(store) == ["fp32", MANIFEST, "q8", "weights.safetensors"]


def test_the_same_content_has_the_same_name_and_other_content_takes_its_place(store):
    first = prepare(store).variants["fp32"]
    assert prepare(store).variants["fp32"] == first
    before = blob(store).read_bytes()
    with blob(store).open("rb") as reader:
        other = prepare(store, scale=2.0).variants["fp32"]
        assert reader.read() == before, "who has opened a blob keeps it"
    assert other.file != first.file
    assert files(store) == ["fp32", MANIFEST, "weights.safetensors"]
    assert store.check("demo/a")


def test_putting_the_expert_again_drops_its_variants_and_blobs_of_the_same_weights_are_shared(store):
    prepare(store)
    assert expert(store).variants == {} == store.manifest("demo/a").variants
    files = [path.name for path in store.folder("demo/a").iterdir() if path.is_file()]
    assert sorted(files) == [MANIFEST, "weights-2.safetensors"]
    made = prepare(store)
    assert store.link("demo/b", "demo/a", labels=("yes", "no")).variants == made.variants
    assert blob(store).samefile(blob(store, weights="demo/b"))
    prepare(store, scale=2.0)
    assert store.check("demo/b").variants == made.variants
    store.link("demo/b", "demo/a", labels=("yes", "no"))
    original = prepare(store)
    for _ in range(2):
        with store.changing("demo/b") as manifest:
            variants.share(store, manifest, original, ["fp32"])
    assert blob(store).samefile(blob(store, weights="demo/b"))
    assert store.check("demo/b").variants == original.variants


def flipped(raw, place):
    return raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw[:-1], r"has 8,191 bytes, not 8,192 \(truncated\?\)"),
        (lambda raw: raw[:PAGE], "truncated"),
        (lambda raw: b"", "truncated"),
        (lambda raw: b"x" + raw[1:], "is not a blob"),
        (lambda raw: raw.replace(b'"coe.blob":"2"', b'"coe.blob":"3"'), "is a blob of version 3, not 2"),
        (lambda raw: flipped(raw, 30), "damaged header"),
        (lambda raw: raw[: PAGE - 1] + b"\n" + raw[PAGE:], "is not the blob that the manifest names"),
        (lambda raw: flipped(raw, len(raw) - 1), r"is damaged \(the checksum of chunk 0 differs\)"),
    ],
)
def test_damage_is_told(store, damage, said):
    prepare(store)
    path = blob(store)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=f"{said}.*prepare the expert again"):
        store.check("demo/a")
    assert store.check_weights("demo/a")
    assert not variants.is_whole(store, store.manifest("demo/a"), "fp32")
    prepare(store)
    assert variants.is_whole(store, store.manifest("demo/a"), "fp32")


def test_damage_is_told_in_any_chunk_and_what_is_missing_by_its_name(store):
    prepare(store, elements=CHUNK // 2)
    path = blob(store)
    path.write_bytes(flipped(path.read_bytes(), PAGE + CHUNK + 5))
    with pytest.raises(StoreError, match="checksum of chunk 1 differs"):
        store.check("demo/a")
    path.unlink()
    with pytest.raises(StoreError, match=r"demo/a: fp32-.*\.blob\.safetensors.*No such file"):
        store.check("demo/a")
    with pytest.raises(StoreError, match="no expert 'demo/z'"), store.changing("demo/z"):
        pass


class Killed(BaseException):
    pass


STEPS = {"onto the disk": (os, "fsync"), "into place": (Path, "replace"), "into the manifest": (Store, "rewrite")}


@pytest.mark.parametrize(("place", "name"), STEPS.values(), ids=STEPS)
def test_a_stop_at_any_step_leaves_what_was_there(store, monkeypatch, place, name):
    before = prepare(store)

    def stop(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(place, name, stop)
        with pytest.raises(Killed):
            prepare(store, scale=2.0)
    assert store.check("demo/a") == before
    assert not list(store.folder("demo/a").glob(".*"))
    # A blob that no manifest names is swept away by whoever comes next.
    prepare(store, "q8")
    assert files(store) == ["fp32", MANIFEST, "q8", "weights.safetensors"]


def test_a_stop_in_the_middle_of_writing_leaves_nothing(store):
    class Half(BlobBytes):
        def chunks(self):
            yield memoryview(bytes(10))
            raise Killed

    header = lay_out(Folded(STATE, ()), "q8", kind="k", labels=2).header
    before = prepare(store)
    with store.changing("demo/a") as manifest, pytest.raises(Killed):
        variants.put(store, manifest, Half(header, memoryview(b"")), agreement=AGREEMENT, escalate_below=0.0)
    assert store.check("demo/a") == before
    assert files(store) == ["fp32", MANIFEST, "weights.safetensors"]


def test_what_a_kill_left_half_written_is_swept_away_and_a_full_disk_leaves_what_was_there(store):
    (store.folder("demo/a") / ".q8-0.blob.safetensors.tmp").write_bytes(b"half")
    (store.folder("demo/a") / "q8-0.blob.safetensors").write_bytes(b"half")
    prepare(store)
    assert files(store) == ["fp32", MANIFEST, "weights.safetensors"]
    before = prepare(store)
    with disk_of(1 << 16), pytest.raises(DiskFull, match="demo/a"):
        prepare(store, "fp16", scale=1e-3, elements=1 << 20)
    assert store.check("demo/a") == before
    assert files(store) == ["fp32", MANIFEST, "weights.safetensors"]


def test_who_changes_an_expert_is_waited_for(store):
    seen = []

    def other():
        with store.changing("demo/a") as manifest:
            seen.append(sorted(manifest.variants))

    blob = lay_out(Folded(STATE, ()), "fp32", kind="k", labels=2)
    with store.changing("demo/a") as manifest:
        waiting = threading.Thread(target=other)
        waiting.start()
        waiting.join(0.2)
        assert (waiting.is_alive(), seen) == (True, [])
        variants.put(store, manifest, blob.bytes, agreement=AGREEMENT, escalate_below=0)
    waiting.join(30)
    assert seen == [["fp32"]]


def test_who_waited_for_a_folder_that_was_replaced_is_alone_with_the_new_one(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with alone(folder):
            inside.set()
            assert leave.wait(30)

    waiting = threading.Thread(target=other)
    with alone(folder):
        waiting.start()
        waiting.join(0.2)
        folder.rename(tmp_path / "old")
        folder.mkdir()
    assert inside.wait(30)
    lowest = []
    for _ in range(2):
        lowest.append(os.dup(1))
        os.close(lowest[-1])
        assert FolderLock.take(folder, wait=False) is None
    assert lowest[0] == lowest[1], "who asks again and again leaves no file open"
    leave.set()
    waiting.join(30)
    assert list(folder.iterdir()) == []
