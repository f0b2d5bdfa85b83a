"""Convolutions of frozen networks on one thread of a CPU: what they give is what torch's own give."""

import pytest
import torch
from timm.layers import Conv2dSame

from experts.one_thread import Halving, Pointwise, hasten


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("side", [12, 13])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "layer",
    [
        lambda bias: torch.nn.Conv2d(6, 10, 1, bias=bias),
        lambda bias: torch.nn.Conv2d(6, 10, 1, stride=2, bias=bias),
        lambda bias: Conv2dSame(6, 6, 3, stride=2, groups=6, bias=bias),
        lambda bias: Conv2dSame(6, 6, 5, stride=2, groups=6, bias=bias),
        lambda bias: Conv2dSame(6, 8, 3, stride=2, bias=bias),
        lambda bias: Conv2dSame(6, 8, 4, stride=2, bias=bias),
    ],
)
def test_a_hastened_network_gives_what_it_gave(layer, count, side, bias):
    network = torch.nn.Sequential(layer(bias)).requires_grad_(False)
    images = torch.randn(count, 6, side, side).contiguous(memory_format=torch.channels_last)
    expected = network(images)
    hasten(network)
    found = network(images)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_only_what_can_be_hastened_is():
    hastened = [torch.nn.Conv2d(4, 4, 1), Conv2dSame(4, 4, 3, stride=2)]
    others = [torch.nn.Conv2d(4, 4, 1, groups=2), torch.nn.Conv2d(4, 4, 1, padding=1), Conv2dSame(4, 4, 3)]
    network = torch.nn.Sequential(*hastened, *others)
    hasten(network)
    assert [type(layer) for layer in network] == [Pointwise, Halving, torch.nn.Conv2d, torch.nn.Conv2d, Conv2dSame]
