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
from coe.errors import ConfigError, NoInt8, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from coe.store.kinds import resolve
from experts.normalising import DEVIATION, MEAN
from experts.onnx import onnx as kind

LOGITS = Outputs(name="means", layout="scores", activation="softmax")
IMAGENET = Preprocessing(mean=MEAN, std=DEVIATION)
COLOUR = Expert("colour", "onnx", ("red", "green", "blue"), 32, "b/colour", preprocessing=IMAGENET, outputs=LOGITS)
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
    expert = replace(JOINT, preprocessing=Preprocessing(), outputs=Outputs(layout="end2end"))
    expert = replace(expert, outputs=kind.settle(path, expert))
    _, findings = run(path, expert, *(np.full((32, 32, 3), level, np.uint8) for level in (0, 255, 127)))
    assert [len(finding.boxes) for finding in findings] == [0, 3, 1]


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
    expert = replace(COLOUR, outputs=Outputs(name="means", layout="scores", activation="none"))
    prepared = kind.preprocess(painted(0), expert)
    (finding,) = kind.postprocess(rows, [prepared], expert)
    assert (finding.label, round(finding.score, 3)) == ("red", 0.7)


def test_a_detector_of_the_later_layout(tmp_path):
    candidates = np.zeros((6, 21), np.float32)
    candidates[:, 4] = [16, 16, 8, 4, 0.1, 0.9]
    outputs, findings = run(
        detector(tmp_path / "d.onnx", candidates),
        replace(JOINT, outputs=Outputs(name="output0", layout="yolov8")),
        painted(0),
        np.zeros((64, 64, 3), np.uint8),
    )
    assert outputs.shape == (2, 6, 21)
    assert [finding.label for finding in findings] == ["bridge", "bridge"]
    assert findings[0].boxes[0].xyxy == (12.0, 14.0, 20.0, 18.0)
    assert findings[1].boxes[0].xyxy == (24.0, 28.0, 40.0, 36.0)


def test_a_detector_of_the_legacy_layout_counts_its_objectness(tmp_path):
    candidates = np.zeros((63, 7), np.float32)
    candidates[2] = [16, 16, 8, 4, 0.5, 0.9, 0.1]
    candidates[5] = [4, 4, 8, 4, 0.1, 0.1, 0.9]
    expert = replace(JOINT, outputs=Outputs(name="output0", layout="yolov5"))
    _, (finding,) = run(detector(tmp_path / "d.onnx", candidates), expert, painted(0))
    assert (finding.label, round(finding.score, 3), len(finding.boxes)) == ("joint", 0.45, 1)


