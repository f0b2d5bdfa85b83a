"""Weights read from files: what is read is what was written, and what is damaged is refused in words."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from stored import STATE, expert, file_of, stored

from coe.errors import StoreError
from coe.helpers import regular
from coe.runtime.blob import Buffers
from coe.runtime.reading import weights
from coe.store import blob_format
from coe.store.store import Store
from coe.variants.fold import Folded
from coe.variants.layout import lay_out, tensors

PREPARED = ("fp32", "fp16", "q8")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("store"), *PREPARED)


def read(store, variant="fp32", buffers=None, **changes):
    return weights(store, expert(variant, **changes)).read(buffers or Buffers())


def test_an_expert_that_is_not_prepared_runs_as_it_was_trained(tmp_path):
    state = {
        **STATE,
        "odd": torch.ones(7, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "nothing": torch.zeros(0, 3),
    }
    blob = read(stored(tmp_path, state=state))
    assert set(blob.tensors) == set(state)
    for name, tensor in state.items():
        assert torch.equal(blob.tensors[name], tensor)
        assert blob.tensors[name].dtype == tensor.dtype
    alone = read(stored(tmp_path / "alone", state={"weight": STATE["fc.weight"]}))
    assert alone.tensors["weight"].data_ptr() % blob_format.ALIGNMENT == 0, "it begins a line of the cache"


def test_a_blob_is_read_as_it_was_laid_out(store):
    expected = tensors(lay_out(Folded(STATE, ()), "fp32", kind="tiny", labels=2))
    blob = read(store)
    assert set(blob.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(blob.tensors[name], tensor)
        assert blob.tensors[name].stride() == tensor.stride()
        assert blob.tensors[name].data_ptr() % blob_format.ALIGNMENT == 0


@pytest.mark.parametrize("variant", PREPARED)
def test_safetensors_reads_a_blob_whose_bytes_are_all_told(store, variant):
    with safe_open(file_of(store, variant), "pt") as blob:
        assert ("coe.scales" in set(blob.keys())) == (variant == "q8")


def test_what_is_not_prepared_is_of_another_kind_or_on_a_disk_that_fails_is_said(tmp_path, store, monkeypatch):
    with pytest.raises(StoreError, match=r"q8.*`coe-experts prepare t/x`"):
        read(stored(tmp_path, "fp16"), "q8")
    for changes in ({"kind": "other"}, {"labels": ("a", "b", "c")}):
        with pytest.raises(StoreError, match="of kind tiny"):
            read(store, **changes)

    def fails(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(regular, "read_into", fails)
    with pytest.raises(StoreError, match=r"cannot be read: Input/output error"):
        read(store)


def test_what_is_loaded_is_what_the_file_was_when_it_was_opened(tmp_path, monkeypatch):
    """Somebody prepares the expert again, and a new file takes the place of the one that is being read."""
    store = stored(tmp_path, "fp32")
    path, read_into = file_of(store, "fp32"), regular.read_into

    def replaced_meanwhile(*args):
        if path.exists():
            path.unlink()
        return read_into(*args)

    monkeypatch.setattr(regular, "read_into", replaced_meanwhile)
    assert torch.equal(read(store).tensors["fc.bias"], STATE["fc.bias"])


# Damage


def _in_chunk(number):
    def change(data):
        changed = bytearray(data)
        changed[blob_format.data_start(data, "") + (number - 1) * blob_format.CHUNK + 99] ^= 1
        return changed

    return change


def _of_other_weights(folder):
    other = stored(folder / "other", "fp32", state={"conv.weight": STATE["conv.weight"] + 1})
    return file_of(other, "fp32").read_bytes()


DAMAGE = {
    "chunk 1": ("fp32", _in_chunk(1), r"^t/x/fp32-.* chunk 1 of 2"),
    "chunk 2": ("fp32", _in_chunk(2), r"^t/x/fp32-.* chunk 2 of 2"),
    "version 7": ("fp32", lambda data: data.replace(b'"coe.blob":"2"', b'"coe.blob":"7"'), "version 7"),
    "version 1": ("fp32", lambda data: b"CoE-blob" + data[8:], "version 1"),
    "other weights": ("fp32", _of_other_weights, "manifest"),
}
for keep in (0, 1, 7, 23, 4095, 4096, 5000, -4096, -1):
    DAMAGE[f"cut at {keep}"] = ("q8", lambda data, keep=keep: data[:keep], "t/x/q8-")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_blob_that_is_damaged_or_another_is_refused(tmp_path, damage):
    variant, change, words = DAMAGE[damage]
    store = stored(tmp_path / "own", variant)
    path = file_of(store, variant)
    path.write_bytes(change(tmp_path if change is _of_other_weights else path.read_bytes()))
    with pytest.raises(StoreError, match=words):
        read(store, variant)
    path.unlink()
    with pytest.raises(StoreError, match=f"t/x/{variant}-"):
        read(store, variant)


@given(st.sampled_from(PREPARED), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_no_bit_can_be_flipped_unseen(store, variant, where, bit):
    path = file_of(store, variant)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[int(where * len(data))] ^= 1 << bit
    buffers = Buffers()
    try:
        path.write_bytes(data)
        with pytest.raises(StoreError, match=rf"^t/x/{variant}-"):
            read(store, variant, buffers)
    finally:
        path.write_bytes(whole)
    assert buffers.allocated_bytes == buffers.idle_bytes
    read(store, variant, buffers)


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_not_the_end(tmp_path, monkeypatch):
    store = stored(tmp_path, "fp32")
    path, read_into = file_of(store, "fp32"), regular.read_into

    def shortened_meanwhile(*args):
        os.truncate(path, 10_000)
        return read_into(*args)

    monkeypatch.setattr(regular, "read_into", shortened_meanwhile)
    with pytest.raises(StoreError, match="10,000 bytes"):
        read(store)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, -1, -40])
def test_weights_that_are_cut_short_are_refused(tmp_path, keep):
    store = stored(tmp_path)
    store.path("t/x").write_bytes(store.path("t/x").read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"t/x/weights\.safetensors"):
        read(store)


@given(st.floats(0, 1, exclude_max=True))
def test_no_bit_of_the_weights_can_be_flipped_unseen(tmp_path_factory, where):
    store = stored(tmp_path_factory.mktemp("own"), state={"w": torch.ones(3000)})
    path = store.path("t/x")
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 16
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"t/x/weights\.safetensors"):
        read(store)


def _again(root):
    """Make a store's manifest fit its weights file, whatever that holds now."""
    store = Store(root)
    path = store.path("t/x")
    path.rename(root / "weights.safetensors")
    store.put("t/x", kind="tiny", labels=("ok", "bad"), input_size=8, file=root / "weights.safetensors")
    return store


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 47]}},
        {"w": {"dtype": "F99", "shape": [3, 4], "data_offsets": [0, 48]}},
        {"w": {"dtype": "Q8", "shape": [3, 4], "data_offsets": [0, 48]}},
        {"w": {"dtype": "F32", "shape": [-3, -4], "data_offsets": [-48, 48]}},
        {"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [-48, 0]}},
        {"w": {"dtype": "F32", "shape": "12", "data_offsets": [0, 48]}},
        {"w": {"dtype": "F32", "shape": [3, 4]}},
        {"w": 3},
        [1, 2],
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header):
    text = json.dumps(header).encode()
    stored(tmp_path).path("t/x").write_bytes(struct.pack("<Q", len(text)) + text + bytes(48))
    with pytest.raises(StoreError):
        read(_again(tmp_path))


