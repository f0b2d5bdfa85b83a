"""What an ONNX model's numbers mean is decided once, from its answers to test pictures and what its file says."""

import numpy as np
import onnx
import pytest
from onnx_files import written

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
ONE_PICTURE, PICTURES = f"float[1,3,{SIZE},{SIZE}] images", f"float[n,3,{SIZE},{SIZE}] images"
TABLE = "mean = ReduceMean<keepdims=0>(images) more = Mul(lit, mean) output0 = Add(table, more) "
MEANS = "means = ReduceMean<axes=[2,3], keepdims=0>(images) "


def save(path, nodes, given, *, taken=ONE_PICTURE, **more):
    return written(path, taken, nodes, given, opset=13, **more)


def detector(path, table, lit, metadata=None, *, more="", given=None, **numbers):
    """A detector that returns `table` + the mean brightness x `lit`."""
    table, lit = (np.asarray(part, np.float32)[None] for part in (table, lit))
    given = given or f"float[{','.join(map(str, table.shape))}] output0"
    return save(path, TABLE + more, given, metadata=metadata, table=table, lit=lit, **numbers)


def end_to_end(rows=8, label=0):
    """One box whose score is the brightness, then empty rows."""
    table, lit = np.zeros((rows, 6)), np.zeros((rows, 6))
    table[0] = [4, 8, 20, 16, 0, label]
    lit[0, 4] = 1
    return table, lit


def classifier(path, more, given, **numbers):
    """A classifier whose further nodes get the mean of each channel as `means`, (1, 3)."""
    return save(path, MEANS + more, given, **numbers)


def take(call, file, *options):
    """Import a file, and say what its pictures are if it says nothing of its own."""
    said = () if onnx.load(str(file)).metadata_props else SAID
    given = ("--kind", "onnx", "--no-prepare", "--store", file.parent / "s", *said, *options)
    return call("import", "t/x", file, *given, command=experts_command)


def label_as(call, file, labels, *options):
    return take(call, file, "--labels", labels, "--input", SIZE, *options)


def manifest(file):
    return Store(file.parent / "s").manifest("t/x")


def seen(level, expert):
    return kind.preprocess(np.full((SIZE, SIZE, 3), level, np.uint8), expert)


def judge(file, level):
    """Run the stored expert on a flat picture."""
    store = Store(file.parent / "s")
    expert = store.manifest("t/x").expert()
    ready = seen(level, expert)
    outputs = kind.open(store.path("t/x"), expert, 1).run(ready.pixels[None])
    (finding,) = kind.postprocess(outputs, [ready], expert)
    return finding.label, round(finding.score, 3), finding.boxes


@pytest.mark.parametrize(
    "metadata", [None, {**ULTRALYTICS, "end2end": "True"}, {**ULTRALYTICS, "args": "{'nms': True}"}]
)
@pytest.mark.parametrize("labels", ["bridge", "joint,bridge", "a,b,c"])
def test_boxes_end_to_end_for_any_number_of_labels(tmp_path, call, labels, metadata):
    names = labels.split(",")
    file = detector(tmp_path / "d.onnx", *end_to_end(label=len(names) - 1), metadata)
    if labels == "joint,bridge" and metadata is None:  # as many columns as a grid of two labels has
        said = label_as(call, file, labels)
        assert (said.status, "--layout" in said.words) == (2, True)
    said = label_as(call, file, labels, *([] if metadata else ["--layout", "end2end"]))
    assert said.status == 0, said.err
    assert manifest(file).outputs == Outputs(name="output0", layout="end2end")
    label, score, boxes = judge(file, 204)
    assert (label, score, boxes[0].xyxy) == (names[-1], 0.8, (4.0, 8.0, 20.0, 16.0))
    assert judge(file, 0)[0] == "none"


