"""Trials of an expert's variants: each is laid out, run on samples, and compared with the original network."""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import torch

from coe.core import Finding
from coe.errors import StoreError, first_line
from coe.prepare import int8
from coe.prepare.agreement import compare, escalate_below, findings
from coe.prepare.calibration_images import SampleImages
from coe.prepare.difference import MOST_CUT, RANKS, Parent, own_part, whole
from coe.prepare.fold import Folded, fold, network
from coe.prepare.layer_search import Harm, search
from coe.prepare.layout import FLOATS, LaidOut, lay_out, lay_out_model, tensors
from coe.prepare.stored_model import divided, fused
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.trial import within
from coe.store import variants, weights_file
from coe.store.blob_format import Variant
from coe.store.kinds import Image, ModuleKind
from coe.store.manifest import Calibration, Manifest
from coe.store.store import Store

FOLDED_DIFFERENCE = 1e-3
"""The most by which folding may change scores, in the same precision."""
SECOND_LOOKS = 1 / 16
"""A rank is enough if no larger share of the samples would be run again in fp32."""
SEARCH_S = 30.0
"""How long is searched for layers that an expert in `int8` keeps in float."""
LARGEST = 0.75
"""A difference is worth while up to this share of the bytes of `q8`."""


@dataclass(frozen=True, slots=True)
class MeasuredBlob:
    """A variant's blob, its findings on the samples, and the margin under which a finding is looked at again."""

    blob: LaidOut
    findings: list[Finding]
    escalate_below: float
    calibration: Calibration | None = None