# What a skeleton expects, and reuse


def test_weights_of_another_shape_are_named(tmp_path):
    blob = read(stored(tmp_path))
    spec = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in STATE.items()}
    blob.expect(spec)
    with pytest.raises(StoreError, match=r"'fc.bias' is \(300,\) torch.float32, not \(4, 4\)"):
        blob.expect({**spec, "fc.bias": ((4, 4), torch.float32)})
    with pytest.raises(StoreError, match=r"'fc.bias' is .* not \(300,\) torch.bfloat16"):
        blob.expect({**spec, "fc.bias": ((300,), torch.bfloat16)})
    with pytest.raises(StoreError, match="lack 'bias'"):
        blob.expect({**spec, "bias": ((1,), torch.float32)})
    del spec["count"]
    with pytest.raises(StoreError, match="hold 'count'"):
        blob.expect(spec)


def test_the_next_expert_takes_the_memory_of_the_last_unless_it_is_still_looked_at(store):
    buffers = Buffers()
    blob = read(store, buffers=buffers)
    place = blob.tensors["fc.bias"].data_ptr()
    blob.release()
    assert blob.tensors == {}
    assert read(store, buffers=buffers).tensors["fc.bias"].data_ptr() == place
    buffers = Buffers()
    blob = read(store, buffers=buffers)
    kept = blob.tensors["fc.bias"]
    blob.release()
    other = read(store, "q8", buffers)
    assert torch.equal(kept, STATE["fc.bias"])
    assert other.tensors["fc.bias"].data_ptr() != kept.data_ptr()