@pytest.mark.parametrize(("width", "has_batch"), [(4, True), (4, False), (5, True)])
def test_boxes_whose_scores_and_labels_lie_apart_are_one_table(tmp_path, call, width, has_batch):
    table, lit = end_to_end(label=1)
    table[-1] = -1  # as some fill up
    columns = {"labels": 5, "boxes": [*range(width)]} | ({"scores": 4} if width == 4 else {})
    more, given, numbers = "", [], {"first": 0}
    for name, numbers[f"{name}_at"] in columns.items():
        of, shape = "int64" if name == "labels" else "float", ["N"] + [str(width)] * (name == "boxes")
        more += f"{name}_rows = Gather<axis=2>(output0, {name}_at) {name}_one = Gather<axis=0>({name}_rows, first) "
        more += f"{name} = Cast<to={7 if of == 'int64' else 1}>({name}_{'rows' if has_batch else 'one'}) "
        given.append(f"{of}[{','.join(['n', *shape] if has_batch else shape)}] {name}")
    file = detector(tmp_path / "d.onnx", table, lit, more=more, given=", ".join(given), **numbers)
    if not has_batch:  # torchvision's, whose first label is the background
        said = label_as(call, file, "joint,bridge")
        assert (said.status, "background" in said.words) == (2, True)
    said = label_as(call, file, "joint,bridge", *(() if has_batch else ("--layout", "end2end")))
    assert (said.status, manifest(file).outputs.layout) == (0, "end2end"), said.err
    label, score, boxes = judge(file, 204)
    assert (label, score, boxes[0].xyxy) == ("bridge", 0.8, (4.0, 8.0, 20.0, 16.0))


@pytest.mark.parametrize(("taken", "named"), [(f"float[1,{SIZE},{SIZE},3]", "boxes"), (None, "detection_boxes")])
def test_tensorflows_boxes_which_begin_with_y_are_not_taken_for_others(tmp_path, call, taken, named):
    rows = f"""means = ReduceMean<axes=[1,2], keepdims=0>(images) one = ReduceMean<keepdims=0>(means)
        {named} = Add(table, one) scores = ReduceMean<axes=[2], keepdims=0>({named})
        classes = Cast<to=6>(scores)"""
    given = f"float[1,20,4] {named}, float[1,20] scores, int32[1,20] classes"
    table = np.tile(np.float32([8, 4, 16, 20]), (1, 20, 1))
    file = save(tmp_path / "d.onnx", rows, given, taken=f"{taken or f'float[1,3,{SIZE},{SIZE}]'} images", table=table)
    said = label_as(call, file, "joint,bridge", "--layout", "end2end")
    assert (said.status, "begin with x" in said.words, "d.onnx" in said.words) == (2, True, True)


@pytest.mark.parametrize("row", [[4, 8, 20, 16, 0, 0.9], [0.1, 0.2, 0.5, 0.4, 0.9, 0]], ids=["label first", "shares"])
def test_boxes_end_to_end_in_another_form_fail_when_the_first_is_found(tmp_path, row):
    expert = Expert("x", "onnx", ("a", "b"), SIZE, "t/x", outputs=Outputs(name="output0", layout="end2end"))
    file = detector(tmp_path / "d.onnx", [row, *np.zeros((7, 6))], np.zeros((8, 6)))
    ready = seen(255, expert)
    with pytest.raises(StoreError):
        kind.postprocess(kind.open(file, expert, 1).run(ready.pixels[None]), [ready], expert)


@pytest.mark.parametrize("batch", ["n", 1])
def test_the_best_label_and_its_score_beside_four_probabilities_make_no_boxes(tmp_path, call, batch):
    nodes = """four = Gather<axis=1>(means, at) y = Softmax<axis=1>(four)
        score = ReduceMax<axes=[1], keepdims=0>(y) best = ArgMax<axis=1, keepdims=0>(y)"""
    taken, given = f"float[{batch},3,32,32] images", f"float[{batch},4] y, float[{batch}] score, int64[{batch}] best"
    file = classifier(tmp_path / "c.onnx", nodes, given, taken=taken, at=[0, 1, 2, 0])
    assert label_as(call, file, "a,b,c,d").status == 0
    assert manifest(file).outputs == Outputs(name="y", layout="scores", activation="none")


def test_a_box_of_a_label_beyond_the_last_is_an_error(tmp_path):
    file = detector(tmp_path / "d.onnx", *end_to_end(label=3))
    expert = Expert("x", "onnx", ("a", "b"), SIZE, "t/x", outputs=Outputs(name="output0", layout="end2end"))
    ready = seen(255, expert)
    with pytest.raises(StoreError):
        kind.postprocess(kind.open(file, expert, 1).run(ready.pixels[None]), [ready], expert)


