"""What a variant is made of: folded norms, the layout of its blob, and how often it agrees."""

import itertools

import pytest
import safetensors.torch
import torch
from bare_kind import BareKind
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coe.core import Box, Expert, Finding
from coe.errors import StoreError
from coe.store.blob_format import ALIGNMENT, BLOCK, PAGE, decode
from coe.store.blob_writing import encode
from coe.variants.agreement import compare, escalate_below, iou, log_odds, matched
from coe.variants.fold import Folded, fold, network
from coe.variants.layout import lay_out, quantise, tensors

EXPERT = Expert("x", "net", ("a", "b"), 16, "t/x")


class Net(BareKind):
    name = "net"

    def __init__(self, make):
        self._make = make

    def skeleton(self, expert):
        return self._make().eval()

    def forward(self, module, images):
        return module(images.to(next(module.parameters()).dtype) / 255)


class Parts(nn.Module):
    """A convolution and a norm, wired by `wire(self, x)`."""

    def __init__(self, wire, **parts):
        super().__init__()
        self.wire = wire
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        return self.wire(self, x)


def weights(make):
    torch.manual_seed(1)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 3)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return module.state_dict()


def folded(make):
    return fold(Net(make), EXPERT, weights(make))


def test_a_folded_pair_computes_the_same_and_only_pairs_are_folded():
    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 3, groups=1, bias=True), nn.BatchNorm2d(4), nn.ReLU(inplace=True))

    kind, state = Net(make), weights(make)
    found = fold(kind, EXPERT, state)
    assert (found.pairs, sorted(found.state)) == ((("0", "1"),), ["0.bias", "0.weight"])
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    expected = kind.forward(network(kind, EXPERT, state), images)
    assert torch.allclose(kind.forward(network(kind, EXPERT, found.state, found.pairs), images), expected, atol=1e-5)

    def wire(self, x):
        raw = self.conv(x)
        return self.other_norm(self.other(self.norm(raw) + raw))

    def make():
        return Parts(wire, other=nn.Conv2d(4, 2, 1), other_norm=nn.BatchNorm2d(2))

    assert folded(make).pairs == (("other", "other_norm"),)


WIRES = {
    "the norm comes first": lambda self, x: self.conv(self.first(x)),
    "something lies between": lambda self, x: self.norm(self.conv(x).relu()),
    "the output is also returned": lambda self, x: (raw := self.conv(x), self.norm(raw)),
    "the convolution runs twice": lambda self, x: self.norm(self.conv(x)) + self.conv(x / 2),
    "the norm runs twice": lambda self, x: self.norm(self.norm(self.conv(x))),
    "two norms take it": lambda self, x: (raw := self.conv(x), self.norm(raw) + self.second(raw))[1],
    "it is changed in place": lambda self, x: self.norm(self.conv(x).add_(1)),
}
PARTS = {"first": lambda: nn.BatchNorm2d(3), "second": lambda: nn.BatchNorm2d(4)}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_what_only_looks_like_a_pair_is_left_alone(wire):
    def make():
        return Parts(wire, **{name: part() for name, part in PARTS.items()})

    found = folded(make)
    assert found.pairs == ()
    assert found.state.keys() == weights(make).keys()


