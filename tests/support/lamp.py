"""A classifier whose answers are known: the brighter a picture, the surer it says the second of two labels."""

import cv2
import numpy as np
from onnx_files import written

from coe.helpers.preprocessing import Outputs
from coe.store.store import Store

STATED = ("--resize", "letterbox", "--channels", "rgb", "--activation", "softmax")
"""Options of import: what the model does not say of its pictures and scores."""
LOGITS = Outputs(name="logits", layout="scores", activation="softmax")

BOARD = """
board: lamps
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32}
components:
  L: {inspect: lamp, then: {dark: NG, bright: OK}}
"""


def lamp(path):
    """Write the model, which takes pictures of 32 pixels as bytes."""
    nodes = """numbers = Cast<to=1>(images) mean = ReduceMean<axes=[1,2,3], keepdims=0>(numbers)
        off = Sub(mean, middle) up = Mul(off, steep) down = Neg(up)
        up1 = Unsqueeze(up, one) down1 = Unsqueeze(down, one) logits = Concat<axis=1>(down1, up1)"""
    numbers = {"middle": 128.0, "steep": 0.02, "one": [1]}
    written(path, "uint8[n,3,32,32] images", nodes, "float[n,2] logits", opset=13, **numbers)


def picture(path, level):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((32, 32, 3), level, np.uint8))


def lamp_board(folder):
    """Write a board that says NG to dark pictures and OK to bright ones; return its file and its store."""
    board, store = folder / "lamps.yaml", folder / "store"
    board.write_text(BOARD, encoding="utf-8")
    lamp(folder / "lamp.onnx")
    said = {"labels": ["dark", "bright"], "input_size": 32, "outputs": LOGITS}
    Store(store).put("lamps/lamp", kind="onnx", file=folder / "lamp.onnx", **said)
    return board, store
