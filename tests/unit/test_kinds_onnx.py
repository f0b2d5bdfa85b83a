import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from PIL import Image

from coe.bring import facts
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from coe.store.kinds import resolve
from experts.normalising import DEVIATION, MEAN
from experts.onnx import describe
from experts.onnx import onnx as kind

COLOUR = Expert("colour", "onnx", ("red", "green", "blue"), 32, "b/colour")
JOINT = Expert("joint", "onnx", ("joint", "bridge"), 32, "b/joint", frozenset({"bridge"}))


def save(path, nodes, shape, output, kind_of=TensorProto.FLOAT, constants=(), out_shape=None):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", kind_of, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, out_shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def classifier(path, batch="n", kind_of=TensorProto.FLOAT, size=32):
    """Returns the mean of each channel as its logit."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["means"], axes=[2, 3], keepdims=0),
    ]
    return save(path, nodes, [batch, 3, size, size], "means", kind_of, out_shape=[batch, 3])


def detector(path, candidates, batch=1):
    """Returns the same candidates for every image of a batch of one."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["candidates", "nothing"], ["output0"]),
    ]
    constants = [("zero", np.float32(0)), ("candidates", np.asarray(candidates, np.float32)[None])]
    return save(path, nodes, [batch, 3, 32, 32], "output0", constants=constants, out_shape=[1, *np.shape(candidates)])


def run(path, expert, *images):
    prepared = [kind.preprocess(image, expert) for image in images]
    outputs = kind.open(path, expert, 1).run(np.stack([one.pixels for one in prepared]))
    return outputs, kind.postprocess(outputs, prepared, expert)


def painted(channel):
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, :, channel] = 255
    return image


def test_it_is_found_by_its_dotted_path():
    assert resolve("experts.onnx:onnx").name == "onnx"


