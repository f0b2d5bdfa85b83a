"""Verifying an expert: its numbers are finite, fit the network of its kind, and give a finding for a grey image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from coe.bring import importing
from coe.core import FULL, Expert
from coe.runtime.cpu import load_alone
from coe.runtime.runner import findings_of
from coe.store import bodies, kinds
from coe.store.kinds import Foreign, Kind, ModuleKind
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.store import Store
from coe.variants.fold import check_finite, network
from coe.variants.layout import stored, tensors

_BACKBONE = " (a backbone without labels: nothing runs it, and `train --init` starts from it)"


def verify(store: Store, manifest: Manifest, allow_kinds: Sequence[str] = ()) -> str:
    """Load and run an expert from its weights and from every blob; return a remark on it, or "".

    Kinds by a dotted path are imported from the packages `allow_kinds`.
    Raises CoeError for weights that its kind cannot run, and whatever the kind raises.
    """
    kind = kinds.resolve(manifest.kind, allow_kinds)
    if manifest.is_backbone and isinstance(kind, ModuleKind):
        state = store.load(manifest.id)
        check_finite(state)
        importing.backbone(Foreign(state), kind, manifest.expert(), manifest.id)
        return _BACKBONE
    expert = manifest.expert()
    # Without variants in its manifest, an expert runs from the weights as they were trained.
    _run(store, manifest.model_copy(update={"variants": {}}), expert, kind)
    for variant, prepared in manifest.variants.items():
        if variant in (FULL, "int8") or not isinstance(kind, ModuleKind):
            _run(store, manifest, replace(expert, variant=variant), kind)
        else:
            _run_numbers(store, manifest, prepared, expert, kind)
    return ""


def _run(store: Store, manifest: Manifest, expert: Expert, kind: Kind) -> None:
    run = load_alone(store, manifest, kind, expert, threads=1)
    if isinstance(kind, ModuleKind) and not manifest.variants:
        check_finite(store.load(manifest.id))  # before the run, whose outputs would not say which tensor it is
    run([kind.preprocess(_grey(expert), expert)])


def _run_numbers(store: Store, manifest: Manifest, prepared: PreparedVariant, expert: Expert, kind: ModuleKind) -> None:
    """Run the numbers of a variant that GPUs alone run, in fp32."""
    blob = stored(bodies.whole_blob(store, manifest, prepared))
    module = network(kind, expert, tensors(blob), blob.header.folded)
    image = kind.preprocess(_grey(expert), expert)
    with torch.inference_mode():
        outputs = kind.forward(module, torch.from_numpy(image.pixels[None]))
    findings_of(kind, outputs, [image], expert)


def _grey(expert: Expert) -> NDArray[np.uint8]:
    return np.full((expert.input_size, expert.input_size, 3), 127, np.uint8)