def test_a_detector_with_an_objectness_and_one_label_is_not_taken_for_boxes_end_to_end(tmp_path, call):
    table, lit = np.tile([16, 16, 8, 4, 0.1, 0.5], (CELLS, 1)), np.zeros((CELLS, 6))
    lit[0, 4] = 0.8
    file = detector(tmp_path / "d.onnx", table, lit)
    said = label_as(call, file, "bridge")
    assert (said.status, "yolov5 or end2end" in said.words) == (2, True)
    assert label_as(call, file, "bridge", "--layout", "yolov5").status == 0
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
    said = label_as(call, file, "bridge", "--layout", layout)
    assert (said.status, said.err.count("error:")) == (2, 1)


def test_probabilities_of_eight_bits_get_no_second_softmax(tmp_path, call):
    """Its rows sum to 1, to 0.996, and to 1.004."""
    nodes = """logits = Mul(means, steep) p = Softmax<axis=1>(logits)
        q = QuantizeLinear(p, step, zero) output0 = DequantizeLinear(q, step, zero)"""
    numbers = {"steep": [[0.0, 0.3, 8.0]], "step": 1 / 256, "zero": np.uint8(0)}
    file = classifier(tmp_path / "c.onnx", nodes, "float[1,3] output0", **numbers)
    assert label_as(call, file, "a,b,c").status == 0
    assert manifest(file).outputs == Outputs(name="output0", layout="scores", activation="none")
    expert, sums = manifest(file).expert(), set()
    session = kind.open(file, expert, 1)
    for level in range(0, 256, 5):
        ready = seen(level, expert)
        outputs = session.run(ready.pixels[None])
        (finding,) = kind.postprocess(outputs, [ready], expert)
        assert finding.score == pytest.approx(float(outputs.max()))
        sums.add(round(float(outputs.sum()), 3))
    assert len(sums) > 1


def test_a_model_of_logits_gets_a_softmax_of_a_row_that_looks_like_probabilities_too(tmp_path, call):
    numbers = {"scale": [[8.0, 4.0, 2.0]], "shift": [[3.3, 1.8, 0.872]]}
    nodes = "wide = Mul(means, scale) output0 = Sub(wide, shift)"
    file = classifier(tmp_path / "c.onnx", nodes, "float[1,3] output0", **numbers)
    said = label_as(call, file, "a,b,c")
    assert (said.status, "--activation" in said.words) == (2, True)
    assert label_as(call, file, "a,b,c", "--activation", "softmax").status == 0
    assert judge(file, 127)[1] == pytest.approx(0.458, abs=2e-3)  # the row is 0.684, 0.192, 0.124


@pytest.mark.parametrize(
    ("last", "activation", "score"),
    [("Sigmoid", "none", 0.731), ("Identity", "none", 1.0), ("Identity", "sigmoid", 0.731)],
)
def test_one_output_is_the_score_of_the_second_of_two_labels(tmp_path, call, last, activation, score):
    nodes = f"mean = ReduceMean<axes=[1], keepdims=1>(means) output0 = {last}(mean)"
    file = classifier(tmp_path / "c.onnx", nodes, "float[1,1] output0")
    for labels in ("defect", "ok,defect"):
        said = label_as(call, file, labels)
        assert (said.status, "--activation" in said.words) == (2, labels == "ok,defect")
    assert label_as(call, file, "ok,defect", "--activation", "softmax").status == 2
    assert label_as(call, file, "ok,defect", "--activation", activation).status == 0
    assert judge(file, 255)[:2] == ("defect", score)
    assert judge(file, 0)[0] == "ok"


@pytest.mark.parametrize(
    ("last", "is_refused"),
    [
        ("Softmax<axis=0>(wide)", True),  # over the pictures of a batch of one
        ("Mul(means, none)", True),
        ("Softmax<axis=1>(sure)", False),  # 1, 0, 0
    ],
)
def test_an_answer_that_is_the_same_whatever_a_model_sees_is_refused(tmp_path, call, last, is_refused):
    nodes, numbers = "wide = Mul(means, nine) sure = Add(wide, far) y = ", {"nine": 9.0, "none": 0.0}
    file = classifier(tmp_path / "c.onnx", nodes + last, "float[1,3] y", far=[[999.0, 0.0, 0.0]], **numbers)
    said = label_as(call, file, "a,b,c", "--activation", "none")
    assert (said.status, "for every picture" in said.words) == ((2, True) if is_refused else (0, False)), said.err


