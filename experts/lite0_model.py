"""The frozen layers of EfficientNet-Lite0 as an ONNX model, which onnxruntime runs in three fifths of torch's time.

It is written, not exported: that takes milliseconds instead of seconds, and holds for each size of pictures, because
TensorFlow's padding, more below than above, is a word of ONNX's.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch.nn import BatchNorm2d, ReLU6

from coe.runtime.blob import folded_skeleton
from coe.runtime.onnx_network import ELSEWHERE, OUTPUTS, OnnxNetwork
from coe.store.kinds import BACKBONE
from coe.variants.fold import folded_state

_OPSET, _IR = 17, 8
_FLOAT_BYTES = 4
_STEM = ("conv_stem", "bn1")


def maps_model(network: Any, ends: Sequence[str]) -> bytes | None:
    """Return a model from normalised images (n, 3, h, w) to the maps after the stages `ends` of timm's network.

    Its weights have the names of the network's, and lie elsewhere. None: batch norms are not folded.
    """
    if any(isinstance(layer, BatchNorm2d) for layer in network.modules()):
        return None
    graph, found = _Graph(network), []
    above = graph.layer("images", *_STEM)
    for stage, blocks in network.blocks.named_children():
        for number, block in blocks.named_children():
            above = graph.block(above, f"blocks.{stage}.{number}", block)
        if f"blocks.{stage}" in ends:
            found.append(helper.make_tensor_value_info(above, TensorProto.FLOAT, None))
    seen = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, "h", "w"])
    made = helper.make_graph(graph.nodes, "maps", [seen], found, graph.constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    model.metadata_props.add(key=OUTPUTS, value=json.dumps({"list": [None] * len(found)}))
    return bytes(model.SerializeToString())


def open_maps(network: Any, ends: Sequence[str]) -> OnnxNetwork:
    """Open a session that runs timm's network as far as `ends`, with as many threads as torch has.

    Its batch norms, which need not be folded, are folded in a copy without weights.
    """
    pairs = [_STEM]
    for stage, blocks in network.blocks.named_children():
        for number, block in blocks.named_children():
            pairs += _layers(f"blocks.{stage}.{number}", block)
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    model = maps_model(folded_skeleton(copy.deepcopy(network, tensors), pairs), ends)
    assert model is not None, "a batch norm was not folded"
    folded = folded_state(network, network.state_dict(), pairs)
    weights = {f"{BACKBONE}{name}": weight.contiguous() for name, weight in folded.items()}
    return OnnxNetwork(model, torch.get_num_threads(), BACKBONE, weights, one_at_a_time=True)


def _layers(name: str, block: Any) -> Iterator[tuple[str, str]]:
    """Yield the names of a block's convolutions and of the norm after each."""
    layers = [("conv_pw", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3")]
    if not hasattr(block, "conv_pwl"):
        layers = [("conv_dw", "bn1"), ("conv_pw", "bn2")]
    for conv, norm in layers:
        yield f"{name}.{conv}", f"{name}.{norm}"


class _Graph:
    """Nodes and constants, layer by layer; each function returns the name of its output."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.nodes: list[onnx.NodeProto] = []
        self.constants = [helper.make_tensor(str(end), TensorProto.FLOAT, [], [end]) for end in (0.0, 6.0)]

    def block(self, above: str, name: str, block: Any) -> str:
        found = above
        for conv, norm in _layers(name, block):
            found = self.layer(found, conv, norm)
        if not block.has_skip:
            return found
        self.nodes.append(helper.make_node("Add", [found, above], [name]))
        return name

    def layer(self, above: str, name: str, norm: str) -> str:
        conv = self._network.get_submodule(name)
        weights = [
            self._weight(f"{name}.weight", conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size)
        ]
        weights.append(self._weight(f"{name}.bias", conv.out_channels))
        padding = {"pads": [*conv.padding] * 2} if any(conv.padding) else {"auto_pad": "SAME_UPPER"}
        how = {"strides": conv.stride, "group": conv.groups, **padding}
        self.nodes.append(helper.make_node("Conv", [above, *weights], [name], **how))
        if not isinstance(self._network.get_submodule(norm), ReLU6):
            return name
        self.nodes.append(helper.make_node("Clip", [name, "0.0", "6.0"], [norm]))
        return norm

    def _weight(self, name: str, *shape: int) -> str:
        weight = TensorProto(name=f"{BACKBONE}{name}", data_type=TensorProto.FLOAT, dims=shape)
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", ELSEWHERE), ("length", str(_FLOAT_BYTES * math.prod(shape)))):
            weight.external_data.add(key=key, value=value)
        self.constants.append(weight)
        return str(weight.name)
