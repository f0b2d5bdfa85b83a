"""Tiny experts in a store, prepared in any variant, without a network behind them."""

from dataclasses import replace

import torch

from coe.core import Expert
from coe.store import variants
from coe.store.manifest import Agreement
from coe.store.store import Store
from coe.variants.fold import Folded
from coe.variants.layout import lay_out

KIND = "tiny"
STATE = {
    "conv.weight": torch.linspace(-1, 1, 20 * 9 * 3 * 3).reshape(20, 9, 3, 3),
    "fc.weight": torch.linspace(-2, 3, 300 * 1000).reshape(300, 1000),
    "fc.bias": torch.linspace(0, 1, 300),
    "count": torch.tensor(5),
}


def expert(variant="fp32", **changes):
    return replace(Expert("x", KIND, ("ok", "bad"), 8, "t/x", variant=variant), **changes)


def stored(root, *prepared, state=STATE, kind=KIND):
    store = Store(root)
    store.put("t/x", kind=kind, labels=("ok", "bad"), input_size=8, state=state)
    for variant in prepared:
        made = lay_out(Folded(state, ()), variant, kind=kind, labels=2)
        agreement = Agreement(images=1, labels_equal=1.0, largest_score_difference=0.0)
        with store.changing("t/x") as manifest:
            variants.put(store, manifest, made.bytes, agreement=agreement, escalate_below=0.0)
    return store


def file_of(store, variant):
    return store.folder("t/x") / store.manifest("t/x").variants[variant].file
