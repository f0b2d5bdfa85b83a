"""Mapped weights: what is read is what was written, and what is damaged is refused."""

from __future__ import annotations

import json
import struct

import pytest
import safetensors.torch
import torch

from coe.errors import StoreError
from coe.runtime.blob import Blob
from coe.store import checksum

TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "count": torch.tensor(5),
    "half": torch.ones(7, dtype=torch.bfloat16),
    "nothing": torch.zeros(0, 3),
}


@pytest.fixture
def path(tmp_path):
    safetensors.torch.save_file(TENSORS, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_tensors_are_views_of_the_file(path):
    blob = Blob(path, checksum(path))
    assert set(blob.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(blob.tensors[name], tensor)
        assert blob.tensors[name].dtype == tensor.dtype


def test_writing_to_a_view_does_not_change_the_file(path):
    before = path.read_bytes()
    Blob(path).tensors["weight"].zero_()
    assert path.read_bytes() == before


def test_a_file_replaced_while_mapped_leaves_the_mapping_as_it_was(path, tmp_path):
    blob = Blob(path)
    safetensors.torch.save_file({"weight": torch.zeros(3, 4)}, tmp_path / "new")
    (tmp_path / "new").rename(path)
    assert torch.equal(blob.tensors["weight"], TENSORS["weight"])


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, -1, -40])
def test_a_truncated_file_is_refused(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"weights\.safetensors"):
        Blob(path)


def test_a_flipped_bit_is_found_by_the_checksum(path):
    right = checksum(path)
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(StoreError, match="is damaged"):
        Blob(path, right)


def _with_header(path, header):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(48))


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 47]}},
        {"w": {"dtype": "F99", "shape": [3, 4], "data_offsets": [0, 48]}},
        {"w": {"dtype": "F32", "shape": [-3, -4], "data_offsets": [-48, 48]}},
        {"w": {"dtype": "F32", "shape": "12", "data_offsets": [0, 48]}},
        {"w": {"dtype": "F32", "shape": [3, 4]}},
        {"w": 3},
        [1, 2],
    ],
)
def test_a_header_that_lies_is_refused(path, header):
    _with_header(path, header)
    with pytest.raises(StoreError):
        Blob(path)


def test_weights_of_another_shape_are_named(path):
    blob = Blob(path)
    spec = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in TENSORS.items()}
    blob.expect(spec)
    with pytest.raises(StoreError, match=r"'weight' is \(3, 4\) torch.float32, not \(4, 4\)"):
        blob.expect({**spec, "weight": ((4, 4), torch.float32)})
    with pytest.raises(StoreError, match="lack 'bias'"):
        blob.expect({**spec, "bias": ((1,), torch.float32)})
    del spec["half"]
    with pytest.raises(StoreError, match="hold 'half'"):
        blob.expect(spec)
