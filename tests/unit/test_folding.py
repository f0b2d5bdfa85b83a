"""The structure of a folded network: the names and shapes of the blob's tensors, and nothing else changes."""

import pytest
import torch
from torch import nn

from coe.errors import StoreError
from coe.runtime.blob import folded_skeleton

PAIRS = (("0", "1"), ("2.conv", "2.norm"))


def network():
    inner = nn.Sequential()
    inner.add_module("conv", nn.Conv2d(4, 2, 1))
    inner.add_module("norm", nn.BatchNorm2d(2))
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), inner, nn.BatchNorm2d(2)).eval()


def test_a_folded_convolution_has_a_bias_of_the_weights_own_kind_and_its_norm_has_no_tensors():
    module = network()
    assert folded_skeleton(module, PAIRS) is module
    found = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if not name.startswith("3.")}
    assert found == {"0.weight": (4, 3, 3, 3), "0.bias": (4,), "2.conv.weight": (2, 4, 1, 1), "2.conv.bias": (2,)}
    assert isinstance(module[3], nn.BatchNorm2d)
    assert not any(part.training for part in module.modules())
    module = folded_skeleton(network().to(torch.bfloat16).requires_grad_(False), PAIRS[:1])
    assert (module[0].bias.dtype, module[0].bias.requires_grad) == (torch.bfloat16, False)


@pytest.mark.parametrize("pair", [("0", "2.conv"), ("1", "0"), ("0", "gone"), ("gone.conv", "1"), ("", "1")])
def test_names_that_the_kind_does_not_have_are_refused(pair):
    with pytest.raises(StoreError, match="prepare the expert again"):
        folded_skeleton(network(), [pair])