def test_scores_between_0_and_1_that_do_not_sum_to_1_are_explained_by_the_user(tmp_path, call):
    file = classifier(tmp_path / "c.onnx", "y = Sigmoid(means)", "float[1,3] y")
    said = label_as(call, file, "a,b,c")
    assert (said.status, "--activation" in said.words) == (2, True)
    for activation in ("none", "softmax", "sigmoid"):
        assert label_as(call, file, "a,b,c", "--activation", activation).status == 0
        assert manifest(file).outputs.activation == activation


def test_of_several_outputs_that_fit_the_user_names_one(tmp_path, call):
    given = "float[1,3] means, float[1,3] logits"
    file = classifier(tmp_path / "c.onnx", "logits = Mul(means, turn)", given, turn=[[-9.0, -9.0, -9.0]])
    said = label_as(call, file, "a,b,c")
    assert (said.status, "--output" in said.words) == (2, True)
    assert label_as(call, file, "a,b,c", "--output", "nothing").status == 2
    said = label_as(call, file, "a,b,c", "--output", "logits", "--activation", "softmax")
    assert (said.status, "'logits'" in said.out) == (0, True)
    red = np.zeros((1, 3, SIZE, SIZE), np.uint8)
    red[:, 0] = 255
    assert kind.open(file, manifest(file).expert(), 1).run(red)[0, 0] == -9
    given = "float[1,6] features, float[1,3] means"  # one fits, the other does not
    file = classifier(tmp_path / "c.onnx", "features = Concat<axis=1>(means, means)", given)
    said = label_as(call, file, "a,b,c", "--activation", "softmax")
    assert (said.status, "'means'" in said.out) == (0, True)


CLASSIFY = {"task": "classify", "names": "{0: 'dark', 1: 'bright'}", "imgsz": f"[{SIZE}, {SIZE}]", "stride": "1"}


def ultralytics_classifier(path, metadata=None):
    """Bright or dark by the red of the picture, softmax inside."""
    nodes = "steep = MatMul(means, weights) logits = Add(steep, shift) output0 = Softmax<axis=1>(logits)"
    numbers = {"weights": [[-9.0, 9], [0, 0], [0, 0]], "shift": [[4.5, -4.5]]}
    return classifier(path, nodes, "float[1,2] output0", metadata=CLASSIFY | (metadata or {}), **numbers)


def test_a_classifier_of_ultralytics_sees_what_it_was_trained_on_and_a_whole_line_runs_it(tmp_path, call, board_file):
    """The middle square of the picture counts, and its red channel; the board has the labels the other way round."""
    file = ultralytics_classifier(tmp_path / "c.onnx")
    assert take(call, file).status == 0
    stored = manifest(file)
    assert (stored.labels, stored.input_size) == (("dark", "bright"), SIZE)
    assert stored.preprocessing == Preprocessing(resize="center-crop", interpolation="bilinear-antialias")
    assert [judge(file, level)[0] for level in (100, 150)] == ["dark", "bright"]
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


def test_another_program_that_writes_the_words_of_ultralytics_says_nothing(tmp_path, call):
    """It calls labels that nobody named by their numbers, has other tasks, and answers logits."""
    metadata = {"task": "classification", "names": "kind-0, kind-1", "imgsz": "32x32"}
    nodes, last = "row = Gemm(means, last)", np.eye(3)[:, :2]
    file = classifier(tmp_path / "c.onnx", nodes, "float[1,2] row", metadata=metadata, last=last)
    said = take(call, file, "--labels", "dark,bright")
    assert (said.status, "--normalize" in said.words, "--activation" in said.words) == (2, True, True), said.err
    assert take(call, file, *SAID).status == 2
    assert take(call, file, "--labels", "dark,bright", *SAID, "--activation", "softmax").status == 0


