"""What an ONNX model's numbers mean is decided once, from its answers to test pictures and what its file says."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from coe import Inspector, Picture
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.preprocessing import Outputs, Preprocessing
from coe.store.store import Store
from experts.onnx import onnx as kind
from experts.onnx_outputs import decide, look_like_probabilities

SIZE = 32
CELLS = 3 * (4 * 4 + 2 * 2 + 1)
"""The boxes of YOLOv5 for pictures of this size: three for each cell of 8, 16 and 32 pixels."""
ULTRALYTICS = {"task": "detect", "imgsz": f"[{SIZE}, {SIZE}]", "stride": "32", "end2end": "False"}


SAID = ("--resize", "letterbox", "--channels", "rgb", "--normalize", "0..1")


def save(path, nodes, numbers, outputs, metadata):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, str(path))
    return path


def detector(path, table, lit, metadata=None):
    """A detector that returns `table` + the mean brightness x `lit`."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["lit", "mean"], ["more"]),
        helper.make_node("Add", ["table", "more"], ["output0"]),
    ]
    table, lit = (np.asarray(part, np.float32)[None] for part in (table, lit))
    return save(path, nodes, {"table": table, "lit": lit}, {"output0": list(table.shape)}, metadata)


def end_to_end(rows=8, label=0):
    """One box whose score is the brightness, then empty rows."""
    table, lit = np.zeros((rows, 6)), np.zeros((rows, 6))
    table[0] = [4, 8, 20, 16, 0, label]
    lit[0, 4] = 1
    return table, lit


def classifier(path, *last, outputs, **numbers):
    """A classifier whose `last` nodes get the mean of each channel as `means`, (1, 3)."""
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0), *last]
    return save(path, nodes, {name: np.float32(value) for name, value in numbers.items()}, outputs, None)


def seen(count):
    return Expert("x", "onnx", tuple("abcdef"[:count]), SIZE, "t/x")


def take(call, file, *options):
    """Import a file, and say what its pictures are if it says nothing of its own."""
    said = () if onnx.load(str(file)).metadata_props else SAID
    given = ("--kind", "onnx", "--no-prepare", "--store", file.parent / "s", *said, *options)
    return call("import", "t/x", file, *given, command=experts_command)


def manifest(file):
    return Store(file.parent / "s").manifest("t/x")


def judge(file, level):
    """Run the stored expert on a flat picture."""
    store = Store(file.parent / "s")
    expert = store.manifest("t/x").expert()
    session = kind.open(store.path("t/x"), expert, 1)
    ready = kind.preprocess(np.full((SIZE, SIZE, 3), level, np.uint8), expert)
    (finding,) = kind.postprocess(session.run(ready.pixels[None]), [ready], expert)
    return finding.label, round(finding.score, 3), finding.boxes


@pytest.mark.parametrize(
    "metadata", [None, {**ULTRALYTICS, "end2end": "True"}, {**ULTRALYTICS, "args": "{'nms': True}"}]
)
@pytest.mark.parametrize("labels", ["bridge", "joint,bridge", "a,b,c"])
def test_boxes_end_to_end_for_any_number_of_labels(tmp_path, call, labels, metadata):
    names = labels.split(",")
    file = detector(tmp_path / "d.onnx", *end_to_end(label=len(names) - 1), metadata)
    if labels == "joint,bridge" and metadata is None:  # as many columns as a grid of two labels has
        said = take(call, file, "--labels", labels, "--input", SIZE)
        assert (said.status, "--layout" in said.words) == (2, True)
    said = take(call, file, "--labels", labels, "--input", SIZE, *([] if metadata else ["--layout", "end2end"]))
    assert said.status == 0, said.err
    assert manifest(file).outputs == Outputs(name="output0", layout="end2end")
    label, score, boxes = judge(file, 204)
    assert (label, score, boxes[0].xyxy) == (names[-1], 0.8, (4.0, 8.0, 20.0, 16.0))
    assert judge(file, 0)[0] == "none"


@pytest.mark.parametrize(("width", "has_batch"), [(4, True), (4, False), (5, True)])
def test_boxes_whose_scores_and_labels_lie_apart_are_one_table(tmp_path, call, width, has_batch):
    table, lit = end_to_end(label=1)
    table[-1] = -1  # as some fill up
    file = detector(tmp_path / "d.onnx", table, lit)
    model = onnx.load(str(file))
    columns = {"labels": 5, "boxes": [*range(width)]} | ({"scores": 4} if width == 4 else {})
    del model.graph.output[:]
    for name, numbers in {"first": 0, **columns}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers), f"{name}/at"))
    for name in columns:
        kind_of, shape = (
            (TensorProto.INT64 if name == "labels" else TensorProto.FLOAT),
            ["N"] + [width] * (name == "boxes"),
        )
        rows = f"{name}/rows" if has_batch else f"{name}/one"
        model.graph.node.extend(
            (
                helper.make_node("Gather", ["output0", f"{name}/at"], [f"{name}/rows"], axis=2),
                helper.make_node("Gather", [f"{name}/rows", "first/at"], [f"{name}/one"], axis=0),
                helper.make_node("Cast", [rows], [name], to=kind_of),
            )
        )
        model.graph.output.append(helper.make_tensor_value_info(name, kind_of, ["n", *shape] if has_batch else shape))
    onnx.save(model, str(file))
    if not has_batch:  # torchvision's, whose first label is the background
        said = take(call, file, "--labels", "joint,bridge", "--input", SIZE)
        assert (said.status, "background" in said.words) == (2, True)
    more = () if has_batch else ("--layout", "end2end")
    said = take(call, file, "--labels", "joint,bridge", "--input", SIZE, *more)
    assert (said.status, manifest(file).outputs.layout) == (0, "end2end"), said.err
    label, score, boxes = judge(file, 204)
    assert (label, score, boxes[0].xyxy) == ("bridge", 0.8, (4.0, 8.0, 20.0, 16.0))


