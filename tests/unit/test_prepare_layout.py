"""Blobs hold weights to the bit, in q8 to half a step; the same weights give the same bytes."""

import itertools

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from coe.errors import StoreError
from coe.store.blob_format import ALIGNMENT, BLOCK, PAGE, decode
from coe.store.blob_writing import encode
from coe.variants.fold import Folded
from coe.variants.layout import lay_out, quantise, tensors

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 9), max_size=5).map(tuple)
STATES = st.dictionaries(st.text("ab.", min_size=1, max_size=4), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6)
SEEDS = st.integers(0, 2**31)


def weights(shapes, seed):
    chance = torch.Generator().manual_seed(seed)
    return {name: (100 * torch.randn(s, generator=chance)).to(dtype) for name, (s, dtype) in shapes.items()}


def made(state, variant):
    return lay_out(Folded(state, ()), variant, kind="k", labels=2)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


@given(STATES, SEEDS)
def test_fp32_gives_back_every_bit(shapes, seed):
    state = weights(shapes, seed)
    found = tensors(made(state, "fp32"))
    assert {name: (t.dtype, t.shape, bits(t)) for name, t in found.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in state.items()
    }


@given(STATES, SEEDS, st.sampled_from(["fp32", "fp16", "q8"]))
def test_what_is_laid_out_is_a_blob(shapes, seed, variant):
    state = weights(shapes, seed)
    blob = made(state, variant)
    assert decode(encode(blob.header), "x") == blob.header
    assert [entry.name for entry in blob.header.tensors] == list(state)
    assert len(blob.data) == blob.header.data_bytes == sum(len(chunk) for chunk in blob.bytes.chunks())
    assert len(blob.data) % PAGE == 0
    spans = sorted((entry.offset, entry.offset + entry.bytes) for entry in blob.header.tensors if entry.bytes)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert all(entry.offset % ALIGNMENT == 0 for entry in blob.header.tensors)
    again = made({name: tensor.clone() for name, tensor in state.items()}, variant)
    assert (again.header, again.data.tolist()) == (blob.header, blob.data.tolist())


@given(STATES, SEEDS, st.sampled_from(["fp32", "fp16", "q8"]))
def test_other_tools_see_the_same_numbers(shapes, seed, variant):
    blob = made(weights(shapes, seed), variant)
    seen = safetensors.torch.load(encode(blob.header) + blob.data.numpy().tobytes())
    assert sum(tensor.nbytes for tensor in seen.values()) == len(blob.data)
    assert not any(tensor.any() for name, tensor in seen.items() if name.startswith("coe.zeros."))
    parts = blob.header.quantised
    for entry in blob.header.tensors:
        ours, theirs = tensors(blob)[entry.name], seen[entry.name]
        if entry.dtype == "Q8":
            first = (entry.offset - parts.values) // BLOCK
            scales = seen["coe.scales"][first : first + len(theirs)].float()
            flat = (theirs * scales[:, None]).view(-1)[: entry.elements]
            ours = ours.permute(0, 2, 3, 1) if entry.channels_last else ours
            assert torch.equal(flat, ours.reshape(-1))
        else:
            assert bits(theirs) == bits(ours.permute(0, 2, 3, 1) if entry.channels_last else ours)


def test_convolutions_lie_channels_last_and_q8_keeps_what_no_scale_can_hold():
    weight = torch.randn(4, 3, 2, 5)
    blob = made({"w": weight, "n": torch.ones(4)}, "fp16")
    assert [entry.channels_last for entry in blob.header.tensors] == [True, False]
    assert bits(blob.data[: 2 * 120].view(torch.float16)) == bits(weight.permute(0, 2, 3, 1).half())
    found = tensors(blob)["w"]
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, weight.half())
    state = {
        "huge": torch.full((2, 64), 1e9),
        "depthwise": torch.randn(96, 1, 3, 3) * torch.logspace(-4, 1, 96)[:, None, None, None],
        "matrix": torch.randn(3, 100),
        "bias": torch.randn(3),
        "count": torch.tensor(7),
        "zero": torch.zeros(1, 64),
        "none": torch.zeros(0, 4),
    }
    blob = made(state, "q8")
    assert {entry.name: entry.dtype for entry in blob.header.tensors} == {
        "huge": "F32", "depthwise": "F32", "matrix": "Q8", "bias": "F32", "count": "I64", "zero": "Q8", "none": "F32",
    }  # fmt: skip
    assert blob.header.quantised.blocks == 4
    found = tensors(blob)
    for name in ("huge", "depthwise", "bias", "count", "zero", "none"):
        assert torch.equal(found[name], state[name])
    assert torch.allclose(found["matrix"], state["matrix"], atol=0.02)


@given(st.integers(1, 700), st.floats(-12, 6), SEEDS)
def test_a_quantised_weight_is_off_by_half_its_scale_at_most(count, magnitude, seed):
    chance = torch.Generator().manual_seed(seed)
    exact = torch.randn(count, generator=chance) * 10**magnitude
    blocks = quantise(exact)
    assert len(blocks.values) == len(blocks.scales) * BLOCK == -(-count // BLOCK) * BLOCK
    again = (blocks.values.float().view(-1, BLOCK) * blocks.scales.float()[:, None]).view(-1)
    off = (again[:count].double() - exact.double()).abs()
    steps = blocks.scales.double().repeat_interleave(BLOCK)[:count]
    assert bool((off <= steps / 2 * (1 + 1e-5)).all())
    # Not larger than need be: the next scale of fp16 above the exact one.
    largest = torch.nn.functional.pad(exact, (0, -count % BLOCK)).view(-1, BLOCK).abs().amax(dim=1).double()
    assert bool((blocks.scales.double() <= largest / 127 * (1 + 2**-10) + 2**-24).all())


def test_weights_beyond_fp16_and_types_that_blobs_do_not_know_are_errors():
    state = {"w": torch.full((2,), 1e6)}
    with pytest.raises(StoreError, match=r"'w' .* fp16"):
        made(state, "fp16")
    with pytest.raises(StoreError, match=r"'w' .*complex64"):
        made({"w": torch.zeros(2, dtype=torch.complex64)}, "fp32")
