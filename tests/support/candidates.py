"""A detector's outputs for one image, written as boxes."""

import numpy as np


def candidates(rows, labels):
    table = np.array(rows, np.float32).reshape(-1, 4 + labels)
    low, high = table[:, :2], table[:, 2:4]
    with np.errstate(all="ignore"):  # rows of nonsense, too
        return np.concatenate(((low + high) / 2, high - low, table[:, 4:]), axis=1).T[None]