def test_outputs_that_do_not_fit_the_labels_name_the_shapes(tmp_path):
    with pytest.raises(
        StoreError,
        match=r"\(6, 9, 9\), which does not fit 2 labels; 2 labels need \(n, 2\), \(n, 6, N\) or \(n, N, 7\)",
    ):
        kind.settle(detector(tmp_path / "d.onnx", np.zeros((9, 9))), JOINT)
    with pytest.raises(StoreError, match="import it again"):
        kind.open(tmp_path / "d.onnx", JOINT, 1)


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
        ([("Sub", 0.0)], ""),
        ([("Add", 1e-6)], ""),
        ([("Div", 1.0)], ""),
        ([("Max", 0.0)], ""),
        ([], ""),
    ],
)
def test_a_model_that_normalises_its_pictures_itself_gets_them_as_it_takes_them(tmp_path, steps, seen):
    said = kind.read(beginning_with(tmp_path / "c.onnx", *steps)).seen
    assert (said.get("mean"), said.get("std")) == (NORMALIZATIONS[seen] if seen else (None, None))
    if seen == "0..255":
        with pytest.raises(ConfigError, match="contradict"):
            facts.agree(COLOUR, kind.read(tmp_path / "c.onnx"), kind, facts.wishes({"normalize": "imagenet"}))


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
        (steps("Sub images least same", "Div same most x"), {"least": BYTE * 0, "most": BYTE}, "0..255"),
        (
            steps("Unsqueeze plain axes mean", "Sub images mean x"),
            {"plain": CAFFE.ravel()[::-1], "axes": [1, 2]},
            "0..255",
        ),
        (steps("Sub images picture x"), {"picture": np.full((1, 3, 32, 32), 117, np.float32)}, "0..255"),
        ([helper.make_node("Constant", [], ["most"], value_float=255.0), *steps("Div images most x")], {}, "0..255"),
        (steps("Pad images edges wide", "Relu wide x"), {"edges": EDGES}, ""),
    ],
)
def test_a_normalisation_is_found_behind_what_changes_no_number(tmp_path, nodes, constants, seen):
    said = kind.read(first_of(tmp_path / "c.onnx", nodes, [(name, np.asarray(one)) for name, one in constants.items()]))
    assert said.seen.get("mean") == (NORMALIZATIONS[seen][0] if seen else None)


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
    assert not said.seen


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
    said = kind.read(path)
    assert (said.seen["mean"], said.seen["std"]) == NORMALIZATIONS["0..255"]
    assert said.remarks
    expert = replace(COLOUR, preprocessing=Preprocessing(**said.seen))
    answers = kind.open(path, expert, 1).run(np.stack([painted(channel).transpose(2, 0, 1) for channel in range(3)]))
    assert answers[:, 0] == pytest.approx([0.299, 0.587, 0.114], abs=1e-3)


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
    said = kind.read(path)
    assert said.remarks
    expert = replace(COLOUR, preprocessing=Preprocessing(**said.seen))
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (10, 200, 30)]
    pictures = np.array(colours, np.uint8)[:, :, None, None] * np.ones((1, 3, 32, 32), np.uint8)
    answers = kind.open(path, expert, 1).run(pictures)
    assert answers[:, 0].tolist() == [
        Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0)) for colour in colours
    ]
    with pytest.raises(NoInt8):
        kind.network(path, replace(expert, outputs=Outputs(name="means", layout="scores", activation="none")))


@pytest.mark.parametrize("last", [False, True])
def test_a_model_whose_input_is_not_square_sees_the_whole_picture_as_it_takes_it(tmp_path, last):
    shape, axes = (["n", 16, 32, 3], [1, 2]) if last else (["n", 3, 16, 32], [2, 3])
    nodes = [helper.make_node("ReduceMax", ["images"], ["means"], axes=axes, keepdims=0)]
    path = save(tmp_path / "c.onnx", nodes, shape, "means", out_shape=["n", 3])
    foreign = kind.read(path)
    assert (foreign.input_size, foreign.seen) == (32, {"sides": (16, 32)})
    expert = replace(COLOUR, preprocessing=Preprocessing(resize="stretch", sides=(16, 32)))
    image = np.random.default_rng(0).integers(0, 200, (64, 64, 3), np.uint8)
    image[48:, 40:], image[:8] = 255, 0  # the brightest lies at the lower right corner
    outputs, _ = run(path, expert, image)
    assert outputs.tolist() == [[1.0, 1.0, 1.0]]


def test_a_model_with_its_channels_last_answers_as_one_with_its_channels_first(tmp_path):
    first = classifier(tmp_path / "first.onnx")
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[1, 2], keepdims=0)]
    last = save(tmp_path / "last.onnx", nodes, ["n", 32, 32, 3], "means", out_shape=["n", 3])
    expert = COLOUR
    pictures = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32)).astype(np.uint8)
    answers = [kind.open(path, expert, 1).run(pictures) for path in (first, last)]
    assert answers[1] == pytest.approx(answers[0], abs=1e-5)
    session = InferenceSession(kind.network(last, expert).SerializeToString())
    assert session.run(None, {"images": pictures})[0] == pytest.approx(answers[0], abs=1e-5)


def with_metadata(path, **entries):
    model = onnx.load(str(path))
    helper.set_model_props(model, entries)
    onnx.save(model, str(path))
    return path


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
    seen = read.seen
    assert (seen["resize"], seen["shortest_edge"], (seen["mean"], seen["std"])) == ("stretch", 48, normalization)
    expert = replace(COLOUR, outputs=Outputs(), preprocessing=Preprocessing(**seen))
    assert kind.settle(folder / "model.onnx", expert).activation == "softmax"  # its classifiers give logits


