"""The published recognition model, and lines of text as it reads them."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import torch

from experts import marking_file
from experts.marking_network import MarkingNetwork


def model_file():
    spec = find_spec("rapidocr")
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "models", marking_file.MODEL)


@cache
def network():
    torch.set_num_threads(1)
    module = MarkingNetwork().eval()
    module.load_state_dict(marking_file.tensors(model_file()))
    return module


def part(text, *, quarter_turns=0):
    """Return a part of 120 x 120 pixels, uint8 RGB, with a text printed in its middle."""
    image = np.full((120, 120, 3), 40, np.uint8)
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.6, 2)
    at = (60 - width // 2, 60 + height // 2)
    cv2.putText(image, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (200, 200, 200), 2, cv2.LINE_AA)
    return np.ascontiguousarray(np.rot90(image, quarter_turns))
