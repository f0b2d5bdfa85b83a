"""Folding watches a pass and proves itself; what only looks like a pair stays as it is."""

import pytest
import torch
from bare_kind import BareKind
from torch import nn

from coe.core import Expert
from coe.errors import StoreError
from coe.variants.fold import fold, network

EXPERT = Expert("x", "net", ("a", "b"), 16, "t/x")


class Net(BareKind):
    """A kind of whatever network it is given."""

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
