"""A detector's outputs for one image, written as boxes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def candidates(rows: Sequence[Sequence[float]], labels: int) -> NDArray[np.float32]:
    """Return outputs (1, 4 + labels, N) of rows x1, y1, x2, y2, and a score for each label."""
    table = np.array(rows, np.float32).reshape(-1, 4 + labels)
    low, high = table[:, :2], table[:, 2:4]
    with np.errstate(all="ignore"):  # rows of nonsense, too
        return np.concatenate(((low + high) / 2, high - low, table[:, 4:]), axis=1).T[None]
