"""What the store knows of an expert: its file, the blobs prepared from it, and how far to trust each blob."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coe.core import Expert, GoodLimits
from coe.errors import StoreError, first_line
from coe.helpers import regular
from coe.helpers.preprocessing import Outputs, Preprocessing
from coe.helpers.spelling import composed
from coe.helpers.strict_model import Bytes, Count, Share, StrictModel
from coe.store.blob_format import Header, Identity, Variant
from coe.store.exam import Exam, stops_of

_MAX_BYTES = 16 << 20
_MOST_LOOKS = 64
"""Each takes memory before its tensors are compared with the file."""
SMALLEST = "smallest_px"
"""The name of a measure: how many pixels of the input the smallest objects have that an expert was taught."""
SHORTER = "shorter_px"
"""The name of a measure: how many pixels of the input the shorter sides of the strips have that it was taught."""
_FEW_PX, _NARROW_PX = 4.0, 32.0
"""A network that halves its input two or three times sees no smaller object surely; nor much in four of its places."""
IN_DOUBT = "in_doubt"
"""The name of a measure of experts that know how near to each other good parts lie: the share that does not."""
_AND = "+"
M = TypeVar("M", bound=BaseModel)


class Agreement(StrictModel):
    """How far a variant's findings agree with torch in fp32 on sample images, which may be `generated`.

    `labels_equal` is the share of images on which both say the same label, and no doubt is lost. `boxes_matched` is the
    share of all boxes that match a box of the same label on the other side at an IoU of 0.9 (None if there are no boxes
    at all). `largest_score_difference` is over findings and matching boxes. `again` is the share of images whose
    finding would be run again in fp32.
    """

    images: Count
    labels_equal: Share
    largest_score_difference: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    boxes_matched: Share | None = None
    generated: bool = False
    again: Share = 0.0


class StoredFile(StrictModel):
    """A file of a store: its name, its size, and an xxh3-128 in hexadecimal.

    `digest` is that of a blob's bytes before its data, or that of the whole file of trained tensors.
    """

    file: str
    bytes: Bytes
    digest: str


class LearnedFile(StrictModel):
    """The file with the digests beside a manifest: how many pictures it tells, its size, and its own xxh3-128."""

    file: str
    pictures: Bytes
    bytes: Bytes
    digest: str


class Calibration(StrictModel):
    """What the whole numbers of `int8` come from: the pictures that gave their ranges, and the layers that stay float.

    `digest` is an xxh3-128 of the pictures as the expert gets them, `source` says in words where they are from, and
    `learned` is how many of them the expert learned from (None: nobody knows what it learned from). `in_float` names
    the layers that stay float, in the model's order; `float_layers` is their number.
    """

    pictures: Count
    digest: str
    source: str = ""
    learned: Bytes | None = None
    layers: Count
    float_layers: Bytes = 0
    in_float: tuple[str, ...] = ()


class PreparedVariant(StoredFile):
    """A blob of an expert, and how far to trust it.

    With a `body`, the blob holds the expert's own tensors alone, and that file those which it has in common with other
    experts.

    `agreement` compares with the original weights file, in fp32. A finding whose margin is under `escalate_below` is
    run again in fp32; 0 means never. `calibration` is that of `int8`.
    """

    agreement: Agreement | None = None
    escalate_below: float = 0.0
    calibration: Calibration | None = None
    body: StoredFile | None = None

    @property
    def whole_bytes(self) -> int:
        """The bytes of the blob with those of the body."""
        return self.bytes + (self.body.bytes if self.body is not None else 0)


def frames_of(checksums: Iterable[str]) -> str:
    """Return what a manifest says of the references in whose frames an expert learned: their checksums, in order."""
    return _AND.join(checksums)


class Manifest(BaseModel):
    """What the store knows of one expert. `bytes` and `checksum` (xxh3-128, hexadecimal) are those of `file`.

    `original` is the expert whose files this expert shares, or "". With a `body`, `file` holds the expert's own tensors
    alone. `reference` is the checksum of the reference in whose frame the expert learned, or "", or those of several
    (`frames`); `looks` is in how many ways good parts look to an expert without one. `learned` tells which pictures it
    learned from (None: nobody knows). `preprocessing` and `outputs` are None where the kind decides. `unproven` says
    why its held-out figures do not prove that it is better than one answer for all; "" if they do, None if nobody has
    measured it. `exam` is what it was shown that must not pass, None if it took none. `limits` are those of an expert
    that compares, by the id of the reference. `licence` is that of a backbone's weights, "" if nobody has said it.
    `no_int8` says why `file` can never have `int8`, "" if it may. `version` counts up with each replacement, from 1;
    `restored` is the version whose files these were, else 0.
    """

    # A metric that is not a number is written as NaN, not as a null that could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: Literal[2] = 2
    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int
    variant: Literal["fp32"] = "fp32"
    file: str
    bytes: int
    checksum: str
    metrics: dict[str, float] = {}
    source: str = ""
    created: str = ""
    variants: dict[Variant, PreparedVariant] = {}
    original: str = ""
    body: StoredFile | None = None
    reference: str = ""
    looks: Annotated[int, Field(ge=1, le=_MOST_LOOKS)] = 1
    learned: LearnedFile | None = None
    preprocessing: Preprocessing | None = None
    outputs: Outputs | None = None
    unproven: str | None = None
    exam: Exam | None = None
    limits: dict[str, GoodLimits] = {}
    no_int8: str = ""
    version: Annotated[int, Field(ge=1)] = 1
    restored: Annotated[int, Field(ge=0)] = 0
    licence: str = ""

    @property
    def frames(self) -> tuple[str, ...]:
        """The checksums of the references in whose frames the expert learned."""
        return tuple(self.reference.split(_AND)) if self.reference else ()

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files in the expert's folder."""
        learned = () if self.learned is None else (self.learned.file,)
        return (self.file, *(prepared.file for prepared in self.variants.values()), *learned)

    @property
    def few_pixels(self) -> str:
        """Why small defects may pass, as the end of a sentence; "" if they are large enough, or nobody knows."""
        if (smallest := self.metrics.get(SMALLEST, _FEW_PX)) < _FEW_PX:
            few = f"its smallest training objects have {smallest:.1f} pixels in its input of {{}}: such"
        elif (shorter := self.metrics.get(SHORTER, _NARROW_PX)) < _NARROW_PX:
            few = (
                f"the shorter sides of its training pictures have {shorter:.0f} pixels in its input of {{}}: "
                "small defects"
            )
        else:
            return ""
        return f"{few.format(self.input_size)} may pass; train with a larger --input, or cut the pictures into tiles"

    @property
    def knows_good_parts(self) -> bool:
        """Whether the expert measures how far a picture lies from good parts."""
        return IN_DOUBT in self.metrics or bool(self.limits)

    @property
    def is_backbone(self) -> bool:
        """Whether it has no labels: the layers of a network without its head, from which a training starts."""
        return not self.labels

    @property
    def whole_bytes(self) -> int:
        """The bytes of the weights file with those of the body."""
        return self.bytes + (self.body.bytes if self.body is not None else 0)

    @property
    def bodies(self) -> tuple[StoredFile, ...]:
        """The bodies of the trained weights and of all variants."""
        parts = (self.body, *(prepared.body for prepared in self.variants.values()))
        return tuple(body for body in parts if body is not None)

    def expert(self) -> Expert:
        """Return the expert as the manifest describes it, under its own id."""
        return self.fit(Expert(self.id, self.kind, self.labels, self.input_size, self.id))

    def fit(self, expert: Expert) -> Expert:
        """Return an expert of the rules with the order of labels and all else that its manifest says of its weights.

        Its labels are in NFC, as those of the rules are.
        """
        labels = tuple(map(composed, self.labels))
        return replace(
            expert,
            labels=labels,
            preprocessing=self.preprocessing,
            outputs=self.outputs,
            alternates=max(self.looks, len(self.frames)),
            stops=stops_of(self.exam),
            limits=self.limits,
            caution=self.few_pixels,
        )

    def prove(self, identity: Identity | None, name: str) -> None:
        """Compare with the identity that weights carry; raises StoreError if they were made for another expert.

        `identity` is None for weights that state none, as those in another file format. An expert that shares the files
        of another expert may have other labels, but the same number of them.
        """
        if identity is None:
            return
        if identity.id != (self.original or self.id):
            raise StoreError(
                f"{name} was made for expert '{identity.id}', not for '{self.original or self.id}'; "
                "train or import the expert again"
            )
        labels, made_labels = (
            (self.labels, identity.labels) if not self.original else (len(self.labels), len(identity.labels))
        )
        stands_for = (self.kind, labels, self.input_size, self.preprocessing)
        made_for = (identity.kind, made_labels, identity.input_size, identity.preprocessing)
        if stands_for != made_for:
            raise StoreError(
                f"{name} was made for a {identity.kind} of {identity.input_size} pixels for "
                f"{', '.join(identity.labels)}, but the manifest says otherwise; train or import the expert again"
            )

    def prove_blob(self, header: Header, name: str, *, kind: str, variant: str, labels: int, body: str) -> None:
        """Compare a blob's header with what it must be, `body` being the digest of its body, and prove its identity.

        Raises StoreError, which calls the blob `name`.
        """
        again = "prepare the expert again (coe-experts prepare --force)"
        if (header.kind, header.variant, header.labels) != (kind, variant, labels):
            raise StoreError(
                f"{name} is of kind {header.kind} in {header.variant} for {header.labels} labels, not of kind {kind} "
                f"in {variant} for {labels}; {again}"
            )
        if header.body != body:
            raise StoreError(f"{name} belongs to another body than the manifest names; {again}")
        self.prove(header.identity, name)