@pytest.mark.parametrize(
    ("options", "labels", "words"),
    [
        ("--labels bright,dark", ("dark", "bright"), ()),
        ("--labels good,bad --force", ("good", "bad"), ("dark, bright",)),  # what it overruled
        (f"--input {SIZE}", ("dark", "bright"), ()),
        ("--normalize imagenet --force", ("dark", "bright"), ()),
        ("--normalize 0..1 --resize center-crop", ("dark", "bright"), ()),
        ("--labels good,bad", None, ()),
        ("--normalize imagenet", None, ()),
        ("--resize letterbox", None, ()),
        ("--labels good,bad --input 64 --channels bgr", None, ("dark, bright", str(SIZE), "RGB")),  # all at once
    ],
)
def test_what_the_file_says_is_not_overruled_in_silence(tmp_path, call, options, labels, words):
    file = ultralytics_classifier(tmp_path / "c.onnx")
    said = take(call, file, *options.split())
    assert all(word in said.words for word in words)
    if labels is None:
        assert (said.status, said.err.count("error:"), "--force" in said.words) == (2, 1, True)
    else:
        assert (said.status, manifest(file).labels) == (0, labels), said.err


@pytest.mark.parametrize(
    "metadata",
    [
        *({"task": "segment"}, {"task": "pose"}),
        *({"names": names} for names in ("{0: 'a', 2: 'b'}", "__import__('os')", "{" * 5000)),
    ],
)
def test_metadata_that_no_expert_can_have(tmp_path, call, metadata):
    said = take(call, ultralytics_classifier(tmp_path / "c.onnx", metadata))
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
    "words",
    [
        *("--normalize half", "--normalize 0.5,0", "--normalize 1,2,3", "--resize crop", "--resize letterbox:40"),
        *("--resize center-crop:8", "--interpolation nearest", "--channels gray", "--pad 300", "--pad 1,2"),
        *("--layout yolo", "--activation relu"),
    ],
)
def test_options_that_say_nothing(tmp_path, call, words):
    file = classifier(tmp_path / "c.onnx", "y = Neg(means)", "float[1,3] y")
    said = label_as(call, file, "a,b,c", *words.split())
    assert (said.status, said.err.count("error:"), words.split()[0] in said.words) == (2, 1, True)


def test_options_make_the_record_of_a_file_that_says_nothing(tmp_path, call):
    file = classifier(tmp_path / "c.onnx", "y = Neg(means)", "float[1,3] y")
    options = ("--normalize", "0.5,0.25", "--resize", "center-crop:36", "--interpolation", "bicubic-antialias")
    more = ("--channels", "bgr", "--pad", "1,2,3", "--activation", "softmax")
    assert label_as(call, file, "a,b,c", *options, *more).status == 0
    size = {"resize": "center-crop", "shortest_edge": 36, "interpolation": "bicubic-antialias", "pad": (1, 2, 3)}
    colours = {"channels": "bgr", "mean": (0.5,) * 3, "std": (0.25,) * 3}
    assert manifest(file).preprocessing == Preprocessing(**size, **colours)


def test_a_model_that_takes_bytes_gets_no_other_normalisation(tmp_path, call):
    nodes = "numbers = Cast<to=1>(images) y = ReduceMean<axes=[2,3], keepdims=0>(numbers)"
    file = save(tmp_path / "c.onnx", nodes, "float[1,3] y", taken=f"uint8[1,3,{SIZE},{SIZE}] images")
    more = ("--labels", "a,b,c", "--activation", "softmax")
    assert take(call, file, *more, "--normalize", "imagenet").status == 2
    said = take(call, file, *more, "--normalize", "0..255")
    assert (said.status, "0..255" in said.out) == (0, True)


def of_labels(count):
    return Expert("x", "onnx", tuple("abcdef"[:count]), SIZE, "t/x")


def test_outputs_that_are_no_tables_of_numbers_do_not_count_and_which_rows_look_like_probabilities():
    share = np.linspace(0, 1, 6, dtype=np.float32)
    tables = {"words": np.array([["a", "b"]]), "list": [1, 2], "scores": np.stack((share, 1 - share), axis=1)}
    assert decide(tables, of_labels(2), Outputs()).name == "scores"
    for row in ([255 / 256, 0], [254 / 256, 2 / 256], [0.7, 0.2, 0.1]):
        assert look_like_probabilities(np.array([row]))
    for row in ([0.3, 0.3, 0.1], [2.0, -1.0], [1.0, 1.0]):
        assert not look_like_probabilities(np.array([row]))