def test_what_two_share_or_works_out_its_weights_is_left_alone_and_other_kinds_are_told():
    def tied():
        module = Parts(lambda self, x: self.norm(self.conv(x)) + self.twin(x), twin=nn.Conv2d(3, 4, 3, padding=1))
        module.twin.weight = module.conv.weight
        return module

    def twice_named():
        module = Parts(lambda self, x: self.norm(self.conv(x)))
        module.alias = module.norm
        return module

    assert folded(tied).pairs == folded(twice_named).pairs == ()

    def make():
        module = Parts(lambda self, x: self.norm(self.conv(x)))
        nn.utils.parametrizations.weight_norm(module.conv)
        return module

    assert folded(make).pairs == ()
    with pytest.raises(StoreError, match="the weights do not fit kind 'net'"):
        fold(Net(lambda: nn.Linear(1, 1)), EXPERT, {"other": torch.ones(1)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(value):
    def make():
        return Parts(lambda self, x: self.norm(self.conv(x)))

    state = {**weights(make), "norm.bias": torch.full((4,), value)}
    with pytest.raises(StoreError, match=r"'norm\.bias'.*not finite"):
        fold(Net(make), EXPERT, state)
    with pytest.raises(StoreError, match="random images"):
        fold(
            Net(make),
            EXPERT,
            {**weights(make), "norm.weight": torch.full((4,), 3e38), "norm.bias": torch.full((4,), 3e38)},
        )


def said(label, score, margin=0.0, *boxes):
    return Finding("x", "fp32", label, score, boxes, margin)


def box(label, score, *xyxy):
    return Box(label, score, xyxy or (0.0, 0.0, 10.0, 10.0))


def test_labels_and_scores_are_compared_and_each_box_is_matched_once_by_label_with_the_nearest():
    expected = [said("ok", 0.9), said("ok", 0.8), said("bad", 0.7), said("bad", 0.6)]
    found = [said("ok", 0.9), said("ok", 0.83), said("bad", 0.7), said("ok", 0.55)]
    agreement = compare(expected, found, generated=True)
    assert (agreement.images, agreement.labels_equal, agreement.boxes_matched) == (4, 0.75, None)
    assert agreement.largest_score_difference == pytest.approx(0.05)
    assert agreement.generated
    one = [box("a", 0.9), box("a", 0.5, 20, 0, 30, 10), box("b", 0.8)]
    other = [box("a", 0.8, 0, 0, 10, 10.5), box("a", 0.5, 20, 0, 30, 12), box("c", 0.8)]
    assert matched(one, other) == [(one[0], other[0])]
    agreement = compare([said("a", 0.9, 0, *one)], [said("a", 0.9, 0, *other)], generated=False)
    assert agreement.boxes_matched == pytest.approx(1 / 3)
    assert agreement.largest_score_difference == pytest.approx(0.1)
    one, near, far = box("a", 0.9), box("a", 0.8), box("a", 0.7, 0, 0, 10, 10.5)
    assert matched([one], [far, near]) == [(one, near)]
    others = {(0, 0, 10, 10): 1.0, (5, 0, 15, 10): 1 / 3, (10, 0, 20, 10): 0.0, (3, 3, 3, 3): 0.0}
    assert {other: iou((0, 0, 10, 10), other) for other in others} == pytest.approx(others)


def test_the_margin_is_zero_where_nothing_moved_and_counts_a_shift_that_changed_nothing():
    same = [said("ok", 1.0, 1.0), said("ok", 0.7, 0.4)]
    assert escalate_below(same, same) == 0
    assert escalate_below([said("ok", 0.7, 0.4)], [said("ok", 0.7, 0.4 + 1e-9)]) == 1e-4
    # 0.90 to 0.86 is a push of 0.36 in log-odds: a margin of 0.18 could be lost by it, and half as much for safety.
    assert escalate_below([said("ok", 0.95, 0.90)], [said("ok", 0.93, 0.86)]) == pytest.approx(0.262, abs=2e-4)
    expected = [said("ok", 0.9, 0.8), said("bad", 0.6, 0.05), said("ok", 0.55, 0.1)]
    found = [said("ok", 0.9, 0.8), said("ok", 0.6, 0.12), said("bad", 0.55, 0.02)]
    assert 0.12 < escalate_below(expected, found) < 0.5
    sure = [said("ok", 1.0, 1.0), said("bad", 1.0, 1.0)]
    assert 0.05 < escalate_below(sure, sure) < 0.2
    assert log_odds(1.0) == log_odds(1 - 1e-7) < 15


def test_a_doubt_that_a_variant_loses_is_a_disagreement_and_one_without_a_margin_is_looked_at_again():
    exact, doubted = said("ok", 0.9, 0.8), Finding("x", "fp32", "ok", 0.9, doubt="unlike")
    assert compare([doubted], [exact], generated=False).labels_equal == 0
    assert escalate_below([doubted], [exact]) > exact.margin
    assert compare([exact], [doubted], generated=False).labels_equal == 1
    assert 0 < escalate_below([exact, exact], [exact, doubted]) < 1e-3
    assert escalate_below([exact], [doubted]) == 1


def test_boxes_that_one_does_not_see_or_sees_elsewhere_are_no_disagreement_but_their_scores_count():
    seen = said("a", 0.9, 0.03, box("a", 0.9), box("a", 0.28, 20, 0, 30, 10))
    lost = said("a", 0.9, 0.03, box("a", 0.9))
    other = said("b", 0.9, 0.02, box("b", 0.9))
    moved = said("a", 0.9, 0.03, box("a", 0.9), box("a", 0.28, 20, 0, 30, 15))
    assert escalate_below([seen], [lost]) == 0
    assert escalate_below([seen], [other]) > 0.05
    assert escalate_below([seen], [moved]) == 0
    one = said("a", 0.9, 0.03, box("a", 0.9))
    other = said("a", 0.8, 0.03, box("a", 0.8))
    assert escalate_below([one], [other]) == pytest.approx(0.15, abs=2e-3)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
SHAPES = st.lists(st.integers(0, 9), max_size=5).map(tuple)
STATES = st.dictionaries(st.text("ab.", min_size=1, max_size=4), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6)
SEEDS = st.integers(0, 2**31)


def weights_layout(shapes, seed):
    chance = torch.Generator().manual_seed(seed)
    return {name: (100 * torch.randn(s, generator=chance)).to(dtype) for name, (s, dtype) in shapes.items()}


def made(state, variant):
    return lay_out(Folded(state, ()), variant, kind="k", labels=2)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


@given(STATES, SEEDS)
def test_fp32_gives_back_every_bit(shapes, seed):
    state = weights_layout(shapes, seed)
    found = tensors(made(state, "fp32"))
    assert {name: (t.dtype, t.shape, bits(t)) for name, t in found.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in state.items()
    }


@given(STATES, SEEDS, st.sampled_from(["fp32", "fp16", "q8"]))
def test_what_is_laid_out_is_a_blob(shapes, seed, variant):
    state = weights_layout(shapes, seed)
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
    blob = made(weights_layout(shapes, seed), variant)
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
    exact = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 10**magnitude
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
