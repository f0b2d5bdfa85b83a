"""A whole board as a page shows it: the report draws it, and needs nothing else of whole boards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LOCATION_STEP = "(location)"
"""Where findings name an expert: the step that finds a board in its picture. No expert can have this id."""


@dataclass(frozen=True, slots=True)
class BoardView:
    """A board for a page: its part of a picture, (h, w, 3) uint8 RGB, and the corners (4, 2) of each crop in it.

    The crops have the names that their images have in the results. `note` says why there is no crop.
    """

    pixels: NDArray[np.uint8] = field(repr=False)
    crops: Mapping[str, NDArray[np.float64]]
    note: str = ""