@pytest.mark.parametrize("batch", ["n", 1])
def test_the_best_label_and_its_score_beside_four_probabilities_make_no_boxes(tmp_path, call, batch):
    nodes = [
        helper.make_node("Gather", ["means", "at"], ["four"], axis=1),
        helper.make_node("Softmax", ["four"], ["y"], axis=1),
        helper.make_node("ReduceMax", ["y"], ["score"], axes=[1], keepdims=0),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
    ]
    file = classifier(tmp_path / "c.onnx", *nodes, outputs={"y": [batch, 4], "score": [batch], "best": [batch]})
    model = onnx.load(str(file))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1, 2, 0]), "at"))
    model.graph.output[2].type.tensor_type.elem_type = TensorProto.INT64
    if batch == "n":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, str(file))
    assert take(call, file, "--labels", "a,b,c,d", "--input", SIZE).status == 0
    assert manifest(file).outputs == Outputs(name="y", layout="scores", activation="none")


def test_a_box_of_a_label_beyond_the_last_is_an_error(tmp_path):
    file = detector(tmp_path / "d.onnx", *end_to_end(label=3))
    expert = Expert("x", "onnx", ("a", "b"), SIZE, "t/x", outputs=Outputs(name="output0", layout="end2end"))
    session = kind.open(file, expert, 1)
    ready = kind.preprocess(np.full((SIZE, SIZE, 3), 255, np.uint8), expert)
    with pytest.raises(StoreError):
        kind.postprocess(session.run(ready.pixels[None]), [ready], expert)


def test_a_detector_with_an_objectness_and_one_label_is_not_taken_for_boxes_end_to_end(tmp_path, call):
    table, lit = np.zeros((CELLS, 6)), np.zeros((CELLS, 6))
    table[:] = [16, 16, 8, 4, 0.1, 0.5]
    lit[0, 4] = 0.8
    file = detector(tmp_path / "d.onnx", table, lit)
    said = take(call, file, "--labels", "bridge", "--input", SIZE)
    assert (said.status, "yolov5 or end2end" in said.words) == (2, True)
    assert take(call, file, "--labels", "bridge", "--input", SIZE, "--layout", "yolov5").status == 0
    assert judge(file, 255)[:2] == ("bridge", 0.45)


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ([4, 8, 20, 16, 0.5, 0.5], "end2end"),  # a label that is no whole number
        ([4, 8, 20, 16, 1.5, 0], "end2end"),  # a score beyond 1
        ([20, 8, 4, 16, 0.5, 0], "end2end"),  # corners in another order
        ([4, 8, -2, 3, 0.5, 0.5], "yolov5"),  # a size below 0
        ([4, 8, 2, 3, 0.5, 7.5], "yolov5"),  # logits
    ],
)
def test_answers_that_are_not_in_a_layout(tmp_path, call, row, layout):
    file = detector(tmp_path / "d.onnx", [row] * 8, np.zeros((8, 6)))
    said = take(call, file, "--labels", "bridge", "--input", SIZE, "--layout", layout)
    assert (said.status, said.err.count("error:")) == (2, 1)


QUANTISED = (
    helper.make_node("Mul", ["means", "steep"], ["logits"]),
    helper.make_node("Softmax", ["logits"], ["p"], axis=1),
    helper.make_node("QuantizeLinear", ["p", "step", "zero"], ["q"]),
    helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["output0"]),
)


def quantised(path):
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0), *QUANTISED]
    numbers = {"steep": np.float32([[0.0, 0.3, 8.0]]), "step": np.float32(1 / 256), "zero": np.uint8(0)}
    return save(path, nodes, numbers, {"output0": [1, 3]}, None)


def test_probabilities_of_eight_bits_get_no_second_softmax(tmp_path, call):
    """Its rows sum to 1, to 0.996, and to 1.004."""
    file = quantised(tmp_path / "c.onnx")
    assert take(call, file, "--labels", "a,b,c", "--input", SIZE).status == 0
    assert manifest(file).outputs == Outputs(name="output0", layout="scores", activation="none")
    expert, sums = manifest(file).expert(), set()
    session = kind.open(file, expert, 1)
    for level in range(0, 256, 5):
        ready = kind.preprocess(np.full((SIZE, SIZE, 3), level, np.uint8), expert)
        outputs = session.run(ready.pixels[None])
        (finding,) = kind.postprocess(outputs, [ready], expert)
        assert finding.score == pytest.approx(float(outputs.max()))
        sums.add(round(float(outputs.sum()), 3))
    assert len(sums) > 1


def test_a_model_of_logits_gets_a_softmax_of_a_row_that_looks_like_probabilities_too(tmp_path, call):
    file = classifier(
        tmp_path / "c.onnx",
        helper.make_node("Mul", ["means", "scale"], ["wide"]),
        helper.make_node("Sub", ["wide", "shift"], ["output0"]),
        outputs={"output0": [1, 3]},
        scale=[[8.0, 4.0, 2.0]],
        shift=[[3.3, 1.8, 0.872]],
    )
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE)
    assert (said.status, "--activation" in said.words) == (2, True)
    assert take(call, file, "--labels", "a,b,c", "--input", SIZE, "--activation", "softmax").status == 0
    assert judge(file, 127)[1] == pytest.approx(0.458, abs=2e-3)  # the row is 0.684, 0.192, 0.124