def test_pictures_with_more_boxes_and_fewer_have_one_table(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Mul", ["mean", "most"], ["some"]),
        helper.make_node("Cast", ["some"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["whole", "one"], ["count"]),
        helper.make_node("Slice", ["candidates", "none", "count", "one"], ["output0"]),
    ]
    rows = np.float32([[at, at, at + 9, at + 9, 0.9, 1] for at in (1, 11, 21)])[None]
    constants = [("most", np.float32(3)), ("one", [1]), ("none", [0]), ("candidates", rows)]
    path = save(tmp_path / "d.onnx", nodes, [1, 3, 32, 32], "output0", constants=constants, out_shape=[1, "N", 6])
    expert = replace(JOINT, preprocessing=kind.read(path).preprocessing)
    expert = replace(expert, outputs=kind.settle(path, expert))
    _, findings = run(path, expert, *(np.full((32, 32, 3), level, np.uint8) for level in (0, 255, 127)))
    assert [len(finding.boxes) for finding in findings] == [0, 3, 1]


@pytest.mark.parametrize(
    "ending",
    [
        [("Range", ["nought", "most", "step"], {}), ("Slice", [0, "one", "most1"], {}), ("Gather", [0, "at"], {})],
        [("Mod", ["at", "most"], {})],
        [
            ("ConstantOfShape", ["one"], {"value": numpy_helper.from_array(np.int64([0]))}),
            ("ConstantOfShape", ["none"], {"value": numpy_helper.from_array(np.int64([2]))}),
            ("Concat", [0, 1], {"axis": 0}),
        ],
    ],
    ids=["Faster R-CNN", "RetinaNet", "SSD"],
)
def test_labels_that_no_test_picture_shows_are_counted(tmp_path, ending):
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        helper.make_node("Floor", ["mean"], ["black"]),
        helper.make_node("Cast", ["black"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["whole", "nought"], ["first"]),
        helper.make_node("Reshape", ["first", "one"], ["at"]),
        *(
            helper.make_node(
                kind_of, [f"label{one}" if one in (0, 1) else one for one in inputs], [f"label{at}"], **how
            )
            for at, (kind_of, inputs, how) in enumerate(ending)
        ),
        helper.make_node("Cast", [f"label{len(ending) - 1}"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["number", "shape"], ["column"]),
        helper.make_node("Concat", ["box", "column"], ["output0"], axis=2),
    ]
    whole = {"nought": 0, "step": 1, "one": [1], "none": [0], "most1": [3], "most": 3, "shape": [1, 1, 1]}
    constants = [*((name, np.int64(of)) for name, of in whole.items()), ("box", np.float32([[[1, 1, 9, 9, 0.9]]]))]
    path = save(tmp_path / "d.onnx", nodes, [1, 3, 32, 32], "output0", constants=constants, out_shape=[1, 1, 6])
    expert = replace(JOINT, preprocessing=kind.read(path).preprocessing)
    with pytest.raises(StoreError, match="3 labels"):
        kind.settle(path, expert)
    assert kind.settle(path, replace(expert, labels=("background", "joint", "bridge"))).layout == "end2end"


@pytest.mark.parametrize("batch", ["n", 1])
def test_a_classifier_with_an_open_batch_or_a_batch_of_one(tmp_path, batch):
    outputs, findings = run(classifier(tmp_path / "c.onnx", batch), COLOUR, painted(0), painted(2), painted(1))
    assert [finding.label for finding in findings] == ["red", "blue", "green"]
    # Its input is normalised like ImageNet's.
    assert outputs[0, 0] == pytest.approx((1 - MEAN[0]) / DEVIATION[0], abs=1e-4)
    assert findings[0].score == pytest.approx(np.exp(outputs[0]).max() / np.exp(outputs[0]).sum(), abs=1e-5)


def test_an_input_of_bytes_gets_the_pixels_as_they_are(tmp_path):
    outputs, _ = run(classifier(tmp_path / "c.onnx", kind_of=TensorProto.UINT8), COLOUR, painted(1))
    assert outputs.tolist() == [[0.0, 255.0, 0.0]]


def test_probabilities_are_left_as_they_are():
    rows = np.array([[0.7, 0.2, 0.1]], np.float32)
    prepared = kind.preprocess(painted(0), COLOUR)
    (finding,) = kind.postprocess(rows, [prepared], COLOUR)
    assert (finding.label, round(finding.score, 3)) == ("red", 0.7)


def test_a_detector_of_the_later_layout(tmp_path):
    candidates = np.zeros((6, 21), np.float32)
    candidates[:, 4] = [16, 16, 8, 4, 0.1, 0.9]
    outputs, findings = run(
        detector(tmp_path / "d.onnx", candidates), JOINT, painted(0), np.zeros((64, 64, 3), np.uint8)
    )
    assert outputs.shape == (2, 6, 21)
    assert [finding.label for finding in findings] == ["bridge", "bridge"]
    assert findings[0].boxes[0].xyxy == (12.0, 14.0, 20.0, 18.0)
    assert findings[1].boxes[0].xyxy == (24.0, 28.0, 40.0, 36.0)


def test_a_detector_of_the_legacy_layout_counts_its_objectness(tmp_path):
    candidates = np.zeros((63, 7), np.float32)
    candidates[2] = [16, 16, 8, 4, 0.5, 0.9, 0.1]
    candidates[5] = [4, 4, 8, 4, 0.1, 0.1, 0.9]
    _, (finding,) = run(detector(tmp_path / "d.onnx", candidates), JOINT, painted(0))
    assert (finding.label, round(finding.score, 3), len(finding.boxes)) == ("joint", 0.45, 1)


def test_outputs_that_do_not_fit_the_labels_name_the_shapes(tmp_path):
    with pytest.raises(StoreError, match=r"returns \(1, 9, 9\); 2 labels need \(n, 2\), \(n, 6, N\) or \(n, N, 7\)"):
        run(detector(tmp_path / "d.onnx", np.zeros((9, 9))), JOINT, painted(0))


def test_it_says_what_a_file_takes(tmp_path):
    told = describe(classifier(tmp_path / "c.onnx", 1))
    assert (told.input_size, told.batch, told.rank) == (32, 1, 2)
    open_size = describe(classifier(tmp_path / "o.onnx", "n", size="s"))
    assert (open_size.input_size, open_size.batch) == (None, None)


def test_another_input_size_is_told_before_anything_runs(tmp_path):
    path = classifier(tmp_path / "c.onnx", size=64)
    with pytest.raises(StoreError, match="'input: 64'"):
        kind.open(path, COLOUR, 1)


def test_weights_in_another_file_are_taken_from_nowhere(tmp_path, monkeypatch):
    for folder in ("from", "here"):
        (tmp_path / folder).mkdir()
        path = save(
            tmp_path / folder / "x.onnx",
            [
                helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
                helper.make_node("MatMul", ["means", "weights"], ["y"]),
            ],
            ["n", 3, 32, 32], "y", constants=[("weights", np.ones((3, 3), np.float32))], out_shape=["n", 3],
        )  # fmt: skip
        onnx.save(onnx.load(path), str(path), save_as_external_data=True, location="x.data", size_threshold=0)
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "from" / "x.onnx"
    assert (path.parent / "x.data").exists()
    for opened in (lambda: kind.open(path, COLOUR, 1), lambda: kind.open_bytes(path.read_bytes(), path, COLOUR, 1)):
        with pytest.raises(StoreError, match="with the weights in this one file"):
            opened()


@pytest.mark.parametrize("raw", [b"", b"no model", b"\x08\x07"])
def test_a_file_that_is_no_model_is_told(tmp_path, raw):
    (tmp_path / "x.onnx").write_bytes(raw)
    with pytest.raises(StoreError, match=r"x\.onnx: not an ONNX model"):
        kind.open(tmp_path / "x.onnx", COLOUR, 1)


def test_a_model_that_takes_no_image_is_told(tmp_path):
    path = save(
        tmp_path / "x.onnx", [helper.make_node("Identity", ["images"], ["y"])], ["n", 4, 32, 32], "y",
        out_shape=["n", 4, 32, 32],
    )  # fmt: skip
    with pytest.raises(StoreError, match=r"must be \(n, 3, height, width\)"):
        kind.open(path, COLOUR, 1)


def test_a_model_that_was_fitted_to_a_processor_is_no_expert(tmp_path):
    path = classifier(tmp_path / "c.onnx")
    assert kind.settle(path, COLOUR).layout == "scores"
    fitted = onnx.load(path)
    fitted.graph.node[0].domain = "com.microsoft.nchwc"
    onnx.save(fitted, path)
    with pytest.raises(StoreError, match="processor"):
        kind.settle(path, COLOUR)
    path.write_bytes(b"\x18\0\0\0ORTM" + bytes(100))  # the form of its own in which onnxruntime saves
    with pytest.raises(StoreError, match="processor"):
        kind.settle(path, COLOUR)


def beginning_with(path, *steps):
    """A classifier that first applies operators, each with a constant, to its pictures."""
    nodes, constants, last = [helper.make_node("Cast", ["images"], ["x"], to=TensorProto.FLOAT)], [], "x"
    for number, (operator, value) in enumerate(steps):
        constants.append((f"c{number}", np.asarray(value, np.float32)))
        nodes.append(helper.make_node(operator, [last, f"c{number}"], [f"x{number}"]))
        last = f"x{number}"
    nodes.append(helper.make_node("ReduceMean", [last], ["means"], axes=[2, 3], keepdims=0))
    return save(path, nodes, ["n", 3, 32, 32], "means", constants=constants, out_shape=["n", 3])


def channels(*values):
    return np.reshape(values, (1, 3, 1, 1))


@pytest.mark.parametrize(
    ("steps", "seen"),
    [
        ([("Div", 255.0), ("Sub", channels(*MEAN)), ("Div", channels(*DEVIATION))], "0..255"),
        ([("Sub", channels(123.7, 116.3, 103.5)), ("Div", 58.0)], "0..255"),
        ([("Mul", 1 / 255)], "0..255"),
        ([("Div", 127.5), ("Sub", 1.0)], "0..255"),
        ([("Sub", channels(*MEAN)), ("Div", channels(*DEVIATION))], "0..1"),
        ([("Mul", 2.0), ("Sub", 1.0)], "0..1"),
        ([("Sub", 0.0)], "imagenet"),
        ([("Add", 1e-6)], "imagenet"),
        ([("Div", 1.0)], "imagenet"),
        ([("Max", 0.0)], "imagenet"),
        ([], "imagenet"),
    ],
)
def test_a_model_that_normalises_its_pictures_itself_gets_them_as_it_takes_them(tmp_path, steps, seen):
    said = kind.read(beginning_with(tmp_path / "c.onnx", *steps))
    assert said.preprocessing.normalization == NORMALIZATIONS[seen]
    assert said.stated == (frozenset() if seen == "imagenet" else {"mean", "std"})


def first_of(path, nodes, constants):
    """A classifier whose first operators make `x` of its pictures."""
    nodes = [*nodes, helper.make_node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0)]
    return save(path, nodes, ["n", 3, 32, 32], "means", constants=constants, out_shape=["n", 3])


def steps(*texts):
    """Nodes from lines as "Sub images mean x": operator, inputs and output."""
    return [helper.make_node(word, [*taken], [made]) for word, *taken, made in (text.split() for text in texts)]


CAFFE = channels(103.9, 116.8, 123.7).astype(np.float32)
BYTE = np.float32(255)
EDGES = [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("nodes", "constants", "seen"),
    [
        (
            [helper.make_node("Gather", ["images", "bgr"], ["turned"], axis=1), *steps("Sub turned mean x")],
            {"bgr": [2, 1, 0], "mean": CAFFE},
            "0..255",
        ),
        (steps("Pad images edges wide", "Div wide most x"), {"edges": EDGES, "most": BYTE}, "0..255"),
        (steps("Clip images least most clipped", "Div clipped most x"), {"least": BYTE * 0, "most": BYTE}, "0..255"),
        (steps("Sub images least same", "Div same most x"), {"least": BYTE * 0, "most": BYTE}, "0..255"),
        (
            steps("Unsqueeze plain axes mean", "Sub images mean x"),
            {"plain": CAFFE.ravel()[::-1], "axes": [1, 2]},
            "0..255",
        ),
        (steps("Sub images picture x"), {"picture": np.full((1, 3, 32, 32), 117, np.float32)}, "0..255"),
        ([helper.make_node("Constant", [], ["most"], value_float=255.0), *steps("Div images most x")], {}, "0..255"),
        (
            steps("QuantizeLinear images step zero bytes", "DequantizeLinear bytes step zero x"),
            {"step": 1 / BYTE, "zero": np.uint8(0)},
            "0..1",
        ),
        (
            steps("QuantizeLinear images step zero bytes", "DequantizeLinear bytes step zero x"),
            {"step": np.float32(0.0187), "zero": np.uint8(114)},
            "imagenet",
        ),
        (steps("Pad images edges wide", "Relu wide x"), {"edges": EDGES}, "imagenet"),
    ],
)
def test_a_normalisation_is_found_behind_what_changes_no_number(tmp_path, nodes, constants, seen):
    said = kind.read(first_of(tmp_path / "c.onnx", nodes, [(name, np.asarray(one)) for name, one in constants.items()]))
    assert said.preprocessing.normalization == NORMALIZATIONS[seen]
    assert said.preprocessing.channels == "rgb"


def test_a_model_that_subtracts_the_mean_of_blue_first_takes_blue_first(tmp_path):
    seen = kind.read(first_of(tmp_path / "c.onnx", steps("Sub images mean x"), [("mean", CAFFE)])).preprocessing
    assert (seen.channels, seen.normalization) == ("bgr", NORMALIZATIONS["0..255"])


@pytest.mark.parametrize(
    "nodes",
    [
        steps("Add images images x"),
        steps("Sub images images x"),
        steps("Add images none x"),
        steps("Mul images none x"),
        steps("Clip images none least x"),
        [helper.make_node("Constant", [], ["text"], value_string="7"),
         helper.make_node("Cast", ["text"], ["seven"], to=TensorProto.FLOAT), *steps("Sub images seven x")],
    ],
    ids=lambda nodes: f"{nodes[-1].op_type} {nodes[-1].input[1]}",
)  # fmt: skip
def test_a_first_operator_beside_which_stands_no_number_says_nothing_of_pixels(tmp_path, nodes):
    constants = [("none", np.zeros((0, 1, 1, 1), np.float32)), ("least", np.float32(0))]
    said = kind.read(first_of(tmp_path / "c.onnx", nodes, constants))
    assert (said.preprocessing.normalization, said.stated) == (NORMALIZATIONS["imagenet"], frozenset())


def decoder(path, sides, *lines, rows=21, size=32, step=8, told=True):
    """A detector that makes the sides of its boxes of `raw`, (1, rows, 2), and puts them into its table."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[0, 1, 2, 3], keepdims=0),
        *steps("Mul mean wide raw", *lines),
        helper.make_node("Concat", ["raw", *sides, "raw"], ["output0"], axis=2),
    ]
    constants = [("wide", np.ones((1, rows, 2), np.float32)), ("one", np.float32(1)), ("step", np.float32(step))]
    shape = [1, rows if size == 32 else "n", 4 + 2 * len(sides) if told else "columns"]
    return save(path, nodes, [1, 3, size, size], "output0", constants=constants, out_shape=shape)


HEADS = [line for side in "stu" for line in (f"Exp raw {side}1", f"Mul {side}1 step {side}")]
SILU = ["Neg raw n", "Exp n e", "Add e one more"]


@pytest.mark.parametrize(
    ("is_yolox", "sides", "lines", "rows"),
    [
        (True, "s", ["Exp raw e", "Mul e step s"], 21),
        (True, "stu", HEADS, 21),
        (True, "s", [*SILU, "Div raw more x", "Exp x f", "Mul step f s"], 21),
        (False, "st", HEADS[:4], 21),
        (False, "s", ["Exp raw e", "Mul e step s"], 16),  # one head, as of YOLOv2
        (False, "s", ["Exp raw e", "Mul e step s"], 63),  # three anchors, as of YOLOv3
        (False, "s", [*SILU, "Div raw more s"], 21),
        (False, "s", [*SILU, "Reciprocal more r", "Mul raw r s"], 21),
        (False, "s", ["Exp raw e", "ReduceSum e all", "Div e all s"], 21),
        (False, "s", ["Exp raw e", "ReduceSum e all", "Reciprocal all r", "Mul e r s"], 21),
        (False, "s", ["Exp raw e", "Mul e step aside", "Mul aside raw s"], 21),
        (False, "s", ["Mul raw step s"], 21),
    ],
)
def test_a_detector_that_makes_its_boxes_as_yolox_does_sees_what_yolox_sees(tmp_path, is_yolox, sides, lines, rows):
    said = kind.read(decoder(tmp_path / "d.onnx", sides, *lines, rows=rows, told=rows != 21 or sides == "s"))
    assert (said.preprocessing.channels, said.preprocessing.normalization) == (
        ("bgr" if is_yolox else "rgb"),
        NORMALIZATIONS["0..255" if is_yolox else "0..1"],
    )
    assert (bool(said.remarks), said.stated) == (is_yolox, frozenset())  # a guess is shown, and may be overruled


@pytest.mark.parametrize(
    ("lines", "step", "channels", "is_asked"),
    [
        (["Exp raw e", "Mul e step s"], [[[8]] * 16 + [[16]] * 4 + [[32]]], "bgr", False),
        (["Exp raw e", "Mul e step s"], [[[10, 13]] * 16 + [[30, 61]] * 5], "rgb", False),
        (["Exp raw e", "Mul raw one t", "Mul e t s"], 8, "rgb", True),
        (["Mul raw step s"], 8, "rgb", False),
    ],
    ids=["steps", "anchors", "unknown", "no exponential"],
)
def test_yolox_of_pictures_of_any_size_is_known_by_its_steps_or_asked_for(tmp_path, lines, step, channels, is_asked):
    said = kind.read(decoder(tmp_path / "d.onnx", "s", *lines, size="size", step=step))
    assert (said.preprocessing.channels, [*said.unsaid]) == (channels, ["mean"] * is_asked)


@pytest.mark.parametrize("kind_of", [TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("last", [False, True])
def test_a_model_of_grey_pictures_gets_grey_of_their_colours(tmp_path, kind_of, last):
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "share"], ["scaled"]),
        helper.make_node("ReduceMean", ["scaled"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "axis"], ["row"]),
        helper.make_node("Concat", ["row", "row", "row"], ["means"], axis=1),
    ]
    constants = [("share", np.float32(1 / 255)), ("axis", np.array([1]))]
    shape = ["n", 32, 32, 1] if last else ["n", 1, 32, 32]
    path = save(tmp_path / "grey.onnx", nodes, shape, "means", kind_of, constants=constants, out_shape=["n", 3])
    (tmp_path / "work").mkdir()
    taken = kind.bundled(path, tmp_path / "work")
    said = kind.read(taken)
    assert said.preprocessing.normalization == NORMALIZATIONS["0..255"]  # also behind the layer of grey
    assert said.remarks
    expert = replace(COLOUR, preprocessing=said.preprocessing, outputs=Outputs(name="means"))
    answers = kind.open(taken, expert, 1).run(np.stack([painted(channel).transpose(2, 0, 1) for channel in range(3)]))
    assert answers[:, 0] == pytest.approx([0.299, 0.587, 0.114], abs=1e-3)
    assert kind.bundled(classifier(tmp_path / "c.onnx"), tmp_path / "work") == tmp_path / "c.onnx"
    with pytest.raises(StoreError, match="cannot be written"):
        kind.bundled(path, tmp_path / "nowhere")


@pytest.mark.parametrize("last", [False, True])
def test_a_model_of_grey_pictures_in_bytes_gets_grey_as_pillow_rounds_it(tmp_path, last):
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "axis"], ["row"]),
        helper.make_node("Concat", ["row", "row", "row"], ["means"], axis=1),
    ]
    shape = ["n", 32, 32, 1] if last else ["n", 1, 32, 32]
    path = save(tmp_path / "grey.onnx", nodes, shape, "means", TensorProto.UINT8, [("axis", [1])], ["n", 3])
    (tmp_path / "work").mkdir()
    taken = kind.bundled(path, tmp_path / "work")
    said = kind.read(taken)
    assert said.remarks
    expert = replace(COLOUR, preprocessing=said.preprocessing, outputs=Outputs(name="means"))
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (10, 200, 30)]
    pictures = np.array(colours, np.uint8)[:, :, None, None] * np.ones((1, 3, 32, 32), np.uint8)
    answers = kind.open(taken, expert, 1).run(pictures)
    assert answers[:, 0].tolist() == [
        Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0)) for colour in colours
    ]
    session = InferenceSession(kind.network(taken, expert).SerializeToString())
    assert session.run(None, {"images": pictures})[0].tolist() == answers.tolist()


@pytest.mark.parametrize("last", [False, True])
def test_a_model_whose_input_is_not_square_sees_the_whole_picture_as_it_takes_it(tmp_path, last):
    shape, axes = (["n", 16, 32, 3], [1, 2]) if last else (["n", 3, 16, 32], [2, 3])
    nodes = [helper.make_node("ReduceMax", ["images"], ["means"], axes=axes, keepdims=0)]
    path = save(tmp_path / "c.onnx", nodes, shape, "means", out_shape=["n", 3])
    (tmp_path / "whole").mkdir()
    whole = kind.bundled(path, tmp_path / "whole")
    foreign = kind.read(whole)
    assert (foreign.input_size, foreign.preprocessing.sides) == (32, (16, 32))
    expert = replace(COLOUR, preprocessing=replace_seen(foreign, resize="stretch", mean=(0, 0, 0), std=(1, 1, 1)))
    image = np.random.default_rng(0).integers(0, 200, (64, 64, 3), np.uint8)
    image[48:, 40:], image[:8] = 255, 0  # the brightest lies at the lower right corner
    outputs, _ = run(whole, expert, image)
    assert outputs.tolist() == [[1.0, 1.0, 1.0]]


def replace_seen(foreign, **fields):
    return foreign.preprocessing.model_copy(update=fields)


def test_a_model_with_its_channels_last_answers_as_one_with_its_channels_first(tmp_path):
    first = classifier(tmp_path / "first.onnx")
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[1, 2], keepdims=0)]
    last = save(tmp_path / "last.onnx", nodes, ["n", 32, 32, 3], "means", out_shape=["n", 3])
    expert = replace(COLOUR, preprocessing=Preprocessing(mean=MEAN, std=DEVIATION), outputs=Outputs(name="means"))
    pictures = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32)).astype(np.uint8)
    answers = [kind.open(path, expert, 1).run(pictures) for path in (first, last)]
    assert answers[1] == pytest.approx(answers[0], abs=1e-5)
    session = InferenceSession(kind.network(last, expert).SerializeToString())
    assert session.run(None, {"images": pictures})[0] == pytest.approx(answers[0], abs=1e-5)
    assert kind.read(last).preprocessing.resize == "stretch"  # as TensorFlow's classifiers see pictures


def with_metadata(path, **entries):
    model = onnx.load(str(path))
    helper.set_model_props(model, entries)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("text", ["red, green,blue", '["red", "green", "blue"]', "{0: 'red', 2: 'blue', 1: 'green'}"])
@pytest.mark.parametrize("key", ["class_names", "character"])
def test_labels_in_the_metadata_of_any_exporter_count(tmp_path, key, text):
    assert kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **{key: text})).labels == COLOUR.labels
    tags = kind.read(with_metadata(classifier(tmp_path / "t.onnx"), **{key: "pcb,aoi"}))  # of two, and three outputs
    assert (tags.labels, [("pcb" in one) for one in tags.remarks]) == (None, [True])


@pytest.mark.parametrize(
    ("entry", "normalization"),
    [(TensorProto.FLOAT, ((0.5,) * 3, (0.25,) * 3)), (TensorProto.UINT8, NORMALIZATIONS["0..255"])],
)
def test_what_hugging_face_writes_beside_a_model_counts(tmp_path, entry, normalization):
    (folder := tmp_path / "onnx").mkdir()
    classifier(folder / "model.onnx", size="side", kind_of=entry)
    said = {"do_resize": True, "size": {"height": 48, "width": 48}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    said |= {"do_center_crop": True, "crop_size": 32}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    (tmp_path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(COLOUR.labels))}))
    read = kind.read(folder / "model.onnx")
    assert (read.labels, read.input_size) == (COLOUR.labels, 32)
    seen = read.preprocessing
    assert (seen.resize, seen.shortest_edge, seen.normalization) == ("stretch", 48, normalization)


def test_a_classifier_of_the_yolov5_repository_sees_what_it_was_trained_on(tmp_path):
    names = {"stride": "32", "names": str(dict(enumerate(COLOUR.labels)))}
    seen = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **names)).preprocessing
    assert (seen.resize, seen.interpolation) == ("center-crop", "bilinear")
    assert seen.normalization == NORMALIZATIONS["imagenet"]


@pytest.mark.parametrize(
    "entries",
    [
        {"mean": "[0.5, 0.5, 0.5]", "std": "[0.25, 0.25, 0.25]"},
        {"mean": "127.5,127.5,127.5", "std": "63.75,63.75,63.75"},
        {"preprocessing": '{"normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}'},
        {"model_info mean_values": "127.5 127.5 127.5", "model_info scale_values": "63.75 63.75 63.75"},
        {"model_info mean_values": "127.5, 127.5, 127.5", "model_info scale_values": "[63.75, 63.75, 63.75]"},
        {"model_info mean_values": "127.5", "model_info scale_values": "63.75"},
    ],
)
def test_a_normalisation_in_the_metadata_counts_unless_the_model_has_one(tmp_path, entries):
    entries |= {"model_info labels": "red green blue"}
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert said.preprocessing.normalization == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    assert (said.stated, said.labels) == ({"mean", "std"}, COLOUR.labels)
    inside = kind.read(with_metadata(beginning_with(tmp_path / "i.onnx", ("Mul", 1 / 255)), **entries))
    assert inside.preprocessing.normalization == NORMALIZATIONS["0..255"]


@pytest.mark.parametrize(
    ("mean", "scale", "seen"),
    [
        ("0 0 0", "1 1 1", "0..255"),
        ("0", "255.0", "0..1"),
        (None, "255.0", "0..1"),
        ("", "[255.0]", "0..1"),
        ("127.5", None, ([0.5] * 3, [1 / 255] * 3)),
    ],
)
def test_what_openvino_says_of_pixels_is_said_of_those_from_0_to_255(tmp_path, mean, scale, seen):
    entries = {"model_info mean_values": mean, "model_info scale_values": scale}
    entries = {key: text for key, text in entries.items() if text is not None}
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert np.allclose(said.preprocessing.normalization, NORMALIZATIONS[seen] if isinstance(seen, str) else seen)
    assert said.stated == {"mean", "std"}


@pytest.mark.parametrize(
    ("entries", "channels"),
    [
        ({"mean": "[0.406, 0.456, 0.485]", "std": "[0.225, 0.224, 0.229]"}, "bgr"),
        ({"model_info mean_values": "103.53 116.28 123.675", "model_info scale_values": "57.375 57.12 58.395"}, "bgr"),
        ({"model_info mean_values": "123.675 116.28 103.53", "model_info scale_values": "58.395 57.12 57.375"}, "rgb"),
    ],
)
def test_a_mean_in_the_metadata_with_blue_first_is_of_a_model_that_takes_blue_first(tmp_path, entries, channels):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert said.preprocessing.channels == channels


def test_channels_that_openvino_reverses_are_told(tmp_path):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **{"model_info reverse_input_channels": "True"}))
    assert ["reverse_input_channels" in one for one in said.remarks] == [True]


@pytest.mark.parametrize(
    ("word", "resize"), [("standard", "stretch"), ("fit_to_window_letterbox", "letterbox"), ("crop", "center-crop")]
)
def test_how_openvino_brings_a_picture_to_size_counts(tmp_path, word, resize):
    entries = {"model_info resize_type": word, "model_info pad_value": "0"}
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert (said.preprocessing.resize, said.preprocessing.pad) == (resize, (0, 0, 0))
    assert said.stated == {"resize", "pad"}


def test_a_mean_without_a_deviation_is_asked_for(tmp_path):
    path = with_metadata(classifier(tmp_path / "c.onnx"), mean="[0.5, 0.5, 0.5]")
    said = kind.read(path)
    with pytest.raises(ConfigError, match="--normalize"):
        facts.agree(COLOUR, said, kind, facts.Wishes())
    agreed = facts.agree(COLOUR, said, kind, facts.wishes({"normalize": "-1..1"})).expert
    assert agreed.preprocessing.normalization == NORMALIZATIONS["-1..1"]
    inside = with_metadata(beginning_with(tmp_path / "i.onnx", ("Mul", 1 / 255)), mean="[0.5, 0.5, 0.5]")
    assert not kind.read(inside).unsaid


@pytest.mark.parametrize(
    ("mean", "std", "deviation"),
    [("MEAN", "STD", "[0.5, 0.5, 0.5]"), ("means", "std", "0.5"), ("Mean", "Std_Dev", "0.5")],
)
def test_a_deviation_beside_a_mean_is_known_in_other_words(tmp_path, mean, std, deviation):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **{mean: "[0.5, 0.5, 0.5]", std: deviation}))
    assert (said.preprocessing.normalization, said.unsaid) == (NORMALIZATIONS["-1..1"], {})


def normaliser(mean, deviation, *, order=None, is_norm=False, scale=1):
    """A first layer that normalises: a batch norm, or a convolution of one pixel; with `order` it turns channels."""
    mean, deviation = np.float32(mean) * scale, np.float32(deviation) * scale
    if is_norm:
        constants = {"one": np.ones(3, np.float32), "none": np.zeros(3, np.float32), "m": mean, "v": deviation**2}
        return steps("BatchNormalization images one none m v x"), constants
    weight = np.diag(1 / deviation)[list(order)] if order else (1 / deviation)[:, None]
    shift = (-mean / deviation)[list(order or (0, 1, 2))]
    conv = helper.make_node("Conv", ["images", "w", "s"], ["x"], group=1 if order else 3)
    return [conv], {"w": weight[:, :, None, None], "s": shift}


TURNED = {"w": np.eye(3, dtype=np.float32)[::-1, :, None, None]}
"""A convolution that turns the channels, and changes no number."""


@pytest.mark.parametrize(
    ("first", "seen", "channels", "is_asked"),
    [
        (normaliser(MEAN, DEVIATION), "0..1", "rgb", False),
        (normaliser(MEAN, DEVIATION, scale=255), "0..255", "rgb", False),
        (normaliser(MEAN, DEVIATION, scale=255, order=(2, 1, 0)), "0..255", "rgb", False),
        (normaliser(MEAN[::-1], DEVIATION[::-1], scale=255, order=(0, 1, 2)), "0..255", "bgr", False),
        (normaliser([0.5] * 3, [0.5] * 3), "0..1", "rgb", False),
        (normaliser(MEAN, DEVIATION, is_norm=True), "0..1", "rgb", False),
        (normaliser(MEAN, DEVIATION, is_norm=True, scale=255), "0..255", "rgb", False),
        (normaliser([0.5, 0.4, 0.45], [0.2, 0.3, 0.3], is_norm=True), "imagenet", "rgb", True),
        (normaliser([0.3, 0.1, 0.2], [0.9, 0.8, 0.7]), "imagenet", "rgb", True),
        (normaliser([0.01, -0.03, 0.02], [1.01, 0.99, 1.0], is_norm=True), "imagenet", "rgb", False),
        (normaliser([2.2, 2.1, 2.4], [0.5, 0.4, 0.4], is_norm=True), "imagenet", "rgb", False),  # white backgrounds
        (normaliser([0.1, 0.15, 0.1], [0.14, 0.14, 0.14], is_norm=True), "imagenet", "rgb", True),  # dark boards
        (normaliser([-6.7, 0.25, 0.6], [33, 2.5, 2]), "imagenet", "rgb", True),
        (normaliser([-2, 10, 3], [60, 61, 62], is_norm=True), "imagenet", "rgb", True),
        ((steps("Conv images w x"), TURNED), "imagenet", "rgb", False),
        ((steps("Conv images w s x"), TURNED | {"s": np.zeros(3, np.float32)}), "imagenet", "rgb", False),
        ((steps("Conv images w t", "Sub t m x"), TURNED | {"m": CAFFE}), "0..255", "rgb", False),
        ((steps("Conv images w x"), {"w": np.ones((3, 3, 1, 1), np.float32)}), "imagenet", "rgb", False),
    ],
)  # fmt: skip
def test_a_first_layer_that_normalises_says_what_it_takes(tmp_path, first, seen, channels, is_asked):
    nodes, constants = first
    said = kind.read(first_of(tmp_path / "c.onnx", nodes, constants.items()))
    assert (said.preprocessing.normalization, said.preprocessing.channels) == (NORMALIZATIONS[seen], channels)
    assert [*said.unsaid] == ["mean"] * is_asked


def test_a_convolution_that_makes_three_channels_of_grey_normalises_nothing(tmp_path):
    nodes = [*steps("Conv images w s x"), helper.make_node("ReduceMean", ["x"], ["means"], axes=[2, 3], keepdims=0)]
    constants = [("w", np.float32([0.5, 0.1, -0.2]).reshape(3, 1, 1, 1)), ("s", np.float32([0.9, -0.6, 0.3]))]
    path = save(tmp_path / "g.onnx", nodes, ["n", 1, 32, 32], "means", constants=constants, out_shape=["n", 3])
    (tmp_path / "work").mkdir()
    said = kind.read(kind.bundled(path, tmp_path / "work"))
    assert (said.stated, said.unsaid) == (frozenset(), {})


def test_probabilities_in_a_map_by_label_are_a_table_with_these_labels(tmp_path):
    model = onnx.load(classifier(tmp_path / "c.onnx"))
    words = helper.make_node("LabelEncoder", ["best"], ["said"], domain="ai.onnx.ml", keys_int64s=[0, 1, 2],
                             values_strings=COLOUR.labels)  # fmt: skip
    zipped = helper.make_node("ZipMap", ["means"], ["map"], domain="ai.onnx.ml", classlabels_strings=COLOUR.labels)
    model.graph.node.extend([helper.make_node("ArgMax", ["means"], ["best"], axis=1, keepdims=0), words, zipped])
    del model.graph.output[:]
    entry = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output.append(helper.make_tensor_value_info("said", TensorProto.STRING, ["n"]))
    model.graph.output.append(helper.make_value_info("map", helper.make_sequence_type_proto(entry)))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    onnx.save(model, tmp_path / "z.onnx")
    (tmp_path / "work").mkdir()
    taken = kind.bundled(tmp_path / "z.onnx", tmp_path / "work")
    assert kind.read(taken).labels == COLOUR.labels
    assert kind.settle(taken, COLOUR).name == "means"


def test_what_windows_writes_of_pixels_counts(tmp_path):
    entries = {"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"}
    seen = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries)).preprocessing
    assert (seen.channels, seen.normalization) == ("bgr", NORMALIZATIONS["0..255"])


def test_a_classifier_whose_first_output_is_the_number_of_a_label_is_one(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("ReduceMax", ["means"], ["best"], axes=[1], keepdims=0),
    ]
    path = save(tmp_path / "c.onnx", nodes, ["n", 3, 32, 32], "best", out_shape=["n"])
    model = onnx.load(str(path))
    model.graph.output.append(helper.make_tensor_value_info("means", TensorProto.FLOAT, ["n", 3]))
    onnx.save(model, str(path))
    assert kind.read(path).preprocessing.normalization == NORMALIZATIONS["imagenet"]