def test_large_boxes_of_a_small_picture_are_no_corners_where_ultralytics_says_what_they_are(tmp_path, call):
    rows = [[4 * x, 4 * y, 60, 60, 0.4, 0.2] for x in range(6) for y in range(6)]  # as of a network without training
    table = np.transpose(rows)
    for metadata, status in ((ULTRALYTICS, 0), (None, 2)):
        file = detector(tmp_path / "d.onnx", table, np.zeros_like(table), metadata)
        said = label_as(call, file, "a,b")
        assert (said.status, "yolov8 or corners" in said.words) == (status, metadata is None)
    earlier = {key: text for key, text in ULTRALYTICS.items() if key != "end2end"}  # before its exporter said more
    cells = np.tile([16, 16, 8, 4, 0.1, 0.5, 0.2], (CELLS, 1))
    repository = {"names": "{0: 'a', 1: 'b'}", "stride": "32"}
    for maker, made, layout in ((earlier, table, "yolov8"), (repository, cells, "yolov5")):
        file = detector(tmp_path / "d.onnx", made, np.zeros_like(made), maker)
        assert label_as(call, file, "a,b").status == 0
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
    assert label_as(call, file, "a,b", *(("--layout", layout) if layout == "yolov8" else ())).status == 0
    assert manifest(file).outputs.layout == layout


def test_rows_that_are_not_those_of_the_pictures_are_no_scores(tmp_path, call):
    rows = np.float32([[0, 0.9, 5, 6, 30, 40]] * 5)
    nodes = "mean = ReduceMean<keepdims=0>(images) zero = Mul(mean, none) boxes = Add(rows, zero)"
    file = save(tmp_path / "d.onnx", nodes, "float[5,6] boxes", rows=rows, none=0.0)
    said = label_as(call, file, "a,b,c,d,e,f")
    assert (said.status, "NMS" in said.words) == (2, True)


@pytest.mark.parametrize(
    ("nodes", "activation", "word"),
    [
        ("chance = RandomUniformLike(means) y = Mul(means, chance)", ("--activation", "none"), "eval()"),  # dropout
        ("y = Softmax<axis=0>(means)", ("--activation", "none"), "eval()"),  # batch norm
        ("y = Reshape(means, two)", (), "make_dynamic_shape_fixed"),  # it takes one picture alone
    ],
)
def test_a_model_whose_pictures_depend_on_each_other_is_refused(tmp_path, call, nodes, activation, word):
    file = classifier(tmp_path / "c.onnx", nodes, "float[n,3] y", taken=PICTURES, two=[1, 3])
    said = label_as(call, file, "a,b,c", *activation)
    assert (said.status, word in said.words) == (2, True), said.err


@pytest.mark.parametrize("shape", ["1,32,32,4 layer", "1,4,32,32 layer", "1,3,32,side fixed", "4,3,32,32 batch"])
def test_an_input_of_another_form_says_the_way_out(tmp_path, call, shape):
    shape, word = shape.split()
    file = save(tmp_path / "c.onnx", MEANS, "float[a,b] means", taken=f"float[{shape}] images", weight=[1.0])
    model = onnx.load(str(file))
    for options in {}, {"save_as_external_data": True, "size_threshold": 0}:  # of this a copy is made, not to be named
        onnx.save(model, str(file), **options)
        said = label_as(call, file, "a,b,c")
        assert (said.status, word in said.words, str(file) in said.err) == (2, True, True), said.err


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize(
    ("nodes", "shape", "labels"),
    [
        ("y = Unsqueeze(means, two)", "1,3,1,1", "a,b,c"),
        ("y = Unsqueeze(means, one)", "n,1,1,3", "a,b,c"),
        ("y = Squeeze(means)", "3", "a,b,c"),
        ("y = Squeeze(means)", "n", "a,b,c"),
        ("row = Gemm(means, last) s = Shape(row) size = Slice(s, zero, end) y = Reshape(row, size)", "1", "a,b"),
    ],
)
def test_scores_beside_axes_of_one_are_rows(tmp_path, call, nodes, shape, labels, batch):
    numbers = {"last": [[0.0], [0.0], [9.0]], "two": [2, 3], "one": [1, 2], "zero": [0], "end": [1]}
    taken = f"float[{batch},3,{SIZE},{SIZE}] images"
    file = classifier(tmp_path / "c.onnx", nodes, f"float[{shape}] y", taken=taken, **numbers)
    more = ("--normalize", "imagenet", "--activation", "softmax" if labels == "a,b,c" else "sigmoid")
    assert label_as(call, file, labels, *more).status == 0
    assert judge(file, 255)[0] == labels[-1]  # of white, blue is the farthest from its mean


