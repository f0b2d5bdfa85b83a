"""From a picture to an expert's input, on a decode worker."""

from __future__ import annotations

from coe.board.image_source import ImageSource
from coe.core import Expert
from coe.errors import ImageError
from coe.runtime.admission import Admission
from coe.runtime.reference_source import ReferenceSource
from coe.store.kinds import Comparing, Kind, Prepared


def prepare(
    source: ImageSource, reference: ReferenceSource | None, kind: Kind, expert: Expert, decoding: Admission
) -> Prepared:
    """Decode a picture, and its reference if the expert compares it, once `decoding` has room; raises ImageError."""
    if not isinstance(kind, Comparing):
        with decoding.room(source.decoding_bytes()):
            return kind.preprocess(source.decode(), expert)
    if reference is None:
        raise ImageError("came without a reference, and its component has none")
    with decoding.room(source.decoding_bytes() + reference.decoding_bytes()):
        return kind.compare(source.decode(), reference.decode(), expert)
