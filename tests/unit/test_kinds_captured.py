"""What every kind's `forward` must keep for a GPU: a graph has no part on the host, and no numbers to look at."""

import pytest
import torch

from coe.core import Expert
from coe.store import kinds
from coe.store.skeletons import skeleton

NARROWEST = ("resnet18", "yolov5n")
KINDS = {
    type(kind): kind
    for kind in sorted(map(kinds.resolve, kinds.names()), key=lambda kind: kind.name in NARROWEST)
    if isinstance(kind, kinds.NetworkKind)
}
"""One kind of each class."""


@pytest.mark.parametrize("alternates", [1, 3])
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_forward_needs_no_numbers_and_no_memory_of_the_host(kind, alternates):
    """On the device "meta" there are none, and its tensors and those of the CPU do not mix."""
    expert = Expert("e", kind.name, ("bad",), 160, "b/e", frozenset({"bad"}), alternates=alternates)
    images = torch.zeros((2, 3, 160, 160), dtype=torch.uint8)
    module = skeleton(kind, expert).eval().requires_grad_(False)
    with torch.inference_mode():
        # A run to warm up may look at numbers: those of a detector's strides are kept.
        kind.forward(module, images)
        for dtype in (torch.float32, torch.float16):
            outputs = kind.forward(module.to("meta", dtype), images.to("meta"))
            leaves = torch.utils._pytree.tree_leaves(outputs)
            assert {(leaf.device.type, len(leaf)) for leaf in leaves} == {("meta", 2)}