def test_a_model_of_one_picture_gets_a_batch_of_one(tmp_path, call):
    """So torchvision's detectors are exported, which take a list of pictures."""
    nodes = "batch = Unsqueeze(images, zero) y = ReduceMean<axes=[2,3], keepdims=0>(batch)"
    file = save(tmp_path / "m.onnx", nodes, "float[1,3] y", taken=f"float[3,{SIZE},{SIZE}] images", zero=[0])
    assert take(call, file, "--labels", "a,b,c", "--normalize", "imagenet", "--activation", "softmax").status == 0
    assert (manifest(file).input_size, judge(file, 255)[0]) == (SIZE, "c")


@pytest.mark.parametrize(
    ("other", "shape", "status"), [("images", f"1,3,{SIZE},{SIZE}", 0), ("mean", "1", 2)], ids=["map", "number"]
)
def test_one_score_beside_a_map_and_a_word_counts(tmp_path, call, other, shape, status):
    """So models of anomalib answer; of two numbers nobody knows which counts."""
    nodes = f"""mean = ReduceMean<axes=[1,2,3], keepdims=0>(images) pred_score = Sigmoid(mean)
        pred_label = Greater(pred_score, half) other = Relu({other})"""
    given = f"float[1] pred_score, float[{shape}] other, bool[1] pred_label"
    file = save(tmp_path / "m.onnx", nodes, given, half=0.5)
    assert label_as(call, file, "good,bad", "--activation", "none").status == status
    if status == 0:
        assert judge(file, 250)[0] == "bad"


@pytest.mark.parametrize(("step", "status"), [(0.25, 0), (0.75, 2), (2.5, 2)])
def test_a_detector_whose_scores_are_lost_in_8_bits_is_refused(tmp_path, call, step, status):
    table = np.stack([np.linspace(9, 30, 40)] * 2 + [np.linspace(5, 8, 40)] * 2 + [np.full(40, 0.3)] * 2)
    more = "q = QuantizeLinear(output0, step, zero) small = DequantizeLinear(q, step, zero)"
    numbers = {"step": step, "zero": np.uint8(0)}
    file = detector(tmp_path / "m.onnx", table, 0.01 + 0 * table, more=more, given="float[1,6,40] small", **numbers)
    said = label_as(call, file, "a,b", "--layout", "yolov8")
    assert (said.status, "nodes_to_exclude" in said.words) == (status, status == 2), said.err


def grid_apart(path, form, columns, beside="", named="boxes"):
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
    nodes = """mean = ReduceMean<keepdims=0>(images) more = Mul(lit, mean) logits = Add(table, more)
        nothing = Mul(mean, zero) shares = Add(places, nothing) """
    if beside:  # as Paddle and D-FINE do
        nodes += f"""sides = Cast<to=1>({beside}) four = Concat<axis=1>(sides, sides)
            parts = Div(shares, side) {named} = Mul(parts, four)"""
    else:
        nodes += f"{named} = Identity(shares)"
    if "shares" in form:
        boxes = boxes / SIZE
    table, lit = (part[None].astype(np.float32) for part in (scores, lit))
    if "turned" in form:
        table, lit = table.transpose(0, 2, 1), lit.transpose(0, 2, 1)
    numbers = {"table": table, "lit": lit, "places": boxes[None], "zero": 0.0, "side": float(SIZE)}
    taken = ONE_PICTURE + (f", int64[n,2] {beside}" if beside else "")
    return save(path, nodes, f"float[n,a,b] logits, float[n,a,c] {named}", taken=taken, **numbers)


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
    assert label_as(call, file, "a,b,c", *more).status == 2  # centre and size, or corners
    if "object" in form:  # its scores are as wide as its boxes
        said = label_as(call, file, "a,b,c", *more, "--layout", layout)
        assert (said.status, "--output" in said.words) == (2, True)
        more = (*more, "--output", "boxes+logits")
    said = label_as(call, file, "a,b,c", *more, "--layout", layout)
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
    said = label_as(call, file, "a,b,c", *(("--activation", "sigmoid") if "logits" in form else ()))
    assert said.status == (0 if layout else 2), said.err
    if layout:
        assert judge(file, 255)[2][0].xyxy == pytest.approx((6, 6, 22, 22), abs=1e-4)