@pytest.mark.parametrize(
    ("last", "activation", "score"),
    [("Sigmoid", "none", 0.731), ("Identity", "none", 1.0), ("Identity", "sigmoid", 0.731)],
)
def test_one_output_is_the_score_of_the_second_of_two_labels(tmp_path, call, last, activation, score):
    file = classifier(
        tmp_path / "c.onnx",
        helper.make_node("ReduceMean", ["means"], ["mean"], axes=[1], keepdims=1),
        helper.make_node(last, ["mean"], ["output0"]),
        outputs={"output0": [1, 1]},
    )
    for labels in ("defect", "ok,defect"):
        said = take(call, file, "--labels", labels, "--input", SIZE)
        assert (said.status, "--activation" in said.words) == (2, labels == "ok,defect")
    assert take(call, file, "--labels", "ok,defect", "--input", SIZE, "--activation", "softmax").status == 2
    assert take(call, file, "--labels", "ok,defect", "--input", SIZE, "--activation", activation).status == 0
    assert judge(file, 255)[:2] == ("defect", score)
    assert judge(file, 0)[0] == "ok"


@pytest.mark.parametrize(
    ("last", "is_refused"),
    [
        (helper.make_node("Softmax", ["wide"], ["y"], axis=0), True),  # over the pictures of a batch of one
        (helper.make_node("Mul", ["means", "none"], ["y"]), True),
        (helper.make_node("Softmax", ["sure"], ["y"], axis=1), False),  # 1, 0, 0
    ],
)
def test_an_answer_that_is_the_same_whatever_a_model_sees_is_refused(tmp_path, call, last, is_refused):
    nodes = [
        helper.make_node("Mul", ["means", "nine"], ["wide"]),
        helper.make_node("Add", ["wide", "far"], ["sure"]),
        last,
    ]
    numbers = {"nine": 9.0, "none": 0.0, "far": [[999.0, 0.0, 0.0]]}
    file = classifier(tmp_path / "c.onnx", *nodes, outputs={"y": [1, 3]}, **numbers)
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, "--activation", "none")
    assert (said.status, "for every picture" in said.words) == ((2, True) if is_refused else (0, False)), said.err


def test_scores_between_0_and_1_that_do_not_sum_to_1_are_explained_by_the_user(tmp_path, call):
    file = classifier(tmp_path / "c.onnx", helper.make_node("Sigmoid", ["means"], ["y"]), outputs={"y": [1, 3]})
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE)
    assert (said.status, "--activation" in said.words) == (2, True)
    for activation in ("none", "softmax", "sigmoid"):
        assert take(call, file, "--labels", "a,b,c", "--input", SIZE, "--activation", activation).status == 0
        assert manifest(file).outputs.activation == activation


def test_of_several_outputs_that_fit_the_user_names_one(tmp_path, call):
    file = classifier(
        tmp_path / "c.onnx",
        helper.make_node("Mul", ["means", "turn"], ["logits"]),
        outputs={"means": [1, 3], "logits": [1, 3]},
        turn=[[-9.0, -9.0, -9.0]],
    )
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE)
    assert (said.status, "--output" in said.words) == (2, True)
    assert take(call, file, "--labels", "a,b,c", "--input", SIZE, "--output", "nothing").status == 2
    more = ("--output", "logits", "--activation", "softmax")
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, *more)
    assert (said.status, "'logits'" in said.out) == (0, True)
    red = np.zeros((1, 3, SIZE, SIZE), np.uint8)
    red[:, 0] = 255
    assert kind.open(file, manifest(file).expert(), 1).run(red)[0, 0] == -9


def test_an_output_that_does_not_fit_beside_one_that_does(tmp_path, call):
    file = classifier(
        tmp_path / "c.onnx",
        helper.make_node("Concat", ["means", "means"], ["features"], axis=1),
        outputs={"features": [1, 6], "means": [1, 3]},
    )
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, "--activation", "softmax")
    assert (said.status, "'means'" in said.out) == (0, True)


CLASSIFY = {"task": "classify", "names": "{0: 'dark', 1: 'bright'}", "imgsz": f"[{SIZE}, {SIZE}]", "stride": "1"}