class ExpertTrial:
    """One expert: its folded weights, the samples, and the original network's findings on them.

    `source` says in words where the samples are from.
    """

    def __init__(
        self, store: Store, manifest: Manifest, kind: ModuleKind, samples: SampleImages, source: str = ""
    ) -> None:
        store.check_weights(manifest.id)
        self.kind = kind
        self.expert = manifest.expert()
        state = store.load(manifest.id)
        self.identity = weights_file.header(store.path(manifest.id)).identity
        self.folded: Folded = fold(kind, self.expert, state)
        self.samples, self.source = samples, source
        self.expected = self._findings(network(kind, self.expert, state))

    def measured(self, variant: Variant) -> MeasuredBlob:
        """Lay out a variant and run the samples through its bytes; raises StoreError."""
        labels = len(self.expert.labels)
        blob = lay_out(self.folded, variant, kind=self.kind.name, labels=labels, identity=self.identity)
        module = network(self.kind, self.expert, tensors(blob), self.folded.pairs, FLOATS.get(variant))
        try:
            actual = self._findings(module)
        except RuntimeError as error:
            raise StoreError(f"kind '{self.kind.name}' does not run in {variant} ({first_line(error)})") from None
        if variant == "fp32":
            off = compare(self.expected, actual, generated=False).largest_score_difference
            if off > FOLDED_DIFFERENCE:
                raise StoreError(f"folding changes its scores by {off:.2g}; kind '{self.kind.name}' cannot be folded")
        return MeasuredBlob(blob, actual, 0.0 if variant == "fp32" else escalate_below(self.expected, actual))

    def model(self, limit_s: float = SEARCH_S) -> MeasuredBlob:
        """Lay out an ONNX model in int8; raises StoreError.

        If findings differ, layers that stay float are searched for `limit_s` seconds.
        """
        if self.samples.generated:
            raise StoreError(
                "it takes the ranges of its numbers from pictures of what it inspects, and there are none; coe-experts "
                "prepare --images FOLDER makes it"
            )
        pictures = [sample.pixels for sample in self.samples.prepared]
        exported = int8.export(
            self.kind, self.expert, network(self.kind, self.expert, self.folded.state, self.folded.pairs), pictures
        )
        quantiser = int8.Quantiser(exported, pictures)
        name = f"the model of '{self.expert.id}'"
        latest: tuple[frozenset[str], onnx.ModelProto] | None = None

        def harm_of(in_float: frozenset[str]) -> Harm:
            nonlocal latest
            model = quantiser.quantised(in_float)
            latest = in_float, model
            answer = OnnxNetwork(model.SerializeToString(), 0, name).run
            actual = findings(self.kind, self.expert, self.samples.prepared, answer)
            below = escalate_below(self.expected, actual)
            pairs = list(zip(self.expected, actual, strict=True))
            return Harm(
                1 - compare(self.expected, actual, generated=False).labels_equal,
                sum(finding.margin < below for finding in actual) / len(actual),
                sum(abs(before.score - after.score) for before, after in pairs) / len(pairs),
            )

        in_float = search(quantiser.layers, quantiser.ends, harm_of, most_again=SECOND_LOOKS, in_time=within(limit_s))
        if latest is None or latest[0] != in_float:  # other models are not kept: each may have a hundred megabytes
            harm_of(in_float)
        assert latest is not None
        model, weights = divided(fused(latest[1]))
        actual = findings(self.kind, self.expert, self.samples.prepared, OnnxNetwork(model, 0, name, weights).run)
        labels = len(self.expert.labels)
        blob = lay_out_model(model, weights, kind=self.kind.name, labels=labels, identity=self.identity)
        calibration = Calibration(
            pictures=len(pictures),
            digest=self.samples.digest,
            source=self.source,
            learned=self.samples.learned,
            layers=len(quantiser.layers),
            float_layers=len(in_float),
        )
        return MeasuredBlob(blob, actual, escalate_below(self.expected, actual), calibration)

    def difference(self, parent: Parent) -> MeasuredBlob:
        """Lay out the difference to a parent in the smallest rank with few second looks; raises StoreError.

        If no rank has few, the largest is taken: second looks keep its labels right.
        """
        for rank in RANKS:
            part = own_part(self.folded, parent, rank)
            blob = lay_out(
                part.folded,
                "delta",
                kind=self.kind.name,
                labels=len(self.expert.labels),
                identity=self.identity,
                body=parent.digest,
                differences=part.differences,
            )
            actual = self._findings(network(self.kind, self.expert, whole(blob, parent.body), self.folded.pairs))
            below = escalate_below(self.expected, actual)
            again = sum(finding.margin < below for finding in actual)
            if part.cut <= MOST_CUT and again <= SECOND_LOOKS * len(actual):
                break
        if part.cut > MOST_CUT:
            raise StoreError(
                f"it is too far from '{parent.id}': a change of rank {rank} leaves {part.cut:.0%} of a layer out; "
                "leave this variant out, or name the expert that it was fine-tuned from"
            )
        blocks = lay_out(self.folded, "q8", kind=self.kind.name, labels=len(self.expert.labels))
        if blob.header.data_bytes > LARGEST * blocks.header.data_bytes:
            raise StoreError(
                f"its difference to '{parent.id}' takes {blob.header.data_bytes:,} bytes, nearly as many as `q8` "
                f"({blocks.header.data_bytes:,}); leave this variant out"
            )
        return MeasuredBlob(blob, actual, below)

    def put(self, store: Store, manifest: Manifest, made: MeasuredBlob, parent: Parent | None = None) -> Manifest:
        """Put a measured blob into the store, with the body of its parent that it changes, if there is one."""
        agreement = compare(self.expected, made.findings, generated=self.samples.generated)
        return variants.put(
            store,
            manifest,
            made.blob.bytes,
            agreement=agreement,
            escalate_below=made.escalate_below,
            calibration=made.calibration,
            body=parent.body.bytes if parent is not None else None,
            parent=parent.id if parent is not None else "",
        )

    def _findings(self, module: torch.nn.Module) -> list[Finding]:
        def answer(pixels: Image) -> object:
            with torch.inference_mode():
                return self.kind.forward(module, torch.from_numpy(pixels))

        return findings(self.kind, self.expert, self.samples.prepared, answer)
