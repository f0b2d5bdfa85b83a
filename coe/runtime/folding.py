"""The structure of a network whose batch norms were folded into the convolutions before them.

Only the structure: `coe.prepare.fold` computes the folded weights once, and a running line reads them from the blob.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from coe.errors import StoreError


def folded_skeleton(module: torch.nn.Module, pairs: Iterable[tuple[str, str]]) -> torch.nn.Module:
    """Give a network the structure that a blob's header states, and return it; it is changed in place.

    Each of `pairs` names a convolution and the batch norm folded into it: the convolution gets a bias (zeros, of the
    dtype and on the device of its weight) if it has none, the norm becomes an identity. Then `state_dict` has the names
    and shapes of the blob's tensors. Raises StoreError if a name is not a convolution or a batch norm of the network.
    """
    for conv_name, norm_name in pairs:
        conv, norm = _part(module, conv_name), _part(module, norm_name)
        if not isinstance(conv, torch.nn.Conv2d) or not isinstance(norm, torch.nn.BatchNorm2d):
            raise StoreError(
                f"the blob folds '{norm_name}' into '{conv_name}', which the kind does not have as a batch norm and a "
                "convolution; prepare the expert again (coe-experts prepare)"
            )
        if conv.bias is None:
            bias = conv.weight.new_zeros(conv.out_channels)
            conv.bias = torch.nn.Parameter(bias, requires_grad=conv.weight.requires_grad)
        module.set_submodule(norm_name, torch.nn.Identity().train(norm.training))
    return module


def _part(module: torch.nn.Module, name: str) -> torch.nn.Module | None:
    try:
        return module.get_submodule(name)
    except AttributeError:
        return None
