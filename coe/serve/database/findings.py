"""The OK findings of a board as one compressed value. Law: this file alone knows its form."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LEVEL = 6


@dataclass(frozen=True, slots=True)
class GoodComponent:
    """A component that is OK: its view and place in it (None: the view shows it alone), and its findings as JSON.

    A finding is a row of `Finding.to_dict`.
    """

    refdes: str
    component: str
    view_id: int
    place: Any
    findings: Sequence[Any]


def pack(components: Sequence[GoodComponent]) -> bytes:
    """Return components as compressed JSON."""
    rows = [
        [component.refdes, component.component, component.view_id, component.place, list(component.findings)]
        for component in components
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":"), allow_nan=False).encode(), _LEVEL)


def unpack(packed: bytes | None) -> list[GoodComponent]:
    """Return the components of a packed value; none for None."""
    return [] if packed is None else [GoodComponent(*row) for row in json.loads(zlib.decompress(packed))]
