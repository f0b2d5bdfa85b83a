"""Preparing an expert of the store: fold, lay out, measure, write; once for all experts that share weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import onnx
import torch

from coe.core import Finding
from coe.errors import NoInt8, StoreError, first_line
from coe.helpers.preprocessing import Outputs, Preprocessing
from coe.store import kinds, variants, weights_file
from coe.store.blob_format import Variant
from coe.store.kinds import FileKind, Image, Kind, ModuleKind
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.variants import int8
from coe.variants.agreement import compare, escalate_below, findings
from coe.variants.calibration_images import SampleImages, sample_images
from coe.variants.fold import Folded, fold, network
from coe.variants.int8_trial import SEARCH_S, FileTrial, MeasuredBlob, ModelTrial
from coe.variants.layer_search import Layers
from coe.variants.layout import FLOATS, lay_out, tensors

_Weights = tuple[str, str, int, int, Preprocessing | None, Outputs | None]


@dataclass(frozen=True, slots=True)
class Preparation:
    """The outcome for one expert: its manifest, the variants made or shared, and why others failed or were skipped.

    `faults` says what is wrong with samples that were left out.
    """

    manifest: Manifest
    made: tuple[Variant, ...] = ()
    shared: tuple[Variant, ...] = ()
    failed: dict[Variant, str] = field(default_factory=dict)
    skipped: str = ""
    faults: tuple[str, ...] = ()


class Preparer:
    """Prepares experts of a store one by one.

    Experts of the same weights (`Store.link`) share their blobs, and with them the agreement that was measured on the
    samples of the first. With `force`, existing variants are prepared again. For `search_s` seconds layers are
    searched that `int8` keeps in float. `allow_kinds` as for `coe.inspector.inspector.Inspector`, and `bits` of 16-bit
    samples count.
    """

    def __init__(
        self,
        store: Store,
        wanted: Sequence[Variant],
        *,
        force: bool = False,
        allow_kinds: Sequence[str] = (),
        search_s: float = SEARCH_S,
        bits: int | None = None,
    ) -> None:
        self.allowed = tuple(allow_kinds)
        self.store, self._wanted, self._force = store, tuple(dict.fromkeys(wanted)), force
        self._search_s, self._bits = search_s, bits
        self._originals: dict[tuple[_Weights, Variant], str] = {}
        self._in_float: dict[tuple[str, str], Layers] | None = None
        """By kind and body, the layers that stay float in `int8`; None until they are needed."""

    def lacks(self, weights: str) -> bool:
        """Tell whether an expert lacks a wanted variant or its body; raises StoreError if its manifest is damaged."""
        manifest = self.store.manifest(weights)
        if manifest.is_backbone:
            return False
        if self._force:
            self._note(manifest, ())
            return True
        have = [
            variant
            for variant, blob in manifest.variants.items()
            if blob.body is None or (self.store.bodies / blob.body.file).is_file()
        ]
        self._note(manifest, have)
        return not set(have).issuperset(self._wanted)

    def prepare(self, weights: str, images: Sequence[Path] = (), source: str = "") -> Preparation:
        """Prepare an expert in the variants that it lacks; `images` are samples of what it will see.

        `source` says in words where they are from.

        If one variant cannot be made, the others still are. Raises StoreError for weights that are damaged or cannot be
        folded, or a store that cannot be written; DiskFull. If another process prepares the same expert, this call
        waits, and does not repeat its work.
        """
        with self.store.changing(weights) as manifest:
            kind = kinds.resolve(manifest.kind, self.allowed)
            if manifest.is_backbone:
                return Preparation(manifest, skipped="a backbone is never run")
            wanted, skipped = _possible(kind, self._wanted, "" if self._force else manifest.no_int8)
            whole = [v for v in wanted if not self._force and variants.is_whole(self.store, manifest, v)]
            lacking = [v for v in wanted if v not in whole]
            if not lacking:
                return Preparation(manifest, skipped=skipped)
            learned = self.store.learned(weights)
            samples = cache(lambda: sample_images(kind, manifest.expert(), images, learned, self._bits))
            shared = replace(self._share(manifest, lacking, samples), skipped=skipped)
            remaining = [v for v in lacking if v not in shared.shared]
            if not remaining:
                return shared
            shared = replace(shared, faults=samples().faults)
            return self._make(shared, _trial(self.store, shared.manifest, kind, samples(), source), remaining)

    def _make(self, so_far: Preparation, subject: ModelTrial, lacking: Sequence[Variant]) -> Preparation:
        manifest = so_far.manifest
        failed: dict[Variant, str] = {}
        for variant in lacking:
            try:
                if variant == "int8":
                    made_of = subject.model(self._search_s, self._known_floats(manifest))
                    manifest = subject.put(self.store, manifest, made_of)
                    continue
                assert isinstance(subject, ExpertTrial), "a file has no other variants"
                manifest = subject.put(self.store, manifest, subject.measured(variant))
            except StoreError as error:
                failed[variant] = str(error)
                if isinstance(error, NoInt8) and isinstance(subject.kind, FileKind) and "int8" not in manifest.variants:
                    manifest = variants.rule_out_int8(self.store, manifest, str(error))
        made = [variant for variant in lacking if variant not in failed]
        self._note(manifest, made)
        return replace(so_far, manifest=manifest, made=tuple(made), failed=failed)

    def _known_floats(self, manifest: Manifest) -> Layers:
        """Return the layers that stay float in the last expert of the same body: that has nearly all of them."""
        if self._in_float is None:
            self._in_float = {}
            for id in self.store.ids():
                with suppress(StoreError):
                    self._note_floats(self.store.manifest(id))
        return self._in_float.get(_body_of(manifest), frozenset())

    def _note_floats(self, manifest: Manifest) -> None:
        made_of = manifest.variants["int8"].calibration if "int8" in manifest.variants else None
        if self._in_float is not None and made_of is not None and manifest.body is not None:
            self._in_float[_body_of(manifest)] = frozenset(made_of.in_float)

    def _share(
        self, manifest: Manifest, lacking: Sequence[Variant], samples: Callable[[], SampleImages]
    ) -> Preparation:
        """Take over blobs that were prepared from the same weights, and `int8` only from the same pictures as well."""
        shared: list[Variant] = []
        for variant in lacking:
            name = self._originals.get((_weights(manifest), variant))
            original = self.store.manifest(name) if name and name != manifest.id else None
            if not original or variant not in original.variants or _weights(original) != _weights(manifest):
                continue
            calibration = original.variants[variant].calibration
            if variant == "int8" and (calibration is None or calibration.digest != samples().digest):
                continue
            manifest = variants.share(self.store, manifest, original, [variant])
            shared.append(variant)
        return Preparation(manifest, shared=tuple(shared))

    def _note(self, manifest: Manifest, prepared: Collection[Variant]) -> None:
        self._note_floats(manifest)
        for variant in prepared:
            self._originals.setdefault((_weights(manifest), variant), manifest.id)


def _weights(manifest: Manifest) -> _Weights:
    sizes = len(manifest.labels), manifest.input_size
    return manifest.checksum, manifest.kind, *sizes, manifest.preprocessing, manifest.outputs


def _body_of(manifest: Manifest) -> tuple[str, str]:
    return manifest.kind, manifest.body.digest if manifest.body is not None else ""


def _possible(kind: Kind, wanted: Sequence[Variant], no_int8: str) -> tuple[list[Variant], str]:
    """Return those of the wanted variants that an expert can have, and why it has no others.

    `no_int8` says why its file has no `int8`, if that was found before.
    """
    if "int8" in wanted and no_int8:
        return [], no_int8
    if isinstance(kind, FileKind):
        if "int8" in wanted and kind.has_int8:
            alone = f"kind '{kind.name}' runs its file unchanged, and can only have int8 in addition"
            return ["int8"], "" if set(wanted) == {"int8"} else alone
        return [], f"kind '{kind.name}' runs its file unchanged"
    if "int8" in wanted and not kind.has_int8:
        rest: list[Variant] = [variant for variant in wanted if variant != "int8"]
        return rest, f"kind '{kind.name}' compares pictures, so it has no int8"
    return list(wanted), ""


def _trial(store: Store, manifest: Manifest, kind: Kind, samples: SampleImages, source: str) -> ModelTrial:
    if isinstance(kind, FileKind):
        return FileTrial(store, manifest, kind, samples, source)
    assert isinstance(kind, ModuleKind), "there are no other kinds"
    return ExpertTrial(store, manifest, kind, samples, source)


# Trials of an expert's variants: each is laid out, run on samples, and compared with the original network


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
