"""The serial of a board from a code on it: DataMatrix, QR, Code 128, ... at a place that the recipe names.

A serial is taken only if one code can be meant there. Otherwise the board keeps the name of its picture, and each of
its components is to review, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from coe.board.parts_list import FARTHEST_MM
from coe.errors import ConfigError, ImageError, list_few
from coe.helpers.allowed_text import Patterns, Reading
from coe.helpers.strict_model import StrictModel
from coe.pictures.array_images import DecodedImage
from coe.pictures.codes import USUAL, check_formats, read_codes

_Coordinate = Annotated[float, Field(ge=-FARTHEST_MM, le=FARTHEST_MM, allow_inf_nan=False)]
_Length = Annotated[float, Field(gt=0, le=FARTHEST_MM, allow_inf_nan=False)]

_SEPARATORS = frozenset("/\\:")
"""What would lead a file that is named after a serial elsewhere."""


def _known(formats: tuple[str, ...]) -> tuple[str, ...]:
    try:
        check_formats(formats)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return formats


class SerialSpec(StrictModel):
    """Where the code lies: its middle `at`, and the `size` of a rectangle in which it is, with its white border.

    `formats` are those that are read, `allowed` patterns of `coe.helpers.allowed_text`. On a panel there is a code on
    `each` unit, in the unit's frame, or one for the panel.
    """

    at: tuple[_Coordinate, _Coordinate]
    size: tuple[_Length, _Length]
    formats: Annotated[tuple[str, ...], AfterValidator(_known)] = USUAL
    allowed: Patterns | None = None
    each: Literal["panel", "unit"] = "panel"


@dataclass(frozen=True, slots=True)
class ReadSerials:
    """The serials that were read, and why others were not, by the unit on which the code lies, "" for the panel."""

    serials: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def read_serials(crops: Mapping[str, DecodedImage | None], spec: SerialSpec) -> ReadSerials:
    """Read the serial in each crop, (H, W, 3) uint8 RGB; None stands for one that lies outside of the picture.

    A serial that two units show is that of neither.
    """
    serials: dict[str, str] = {}
    unread: dict[str, str] = {}
    for unit, crop in crops.items():
        try:
            serials[unit] = _serial(crop, spec)
        except ImageError as why:
            unread[unit] = f"the serial is not known: {why}"
    for text, number in Counter(serials.values()).items():
        if number > 1:
            for unit in [unit for unit, serial in serials.items() if serial == text]:
                del serials[unit]
                unread[unit] = f"the serial is not known: {number} units show '{text}'"
    return ReadSerials(serials, unread)


def _serial(crop: DecodedImage | None, spec: SerialSpec) -> str:
    """Return the serial in a crop; raises ImageError that says why there is none."""
    if crop is None:
        raise ImageError("its place is outside the picture")
    codes = read_codes(crop, spec.formats)
    reading = Reading(allowed=spec.allowed)
    sure = list(dict.fromkeys(code.text for code in codes if code.is_believed(reading)))
    meant = [text for text in sure if reading.allows(text) and text == text.strip()]
    if len(meant) == 1:
        if set(meant[0]) & _SEPARATORS or meant[0].startswith("."):
            raise ImageError(f"the code says '{meant[0]:.60}', which cannot be the name of a file")
        return meant[0]
    if meant:
        few = list_few((f"'{text:.60}'" for text in meant), 3)
        raise ImageError(f"{len(meant)} different codes are there, {few}")
    if sure:
        raise ImageError(f"the code says '{sure[0]:.60}', which matches no pattern of `allowed`")
    raise ImageError("the code there cannot be read reliably" if codes else "no code is read at its place")