def read(path: Path, weights: str) -> Manifest:
    """Read the manifest of the expert `weights`.

    Raises FileNotFoundError if there is none, StoreError if it is damaged, of another version or of another expert.
    """
    manifest = read_record(path, Manifest, _MAX_BYTES, "train or import it again")
    if manifest.id != weights:
        raise StoreError(
            f"{path}: the manifest is that of expert {manifest.id[:200]!r}, not of '{weights}'; if the folder was "
            "copied or renamed, put it back, or import it again"
        )
    check_inside(path, (*manifest.files, *(body.file for body in manifest.bodies)))
    return manifest


def read_record(path: Path, model: type[M], most_bytes: int, remedy: str) -> M:
    """Read a manifest as a model; raises FileNotFoundError if there is none, StoreError if it is damaged."""
    try:
        return model.model_validate(json.loads(regular.read(path, most_bytes)))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: the manifest cannot be read ({_reason(error)}); {remedy}") from error


def check_inside(path: Path, files: Iterable[str]) -> None:
    """Raise StoreError if a manifest names a file that does not lie beside it."""
    for file in files:
        if Path(file).name != file or file in ("", "..") or "\0" in file:
            raise StoreError(
                f"{path}: the file {file[:200]!r} is outside the folder of the manifest; make or import it again"
            )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        why = "a newer version of CoE wrote it" if first["type"] == "extra_forbidden" else message
        return f"{'.'.join(map(str, first['loc']))}: {why}"[:200]
    return first_line(error)[:200]