def test_a_classifier_of_the_yolov5_repository_gives_logits(tmp_path):
    names = {"stride": "32", "names": str(dict(enumerate(COLOUR.labels)))}
    path = with_metadata(classifier(tmp_path / "c.onnx"), **names)
    assert kind.settle(path, replace(COLOUR, outputs=None)).activation == "softmax"


@pytest.mark.parametrize(
    ("mean", "scale", "seen"),
    [
        ("0 0 0", "1 1 1", "0..255"),
        ("0", "255.0", "0..1"),
        (None, "255.0", "0..1"),
        ("127.5 127.5 127.5", "63.75, 63.75, 63.75", ([0.5] * 3, [0.25] * 3)),
        ("127.5", None, ([0.5] * 3, [1 / 255] * 3)),
    ],
)
def test_what_openvino_says_of_pixels_is_said_of_those_from_0_to_255(tmp_path, mean, scale, seen):
    entries = {"model_info mean_values": mean, "model_info scale_values": scale, "model_info labels": "red green blue"}
    entries = {key: text for key, text in entries.items() if text is not None}
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert np.allclose((said.seen["mean"], said.seen["std"]), NORMALIZATIONS[seen] if isinstance(seen, str) else seen)
    assert (said.seen.keys(), said.labels) == ({"mean", "std"}, COLOUR.labels)
    inside = kind.read(with_metadata(beginning_with(tmp_path / "i.onnx", ("Mul", 1 / 255)), **entries))
    assert (inside.seen["mean"], inside.seen["std"]) == NORMALIZATIONS["0..255"]


def test_channels_that_openvino_reverses_are_asked_for(tmp_path):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **{"model_info reverse_input_channels": "True"}))
    assert "reverse_input_channels" in said.unsaid["channels"]


@pytest.mark.parametrize(
    ("word", "resize"), [("standard", "stretch"), ("fit_to_window_letterbox", "letterbox"), ("crop", "center-crop")]
)
def test_how_openvino_brings_a_picture_to_size_counts(tmp_path, word, resize):
    entries = {"model_info resize_type": word, "model_info pad_value": "0"}
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), **entries))
    assert said.seen == {"resize": resize, "pad": (0, 0, 0)}


def test_what_nobody_says_is_asked_for_at_once(tmp_path):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), mean="[0.5, 0.5, 0.5]", names="a,b,c"))
    agreed = facts.agree(replace(COLOUR, labels=(), input_size=0), said, kind, facts.Wishes())
    assert agreed.missing.keys() == {"labels", "resize", "channels", "mean"}
    asked = facts.wishes({"normalize": "-1..1", "resize": "letterbox", "channels": "bgr"})
    agreed = facts.agree(COLOUR, said, kind, asked)
    assert (agreed.missing, agreed.expert.preprocessing.normalization) == ({}, NORMALIZATIONS["-1..1"])


def test_a_batch_norm_of_three_channels_says_the_range_of_bytes(tmp_path):
    for scale, seen in ((255, "0..255"), (1, "")):
        numbers = {"one": np.ones(3), "none": np.zeros(3), "m": np.array(MEAN) * scale, "v": np.ones(3) * scale}
        constants = [(name, np.float32(value)) for name, value in numbers.items()]
        nodes = steps("BatchNormalization images one none m v x")
        said = kind.read(first_of(tmp_path / "c.onnx", nodes, constants)).seen
        assert said.get("mean") == (NORMALIZATIONS[seen][0] if seen else None)


def test_a_classifier_whose_first_output_is_the_number_of_a_label_is_one(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("ReduceMax", ["means"], ["best"], axes=[1], keepdims=0),
    ]
    path = save(tmp_path / "c.onnx", nodes, ["n", 3, 32, 32], "best", out_shape=["n"])
    model = onnx.load(str(path))
    model.graph.output.append(helper.make_tensor_value_info("means", TensorProto.FLOAT, ["n", 3]))
    onnx.save(model, str(path))
    assert kind.settle(path, COLOUR).name == "means"
