"""Trials of an expert's variants: each is laid out, run on samples, and compared with the original network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
import torch

from coe.core import Finding
from coe.errors import StoreError, first_line
from coe.store import weights_file
from coe.store.blob_format import Variant
from coe.store.kinds import Image, ModuleKind
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.variants import int8
from coe.variants.agreement import compare, escalate_below, findings
from coe.variants.calibration_images import SampleImages
from coe.variants.fold import Folded, fold, network
from coe.variants.int8_trial import MeasuredBlob, ModelTrial
from coe.variants.layout import FLOATS, lay_out, tensors

FOLDED_DIFFERENCE = 1e-3
"""The most by which folding may change scores, in the same precision."""


class ExpertTrial(ModelTrial):
    """An expert that is a torch module: its folded weights too."""

    def __init__(
        self, store: Store, manifest: Manifest, kind: ModuleKind, samples: SampleImages, source: str = ""
    ) -> None:
        super().__init__(manifest, samples, source)
        store.check_weights(manifest.id)
        self.kind: ModuleKind = kind
        state = store.load(manifest.id)
        self.identity = weights_file.header(store.path(manifest.id)).identity
        self.folded: Folded = fold(kind, self.expert, state)
        self.expected = self._findings(network(kind, self.expert, state))

    def measured(self, variant: Variant) -> MeasuredBlob:
        """Lay out a variant and run the samples through its bytes; raises StoreError."""
        labels = len(self.expert.labels)
        blob = lay_out(self.folded, variant, kind=self.expert.kind, labels=labels, identity=self.identity)
        module = network(self.kind, self.expert, tensors(blob), self.folded.pairs, FLOATS.get(variant))
        try:
            actual = self._findings(module, variant)
        except RuntimeError as error:
            raise StoreError(f"kind '{self.kind.name}' does not run in {variant} ({first_line(error)})") from None
        if variant == "fp32":
            off = compare(self.expected, actual, generated=False).largest_score_difference
            if off > FOLDED_DIFFERENCE:
                raise StoreError(f"folding changes its scores by {off:.2g}; kind '{self.kind.name}' cannot be folded")
        return MeasuredBlob(blob, actual, 0.0 if variant == "fp32" else escalate_below(self.expected, actual))

    def exported(self, pictures: Sequence[Image]) -> onnx.ModelProto:
        """Export the folded network."""
        module = network(self.kind, self.expert, self.folded.state, self.folded.pairs)
        return int8.export(self.kind, self.expert, module, pictures)

    def _findings(self, module: torch.nn.Module, variant: Variant = "fp32") -> list[Finding]:
        def answer(pixels: Image) -> object:
            with torch.inference_mode():
                return self.kind.forward(module, torch.from_numpy(pixels))

        return findings(self.kind, replace(self.expert, variant=variant), self.samples.prepared, answer)
