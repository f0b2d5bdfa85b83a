"""A blob becomes weights that run in a few large steps, with the numbers that the blob holds."""

import pytest
import torch
from stored import STATE, expert, stored

from coe.errors import StoreError
from coe.runtime.blob import Buffers, Structure
from coe.runtime.cuda.unpacking import Unpacking, structure_on_gpu, unpacking_like
from coe.runtime.reading import weights
from coe.store.blob_format import Content
from coe.variants.fold import Folded
from coe.variants.layout import lay_out, tensors


def run_in(variant, root, *prepared):
    file = weights(stored(root, *prepared), expert(variant))
    buffer, content = file.content(Buffers())
    assert file.outline().entries == content.entries
    unpacking = Unpacking(content, structure_on_gpu(content))
    with buffer.part(0, len(buffer)) as (data,):
        blob = torch.tensor(list(data[content.start : content.start + content.data_bytes]), dtype=torch.uint8)
    place = torch.full((unpacking.bytes,), 0x7F, dtype=torch.uint8)
    unpacking.apply(blob, place)
    return unpacking, unpacking.views(place)


@pytest.mark.parametrize(
    ("variant", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("q8", torch.float16)]
)
def test_the_numbers_are_those_of_the_blob(variant, dtype, tmp_path):
    unpacking, found = run_in(variant, tmp_path, variant)
    for name, tensor in tensors(lay_out(Folded(STATE, ()), variant, kind="tiny", labels=2)).items():
        assert found[name].dtype == (dtype if tensor.is_floating_point() else tensor.dtype)
        assert torch.allclose(found[name].double(), tensor.double(), rtol=1e-3 if variant == "q8" else 0, atol=1e-6)
        assert found[name].data_ptr() % 16 == 0
    assert found["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert len(unpacking.steps) <= 4
    assert variant != "fp16" or [step.dtype for step in unpacking.steps].count(torch.float16) == 1, "one type in a row"


def test_weights_as_they_were_trained_run_as_they_lie(tmp_path):
    unpacking, found = run_in("fp32", tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())
    assert len(unpacking.steps) == 2


def test_an_unpacking_for_any_weights_has_their_size_and_lays_them_out_as_a_blob_does():
    spec = {"conv": ((4, 3, 3, 3), torch.float32), "line": ((4, 3), torch.float32), "n": ((), torch.int64)}
    unpacking = unpacking_like(spec, Structure(torch.float16))
    found = unpacking.views(torch.zeros(unpacking.bytes, dtype=torch.uint8))
    assert found["conv"].is_contiguous(memory_format=torch.channels_last)
    assert found["line"].is_contiguous()
    half = {name: (shape, torch.float16 if dtype.is_floating_point else dtype) for name, (shape, dtype) in spec.items()}
    assert {name: (place.entry.shape, place.dtype) for name, place in unpacking.places.items()} == half


def test_a_tensor_that_no_gpu_can_take_is_refused(tmp_path):
    entry = weights(stored(tmp_path), expert()).outline().entries[0]
    with pytest.raises(StoreError, match="aligned"):
        Unpacking(Content((entry.model_copy(update={"offset": 3}),)), Structure())
