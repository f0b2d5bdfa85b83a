"""A classifier whose answers are known: the brighter a picture, the surer it says the second of two labels."""

import cv2
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

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
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Sub", ["mean", "middle"], ["off"]),
        helper.make_node("Mul", ["off", "steep"], ["up"]),
        helper.make_node("Neg", ["up"], ["down"]),
        helper.make_node("Unsqueeze", ["up", "one"], ["up1"]),
        helper.make_node("Unsqueeze", ["down", "one"], ["down1"]),
        helper.make_node("Concat", ["down1", "up1"], ["logits"], axis=1),
    ]
    constants = [
        numpy_helper.from_array(np.float32(128), "middle"),
        numpy_helper.from_array(np.float32(0.02), "steep"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", 3, 32, 32])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "lamp", [images], [logits], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


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