@pytest.mark.parametrize("beside", ["orig_target_sizes", "im_shape", "scale_factor"])
def test_sizes_beside_the_picture_are_those_of_the_input(tmp_path, call, beside):
    file = grid_apart(tmp_path / "d.onnx", "corners", 3, beside)
    said = label_as(call, file, "a,b,c", "--layout", "corners")
    assert said.status == (2 if beside == "scale_factor" else 0), said.err
    if said.status == 0:
        assert not manifest(file).outputs.shares
        assert judge(file, 255)[2][0].xyxy == pytest.approx((10, 10, 18, 18), abs=1e-4)


def silent(path, columns, row, rows=300):
    """A model with NMS inside that finds one box in very bright red pictures, and else gives rows of zeros."""
    box = np.zeros((1, rows, columns), np.float32)
    box[0, 0] = row
    nodes = "redness = MatMul(means, red) is = Greater(redness, limit) one = Cast<to=1>(is) output0 = Mul(box, one)"
    numbers = {"red": [[1.0], [-0.5], [-0.5]], "limit": 0.7, "box": box}
    return classifier(path, nodes, f"float[1,{rows},{columns}] output0", **numbers)


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
    said = label_as(call, silent(tmp_path / "d.onnx", columns, row), labels)
    assert said.status == 2, said.out


def test_an_empty_table_is_read_where_its_shape_leaves_no_choice(tmp_path, call):
    file = silent(tmp_path / "d.onnx", 6, [5, 6, 20, 25, 0.9, 0])
    assert label_as(call, file, "bridge").status == 0
    assert manifest(file).outputs.layout == "end2end"
    assert label_as(call, file, "joint,bridge").status == 2
    for rows in (CELLS, 3 * (2 * 2 + 1), 3 * (4 * 4 + 2 * 2 + 1 + 1)):
        grid = silent(tmp_path / f"{rows}.onnx", 8, [15, 14, 10, 9, 0.9, 0.9, 0.1, 0.1], rows)
        assert label_as(call, grid, "a,b,c").status == 0
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
    assert label_as(call, file, "a,b").status == 2
    assert label_as(call, file, "a,b", "--layout", "yolov8").status == 0
    assert len(judge(file, 255)[2]) == 2
    cells = CELLS // 3
    grid = np.concatenate((places[:cells] * SIZE, scores[:cells]), axis=1)
    file = detector(tmp_path / "g.onnx", grid.T, lit[:cells].T)
    assert label_as(call, file, "a,b", "--layout", "yolov8").status == 0
    assert len(judge(file, 255)[2]) == 1


def test_of_more_boxes_than_any_model_chooses_those_that_overlap_count_once(tmp_path, call):
    """As EfficientDet gives its 5,000 best boxes with their labels."""
    table = np.tile([4, 8, 20, 16, 0, 0], (1100, 1)) + np.linspace(0, 0.5, 1100)[:, None] * [1, 1, 1, 1, 0, 0]
    file = detector(tmp_path / "d.onnx", table, np.tile([0, 0, 0, 0, 0.9, 0], (1100, 1)))
    assert label_as(call, file, "a,b", "--layout", "end2end").status == 0
    assert len(judge(file, 255)[2]) == 1


@pytest.mark.parametrize(("layout", "count"), [("yolov5", 2), ("yolov8", 3)])
def test_offsets_of_a_grid_are_no_boxes(layout, count):
    """As YOLOX gives them without --decode_in_inference: some few are as large as small boxes in pixels."""
    chance = np.random.default_rng(0)
    boxes, scores = chance.normal(0.5, 0.5, (6, 4, CELLS)), chance.random((6, 3, CELLS)) / 3
    boxes[:, 2:] += 2
    boxes[0, 2, :20] = 9

    def decided(boxes):
        rows = np.concatenate((boxes, scores), axis=1)
        answers = {"output": rows.transpose(0, 2, 1) if layout == "yolov5" else rows}
        return decide(answers, of_labels(count), Outputs(layout=layout))

    with pytest.raises(StoreError, match="grid"):
        decided(boxes)
    assert decided(8 * boxes).layout == layout