def ultralytics_classifier(path, metadata):
    """Bright or dark by the red of the picture, softmax inside."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["steep"]),
        helper.make_node("Add", ["steep", "shift"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["output0"], axis=1),
    ]
    numbers = {"weights": np.float32([[-9, 9], [0, 0], [0, 0]]), "shift": np.float32([[4.5, -4.5]])}
    return save(path, nodes, numbers, {"output0": [1, 2]}, metadata)


def test_a_classifier_of_ultralytics_sees_what_it_was_trained_on(tmp_path, call):
    file = ultralytics_classifier(tmp_path / "c.onnx", CLASSIFY)
    assert take(call, file).status == 0
    stored = manifest(file)
    assert (stored.labels, stored.input_size) == (("dark", "bright"), SIZE)
    assert stored.preprocessing == Preprocessing(resize="center-crop", interpolation="bilinear-antialias")
    assert [judge(file, level)[0] for level in (100, 150)] == ["dark", "bright"]


def test_another_program_that_writes_the_words_of_ultralytics_says_nothing(tmp_path, call):
    """It calls labels that nobody named by their numbers, has other tasks, and answers logits."""
    metadata = {"task": "classification", "names": "kind-0, kind-1", "imgsz": "32x32"}
    nodes = [helper.make_node("Gemm", ["means", "last"], ["row"])]
    file = classifier(tmp_path / "c.onnx", *nodes, outputs={"row": [1, 2]}, last=np.eye(3)[:, :2])
    helper.set_model_props(model := onnx.load(str(file)), metadata)
    onnx.save(model, str(file))
    said = take(call, file, "--labels", "dark,bright")
    assert (said.status, "--normalize" in said.words, "--activation" in said.words) == (2, True, True), said.err
    assert take(call, file, *SAID).status == 2
    assert take(call, file, "--labels", "dark,bright", *SAID, "--activation", "softmax").status == 0


def test_a_whole_line_runs_what_import_decided(tmp_path, call, board_file):
    """The middle square of the picture counts, and its red channel; the board has the labels the other way round."""
    file = ultralytics_classifier(tmp_path / "c.onnx", CLASSIFY)
    assert take(call, file).status == 0
    board = board_file(
        f"board: t\nexperts:\n  x: {{kind: onnx, labels: [bright, dark], input: {SIZE}}}\n"
        "components:\n  C: {count: 1, inspect: x, then: {dark: NG, bright: OK}}\n"
    )
    image = np.zeros((40, 160, 3), np.uint8)  # BGR, as OpenCV reads it
    image[:, 60:100, 2] = 255
    with Inspector(board, store=tmp_path / "s", profile=None, memory="200MB") as line:
        pictures = [Picture(image, "C", name="red"), Picture(image[:, :60], "C", name="black")]
        verdicts = {result.request.image: result.verdict for result in line.stream(pictures)}
    assert verdicts == {"red": "OK", "black": "NG"}


FACTS = [
    (("--labels", "bright,dark"), 0),
    (("--labels", "good,bad"), 2),
    (("--labels", "good,bad", "--force"), 0),
    (("--input", SIZE), 0),
    (("--normalize", "imagenet"), 2),
    (("--normalize", "imagenet", "--force"), 0),
    (("--resize", "letterbox"), 2),
    (("--normalize", "0..1", "--resize", "center-crop"), 0),
]


@pytest.mark.parametrize(("options", "status"), FACTS)
def test_what_the_file_says_is_not_overruled_in_silence(tmp_path, call, options, status):
    file = ultralytics_classifier(tmp_path / "c.onnx", CLASSIFY)
    said = take(call, file, *options)
    assert said.status == status, said.err
    if status:
        assert said.err.count("error:") == 1
        assert "--force" in said.words
    elif "good,bad" in options:
        assert manifest(file).labels == ("good", "bad")
        assert "dark, bright" in said.words  # what it overruled
    elif "bright,dark" in options:
        assert manifest(file).labels == ("dark", "bright")


def test_all_that_the_file_says_otherwise_is_said_at_once(tmp_path, call):
    file = ultralytics_classifier(tmp_path / "c.onnx", CLASSIFY)
    said = take(call, file, "--labels", "good,bad", "--input", 64, "--channels", "bgr")
    assert said.status == 2
    assert all(word in said.words for word in ("dark, bright", str(SIZE), "RGB"))


@pytest.mark.parametrize(
    "metadata",
    [
        {"task": "segment"},
        {"task": "pose"},
        {"names": "{0: 'a', 2: 'b'}"},
        {"names": "__import__('os')"},
        {"names": "{" * 5000},
    ],
)
def test_metadata_that_no_expert_can_have(tmp_path, call, metadata):
    file = ultralytics_classifier(tmp_path / "c.onnx", {**CLASSIFY, **metadata})
    said = take(call, file)
    assert (said.status, said.err.count("error:"), "Traceback" in said.err) == (2, 1, False)
    assert len(said.words) < 900


def test_labels_with_numbers_that_are_texts_stand_in_the_order_of_the_numbers(tmp_path, call):
    names = {str(number): f"c{number}" for number in (0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9)}
    table = np.zeros((15, 20))
    table[:4] = [[16], [16], [4], [4]]
    file = detector(tmp_path / "d.onnx", table, np.zeros((15, 20)), {**ULTRALYTICS, "names": str(names)})
    assert take(call, file).status == 0
    assert manifest(file).labels == tuple(f"c{number}" for number in range(11))
    assert manifest(file).preprocessing == Preprocessing(interpolation="bilinear")


@pytest.mark.parametrize(
    "options",
    [
        ("--normalize", "half"),
        ("--normalize", "0.5,0"),
        ("--normalize", "1,2,3"),
        ("--resize", "crop"),
        ("--resize", "letterbox:40"),
        ("--resize", "center-crop:8"),
        ("--interpolation", "nearest"),
        ("--channels", "gray"),
        ("--pad", "300"),
        ("--pad", "1,2"),
        ("--layout", "yolo"),
        ("--activation", "relu"),
    ],
)
def test_options_that_say_nothing(tmp_path, call, options):
    file = classifier(tmp_path / "c.onnx", helper.make_node("Neg", ["means"], ["y"]), outputs={"y": [1, 3]})
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, *options)
    assert (said.status, said.err.count("error:")) == (2, 1)
    assert options[0] in said.words


def test_options_make_the_record_of_a_file_that_says_nothing(tmp_path, call):
    file = classifier(tmp_path / "c.onnx", helper.make_node("Neg", ["means"], ["y"]), outputs={"y": [1, 3]})
    options = ("--normalize", "0.5,0.25", "--resize", "center-crop:36", "--interpolation", "bicubic-antialias")
    more = ("--channels", "bgr", "--pad", "1,2,3", "--activation", "softmax")
    assert take(call, file, "--labels", "a,b,c", "--input", SIZE, *options, *more).status == 0
    assert manifest(file).preprocessing == Preprocessing(
        resize="center-crop",
        shortest_edge=36,
        interpolation="bicubic-antialias",
        channels="bgr",
        pad=(1, 2, 3),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )


def test_a_model_that_takes_bytes_gets_no_other_normalisation(tmp_path, call):
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["y"], axes=[2, 3], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "c.onnx")
    more = ("--labels", "a,b,c", "--activation", "softmax")
    assert take(call, tmp_path / "c.onnx", *more, "--normalize", "imagenet").status == 2
    said = take(call, tmp_path / "c.onnx", *more, "--normalize", "0..255")
    assert (said.status, "0..255" in said.out) == (0, True)


def test_outputs_that_are_no_tables_of_numbers_do_not_count():
    share = np.linspace(0, 1, 6, dtype=np.float32)
    tables = {"words": np.array([["a", "b"]]), "list": [1, 2], "scores": np.stack((share, 1 - share), axis=1)}
    assert decide(tables, seen(2), Outputs()).name == "scores"


@pytest.mark.parametrize(
    ("row", "are"),
    [
        ([255 / 256, 0], True),
        ([254 / 256, 2 / 256], True),
        ([0.7, 0.2, 0.1], True),
        ([0.3, 0.3, 0.1], False),
        ([2.0, -1.0], False),
        ([1.0, 1.0], False),
    ],
)
def test_which_rows_look_like_probabilities(row, are):
    assert look_like_probabilities(np.array([row])) is are


def test_large_boxes_of_a_small_picture_are_no_corners_where_ultralytics_says_what_they_are(tmp_path, call):
    rows = [[4 * x, 4 * y, 60, 60, 0.4, 0.2] for x in range(6) for y in range(6)]  # as of a network without training
    table = np.transpose(rows)
    for metadata, status in ((ULTRALYTICS, 0), (None, 2)):
        file = detector(tmp_path / "d.onnx", table, np.zeros_like(table), metadata)
        said = take(call, file, "--labels", "a,b", "--input", SIZE)
        assert (said.status, "yolov8 or corners" in said.words) == (status, metadata is None)
    earlier = {key: text for key, text in ULTRALYTICS.items() if key != "end2end"}  # before its exporter said more
    cells = np.tile([16, 16, 8, 4, 0.1, 0.5, 0.2], (CELLS, 1))
    repository = {"names": "{0: 'a', 1: 'b'}", "stride": "32"}
    for maker, made, layout in ((earlier, table, "yolov8"), (repository, cells, "yolov5")):
        file = detector(tmp_path / "d.onnx", made, np.zeros_like(made), maker)
        assert take(call, file, "--labels", "a,b", "--input", SIZE).status == 0
        assert manifest(file).outputs.layout == layout


@pytest.mark.parametrize("layout", ["yolov5", "yolov8"])
def test_boxes_of_a_grid_with_a_label_that_is_nowhere_are_taken(tmp_path, call, layout):
    """In 8 bits the scores of a label may all be 0."""
    chance = np.random.default_rng(3)
    scores = chance.uniform(0, 1, (CELLS, 3)) if layout == "yolov5" else chance.uniform(0, 0.4, (CELLS, 2))
    scores[:, -1] = 0
    table = np.concatenate((chance.uniform(4, 28, (CELLS, 4)), scores), axis=1)
    table = table if layout == "yolov5" else table.T
    file = detector(tmp_path / "d.onnx", table, np.zeros_like(table))
    asked = ("--layout", layout) if layout == "yolov8" else ()
    assert take(call, file, "--labels", "a,b", "--input", SIZE, *asked).status == 0
    assert manifest(file).outputs.layout == layout


def test_rows_that_are_not_those_of_the_pictures_are_no_scores(tmp_path, call):
    rows = np.float32([[0, 0.9, 5, 6, 30, 40]] * 5)
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "none"], ["zero"]),
        helper.make_node("Add", ["rows", "zero"], ["boxes"]),
    ]
    file = save(tmp_path / "d.onnx", nodes, {"rows": rows, "none": np.float32(0)}, {"boxes": [5, 6]}, None)
    said = take(call, file, "--labels", "a,b,c,d,e,f", "--input", SIZE)
    assert (said.status, "NMS" in said.words) == (2, True)


@pytest.mark.parametrize("fault", ["dropout", "batch norm"])
def test_a_model_exported_as_for_training_is_refused(tmp_path, call, fault):
    if fault == "dropout":
        last = [
            helper.make_node("RandomUniformLike", ["means"], ["chance"]),
            helper.make_node("Mul", ["means", "chance"], ["y"]),
        ]
    else:
        last = [helper.make_node("Softmax", ["means"], ["y"], axis=0)]
    nodes = [helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0), *last]
    file = save(tmp_path / "c.onnx", nodes, {}, {"y": ["n", 3]}, None)
    model = onnx.load(str(file))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, str(file))
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, "--activation", "none")
    assert (said.status, "eval()" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([1, SIZE, SIZE, 4], "layer"),
        ([1, 4, SIZE, SIZE], "layer"),
        ([1, 3, SIZE, 0], "fixed"),  # the other side is open
        ([4, 3, SIZE, SIZE], "batch"),
    ],
)
def test_an_input_of_another_form_says_the_way_out(tmp_path, call, shape, words):
    file = classifier(tmp_path / "c.onnx", outputs={"means": [1, 3]}, weight=[1])
    model = onnx.load(str(file))
    for place, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        if size:
            place.dim_value = size
        else:
            place.dim_param = "side"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for node in model.graph.node:
        node.output[0] = "means"
    model.graph.output[0].type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("x", 1, ["a", "b"]).type.tensor_type.shape
    )
    weights = {"save_as_external_data": True, "size_threshold": 0}
    for options in {}, weights:  # of weights in another file a copy is made, which no sentence names
        onnx.save(model, str(file), **options)
        said = take(call, file, "--labels", "a,b,c", "--input", SIZE)
        assert (said.status, words in said.words, str(file) in said.err) == (2, True, True), said.err


@pytest.mark.parametrize("batch", ["", "n"])
@pytest.mark.parametrize(
    ("nodes", "shape", "labels"),
    [
        ([helper.make_node("Unsqueeze", ["means", "two"], ["y"])], [1, 3, 1, 1], "a,b,c"),
        ([helper.make_node("Unsqueeze", ["means", "one"], ["y"])], ["n", 1, 1, 3], "a,b,c"),
        ([helper.make_node("Squeeze", ["means"], ["y"])], [3], "a,b,c"),
        ([helper.make_node("Squeeze", ["means"], ["y"])], ["n"], "a,b,c"),
        (
            [
                helper.make_node("Gemm", ["means", "last"], ["row"]),
                helper.make_node("Shape", ["row"], ["sizes"]),
                helper.make_node("Slice", ["sizes", "zero", "end"], ["size"]),
                helper.make_node("Reshape", ["row", "size"], ["y"]),
            ],
            [1],
            "a,b",
        ),
    ],
)
def test_scores_beside_axes_of_one_are_rows(tmp_path, call, nodes, shape, labels, batch):
    file = classifier(tmp_path / "c.onnx", *nodes, outputs={"y": shape}, last=[[0], [0], [9]])
    model = onnx.load(str(file))
    if batch:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = batch
    numbers = {"two": [2, 3], "one": [1, 2], "zero": [0], "end": [1]}
    model.graph.initializer.extend(numpy_helper.from_array(np.int64(value), name) for name, value in numbers.items())
    onnx.save(model, str(file))
    more = ("--normalize", "imagenet", "--activation", "softmax" if labels == "a,b,c" else "sigmoid")
    assert take(call, file, "--labels", labels, "--input", SIZE, *more).status == 0
    assert judge(file, 255)[0] == labels[-1]  # of white, blue is the farthest from its mean


def test_a_model_of_one_picture_gets_a_batch_of_one(tmp_path, call):
    """So torchvision's detectors are exported, which take a list of pictures."""
    nodes = [
        helper.make_node("Unsqueeze", ["images", "zero"], ["batch"]),
        helper.make_node("ReduceMean", ["batch"], ["y"], axes=[2, 3], keepdims=0),
    ]
    file = save(tmp_path / "m.onnx", nodes, {}, {"y": [1, 3]}, None)
    model = onnx.load(str(file))
    model.graph.initializer.append(numpy_helper.from_array(np.int64([0]), "zero"))
    del model.graph.input[0].type.tensor_type.shape.dim[0]
    onnx.save(model, str(file))
    more = ("--normalize", "imagenet", "--activation", "softmax")
    assert take(call, file, "--labels", "a,b,c", *more).status == 0
    assert (manifest(file).input_size, judge(file, 255)[0]) == (SIZE, "c")


def test_an_open_batch_that_takes_one_picture_alone_is_refused(tmp_path, call):
    nodes = [helper.make_node("Reshape", ["means", "two"], ["y"])]
    file = classifier(tmp_path / "c.onnx", *nodes, outputs={"y": ["n", 3]})
    model = onnx.load(str(file))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.initializer.append(numpy_helper.from_array(np.int64([1, 3]), "two"))
    onnx.save(model, str(file))
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE)
    assert (said.status, "make_dynamic_shape_fixed" in said.words) == (2, True), said.err


@pytest.mark.parametrize("beside", ["map", "number"])
def test_one_score_beside_a_map_and_a_word_counts(tmp_path, call, beside):
    """So models of anomalib answer; of two numbers nobody knows which counts."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Sigmoid", ["mean"], ["pred_score"]),
        helper.make_node("Greater", ["pred_score", "half"], ["pred_label"]),
        helper.make_node("Relu", ["images" if beside == "map" else "mean"], ["other"]),
    ]
    shape = [1, 3, SIZE, SIZE] if beside == "map" else [1]
    file = save(tmp_path / "m.onnx", nodes, {"half": np.float32(0.5)}, {"pred_score": [1], "other": shape}, None)
    model = onnx.load(str(file))
    model.graph.output.append(helper.make_tensor_value_info("pred_label", TensorProto.BOOL, [1]))
    onnx.save(model, str(file))
    more = ("--labels", "good,bad", "--input", SIZE, "--activation", "none")
    assert take(call, file, *more).status == (0 if beside == "map" else 2)
    if beside == "map":
        assert judge(file, 250)[0] == "bad"


@pytest.mark.parametrize(("step", "status"), [(0.25, 0), (0.75, 2), (2.5, 2)])
def test_a_detector_whose_scores_are_lost_in_8_bits_is_refused(tmp_path, call, step, status):
    table = np.stack([np.linspace(9, 30, 40)] * 2 + [np.linspace(5, 8, 40)] * 2 + [np.full(40, 0.3)] * 2)
    file = detector(tmp_path / "m.onnx", table, 0.01 * np.ones_like(table))
    model = onnx.load(str(file))
    model.graph.node[-1].output[0] = "floats"
    model.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(step), "step"), numpy_helper.from_array(np.uint8(0), "zero")]
    )
    model.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["floats", "step", "zero"], ["steps"]),
            helper.make_node("DequantizeLinear", ["steps", "step", "zero"], ["output0"]),
        ]
    )
    onnx.save(model, str(file))
    said = take(call, file, "--labels", "a,b", "--input", SIZE, "--layout", "yolov8")
    assert (said.status, "nodes_to_exclude" in said.words) == (status, status == 2), said.err


def grid_apart(path, form, columns, beside=(), named="boxes"):
    """A detector of a grid of 25 boxes of 8 pixels, the 13th lit, whose boxes and scores are two outputs."""
    centres = np.array([[2 + 6 * (place % 5), 2 + 6 * (place // 5)] for place in range(25)], np.float32)
    sizes = np.full_like(centres, 8)
    if "middle" in form:  # as of one large part
        centres, sizes = 14 + (centres - 14) / 14, sizes + 8
    boxes = np.hstack((centres - 4, centres + 4) if "corners" in form else (centres, sizes))
    scores, lit = np.full((25, columns), 0.01 if "logits" not in form else -5.0), np.zeros((25, columns))
    lit[12, 1] = 0.8 if "logits" not in form else 9
    if "object" in form:
        scores[:, -1] = 3
    if "background" in form:
        scores[:, 0] = 0.99
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["lit", "mean"], ["more"]),
        helper.make_node("Add", ["table", "more"], ["logits"]),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["places", "nothing"], [named if not beside else "shares"]),
    ]
    if beside:  # as Paddle and D-FINE do
        nodes += [
            helper.make_node("Cast", [beside[0]], ["sides"], to=TensorProto.FLOAT),
            helper.make_node("Concat", ["sides", "sides"], ["four"], axis=1),
            helper.make_node("Div", ["shares", "side"], ["parts"]),
            helper.make_node("Mul", ["parts", "four"], [named]),
        ]
    if "shares" in form:
        boxes = boxes / SIZE
    table, lit = (part[None].astype(np.float32) for part in (scores, lit))
    if "turned" in form:
        table, lit = table.transpose(0, 2, 1), lit.transpose(0, 2, 1)
    numbers = {"table": table, "lit": lit, "places": boxes[None], "zero": np.float32(0), "side": np.float32(SIZE)}
    outputs = {"logits": ["n", "a", "b"], named: ["n", "a", "c"]}
    file = save(path, nodes, numbers, outputs, None)
    model = onnx.load(str(file))
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 2]) for name in beside)
    onnx.save(model, str(file))
    return file


@pytest.mark.parametrize(
    ("form", "columns", "layout", "activation"),
    [
        ("corners", 3, "corners", None),  # YOLO-NAS
        ("corners turned", 3, "corners", None),  # PP-YOLOE
        ("shares logits", 3, "yolov8", "sigmoid"),  # RT-DETR
        ("shares logits object", 4, "yolov8", "softmax"),  # DETR, whose scores are as wide as its boxes
        ("corners shares", 3, "corners", None),
    ],
)
def test_a_grid_whose_boxes_and_scores_lie_apart_is_read_in_the_layout_that_is_said(
    tmp_path, call, form, columns, layout, activation
):
    file = grid_apart(tmp_path / "d.onnx", form, columns)
    more = ("--activation", activation) if activation else ()
    assert take(call, file, "--labels", "a,b,c", "--input", SIZE, *more).status == 2  # centre and size, or corners
    if "object" in form:  # its scores are as wide as its boxes
        said = take(call, file, "--labels", "a,b,c", "--input", SIZE, *more, "--layout", layout)
        assert (said.status, "--output" in said.words) == (2, True)
        more = (*more, "--output", "boxes+logits")
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, *more, "--layout", layout)
    assert said.status == 0, said.err
    means = manifest(file).outputs
    assert (means.layout, means.activation, means.shares) == (layout, activation, "shares" in form)
    label, score, boxes = judge(file, 255)
    assert (label, score > 0.7, boxes[0].xyxy) == ("b", True, pytest.approx((10, 10, 18, 18), abs=1e-4))
    assert judge(file, 0)[0] == "none"


@pytest.mark.parametrize(
    ("form", "named", "layout"),
    [
        ("middle shares logits", "pred_boxes", "yolov8"),  # DETR and its kin
        ("middle shares logits", "boxes", ""),
        ("corners shares", "raw_detection_boxes", ""),  # TensorFlow's begin with y
        ("corners background", "boxes", ""),  # of SSD, whose first score is that of no object
    ],
)
def test_what_the_names_say_of_boxes_counts_and_nothing_else_is_guessed(tmp_path, call, form, named, layout):
    file = grid_apart(tmp_path / "d.onnx", form, 3, named=named)
    more = ("--activation", "sigmoid") if "logits" in form else ()
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, *more)
    assert said.status == (0 if layout else 2), said.err
    if layout:
        assert judge(file, 255)[2][0].xyxy == pytest.approx((6, 6, 22, 22), abs=1e-4)


@pytest.mark.parametrize("beside", ["orig_target_sizes", "im_shape", "scale_factor"])
def test_sizes_beside_the_picture_are_those_of_the_input(tmp_path, call, beside):
    file = grid_apart(tmp_path / "d.onnx", "corners", 3, (beside,))
    said = take(call, file, "--labels", "a,b,c", "--input", SIZE, "--layout", "corners")
    assert said.status == (2 if beside == "scale_factor" else 0), said.err
    if said.status == 0:
        assert not manifest(file).outputs.shares
        assert judge(file, 255)[2][0].xyxy == pytest.approx((10, 10, 18, 18), abs=1e-4)


def silent(path, columns, row, rows=300):
    """A model with NMS inside that finds one box in very bright red pictures, and else gives rows of zeros."""
    box = np.zeros((1, rows, columns), np.float32)
    box[0, 0] = row
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "red"], ["redness"]),
        helper.make_node("Greater", ["redness", "limit"], ["is"]),
        helper.make_node("Cast", ["is"], ["one"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["box", "one"], ["output0"]),
    ]
    numbers = {"red": np.float32([[1.0], [-0.5], [-0.5]]), "limit": np.float32(0.7), "box": box}
    return save(path, nodes, numbers, {"output0": [1, rows, columns]}, None)


@pytest.mark.parametrize(
    ("columns", "row", "labels"),
    [
        (7, [15, 14, 10, 9, 0.9, 1, 0.3], "a,b"),  # ultralytics' turned boxes: centre, size, score, label, angle
        (7, [15, 14, 10, 9, 0.9, 1, 0.3], "a,b,c"),
        (7, [0, 5, 6, 20, 25, 1, 0.9], "a,b"),  # YOLOv7's, with the number of the picture in front
        (8, [5, 6, 20, 25, 0.9, 1, 0.3, 0.2], "a,b,c"),
    ],
)
def test_an_empty_table_proves_no_layout(tmp_path, call, columns, row, labels):
    said = take(call, silent(tmp_path / "d.onnx", columns, row), "--labels", labels, "--input", SIZE)
    assert said.status == 2, said.out


def test_an_empty_table_is_read_where_its_shape_leaves_no_choice(tmp_path, call):
    file = silent(tmp_path / "d.onnx", 6, [5, 6, 20, 25, 0.9, 0])
    assert take(call, file, "--labels", "bridge", "--input", SIZE).status == 0
    assert manifest(file).outputs.layout == "end2end"
    assert take(call, file, "--labels", "joint,bridge", "--input", SIZE).status == 2
    for rows in (CELLS, 3 * (2 * 2 + 1), 3 * (4 * 4 + 2 * 2 + 1 + 1)):
        grid = silent(tmp_path / f"{rows}.onnx", 8, [15, 14, 10, 9, 0.9, 0.9, 0.1, 0.1], rows)
        assert take(call, grid, "--labels", "a,b,c", "--input", SIZE).status == 0
        assert manifest(grid).outputs.layout == "yolov5"


@pytest.mark.parametrize("rows", [100, 300])
def test_boxes_of_detr_stay_however_much_they_overlap(tmp_path, call, rows):
    """Each of its rows asks for another object; a grid has several boxes of one."""
    chance = np.random.default_rng(rows)
    places = np.concatenate((chance.uniform(0.2, 0.9, (rows, 2)), chance.uniform(0.05, 0.3, (rows, 2))), axis=1)
    places[3], places[7] = [0.5, 0.5, 0.4, 0.4], [0.52, 0.5, 0.4, 0.42]
    scores, lit = chance.uniform(0, 0.05, (rows, 2)), np.zeros((rows, 6))
    lit[[3, 7], [4, 4]] = 0.9
    file = detector(tmp_path / "d.onnx", np.concatenate((places, scores), axis=1), lit)
    assert take(call, file, "--labels", "a,b", "--input", SIZE).status == 2
    assert take(call, file, "--labels", "a,b", "--input", SIZE, "--layout", "yolov8").status == 0
    assert len(judge(file, 255)[2]) == 2
    cells = CELLS // 3
    grid = np.concatenate((places[:cells] * SIZE, scores[:cells]), axis=1)
    file = detector(tmp_path / "g.onnx", grid.T, lit[:cells].T)
    assert take(call, file, "--labels", "a,b", "--input", SIZE, "--layout", "yolov8").status == 0
    assert len(judge(file, 255)[2]) == 1


def test_of_more_boxes_than_any_model_chooses_those_that_overlap_count_once(tmp_path, call):
    """As EfficientDet gives its 5,000 best boxes with their labels."""
    table = np.tile([4, 8, 20, 16, 0, 0], (1100, 1)) + np.linspace(0, 0.5, 1100)[:, None] * [1, 1, 1, 1, 0, 0]
    file = detector(tmp_path / "d.onnx", table, np.tile([0, 0, 0, 0, 0.9, 0], (1100, 1)))
    assert take(call, file, "--labels", "a,b", "--input", SIZE, "--layout", "end2end").status == 0
    assert len(judge(file, 255)[2]) == 1


@pytest.mark.parametrize("layout", ["yolov5", "yolov8"])
def test_offsets_of_a_grid_are_no_boxes(layout):
    """As YOLOX gives them without --decode_in_inference: some few are as large as small boxes in pixels."""
    chance = np.random.default_rng(0)
    boxes, scores = chance.normal(0.5, 0.5, (6, 4, CELLS)), chance.random((6, 3, CELLS)) / 3
    boxes[:, 2:] += 2
    boxes[0, 2, :20] = 9
    rows = np.concatenate((boxes, scores), axis=1)
    answers = {"output": rows.transpose(0, 2, 1) if layout == "yolov5" else rows}
    asked = Outputs(layout=layout)
    count = 2 if layout == "yolov5" else 3
    with pytest.raises(StoreError, match="grid"):
        decide(answers, seen(count), asked)
    boxes *= 8
    rows = np.concatenate((boxes, scores), axis=1)
    answers = {"output": rows.transpose(0, 2, 1) if layout == "yolov5" else rows}
    assert decide(answers, seen(count), asked).layout == layout
