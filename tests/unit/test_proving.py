"""Pictures refute what was stated of a model, and what its first batch norm remembers proves it."""

from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from lamp import lamp, picture
from onnx import TensorProto, helper, numpy_helper, save

from coe.bring.importing import Brought
from coe.bring.proving import Proof, Shown, boxes_of, prove
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from coe.store import kinds
from coe.store.store import Store
from experts.onnx import onnx

SIZE = 32
NARROW = Expert("x", "narrow", ("ok", "bad"), SIZE, "t/x")


def seen(normalize, channels="rgb"):
    mean, std = NORMALIZATIONS[normalize]
    return Preprocessing(mean=mean, std=std, channels=channels)


def coloured(count, *, tint=(150, 90, 40)):
    """Pictures of noise around a colour."""
    chance = np.random.default_rng(0)
    return [Shown(chance.normal(tint, 30, (SIZE, SIZE, 3)).clip(0, 255).astype(np.uint8)) for _ in range(count)]


@pytest.fixture(scope="module")
def remembering():
    """A network whose norms have seen pictures in RGB with ImageNet's normalisation."""
    kind = kinds.resolve("narrow")
    expert = replace(NARROW, preprocessing=seen("imagenet"))
    torch.manual_seed(0)
    module = kind.skeleton(expert)
    module.optional, module.normalization = None, seen("imagenet").normalization
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None
    module.train()
    pixels = np.stack([kind.preprocess(one.image, expert).pixels for one in coloured(40)])
    with torch.no_grad():
        kind.forward(module, torch.from_numpy(pixels))
    return dict(module.eval().state_dict())


@pytest.mark.parametrize(
    ("line", "box"),
    [
        ("1 0.2 0.25 0.2 0.3", (10, 20, 30, 80)),
        ("1 0.1 0.1 0.3 0.1 0.3 0.4 0.1 0.4", (10, 20, 30, 80)),
        ("1 0.2 0.1 0.3 0.4 0.1 0.3\n\n", (10, 20, 30, 80)),
        ("1 0.2 0.25 0.2 0.3 0.9", (10, 20, 30, 80)),
        ("1 0.2 0.25 0.2 0.3 0.9 0.1 0.2", None),
        ("1 0.2 0.25 0.2", None),
        ("2 0.2 0.25 0.2 0.3", None),
        ("bad 0.2 0.25 0.2 0.3", None),
    ],
)
def test_a_line_of_a_yolo_file_is_a_box_or_a_polygon(tmp_path, line, box):
    (file := tmp_path / "R1.txt").write_text(line)
    if box is None:
        with pytest.raises(ConfigError, match=r"R1\.txt"):
            boxes_of(file, ("ok", "bad"), (200, 100, 3))
    else:
        ((label, corners),) = boxes_of(file, ("ok", "bad"), (200, 100, 3))
        assert (label, corners) == ("bad", pytest.approx(box))


def of_memory(state, stated, pictures):
    brought = Brought(replace(NARROW, preprocessing=stated), (), state=state)
    return prove(brought, kinds.resolve("narrow"), pictures, 0.8)


def test_a_networks_memory_proves_colours_and_normalisation_without_labels(remembering):
    assert of_memory(remembering, seen("imagenet"), coloured(6)) == Proof()
    for wrong, options in (
        (seen("0..1"), "--normalize imagenet"),
        (seen("-1..1"), "--normalize imagenet"),
        (seen("imagenet", "bgr"), "--channels rgb"),
    ):
        assert options in of_memory(remembering, wrong, coloured(6)).fault
    few = of_memory(remembering, seen("imagenet"), coloured(5))
    assert (few.fault, bool(few.unproven)) == ("", True)
    other = of_memory(remembering, seen("imagenet"), coloured(6, tint=(10, 20, 240)))
    assert (other.fault, "other parts" in other.unproven) == ("", True)


def colours(path):
    """A classifier of red and blue pictures that takes values from 0 to 1, and is not sure of bright ones."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Clip", ["means", "least", "most"], ["clipped"]),
        helper.make_node("MatMul", ["clipped", "weights"], ["y"]),
    ]
    numbers = {"least": 0.0, "most": 1.0, "weights": [[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]]}
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    constants = [numpy_helper.from_array(np.float32(value), name) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "g", [images], [scores], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    means = Outputs(name="y", layout="scores", activation="softmax")
    expert = Expert("x", "onnx", ("red", "blue"), SIZE, "t/x", preprocessing=seen("0..1"), outputs=means)
    return Brought(expert, (), file=path)


def reds_and_blues(each=10):
    return [
        replace(one, label=label)
        for label, tint in (("red", (150, 90, 90)), ("blue", (90, 90, 150)))
        for one in coloured(each, tint=tint)
    ]


def test_labelled_pictures_refute_what_was_stated(tmp_path):
    brought = colours(tmp_path / "c.onnx")
    right = prove(brought, onnx, reds_and_blues(), 0.8)
    assert right.fault == ""
    stated = [
        (replace(brought.expert, preprocessing=seen("0..1", "bgr")), "--channels rgb"),
        (replace(brought.expert, labels=("blue", "red")), "--labels red,blue"),
        (replace(brought.expert, preprocessing=seen("0..255")), "--normalize"),
    ]
    for expert, options in stated:
        assert options in prove(replace(brought, expert=expert), onnx, reds_and_blues(), 0.0).fault
    mixed = [replace(one, label="red") for one in reds_and_blues(4)][:-1] + reds_and_blues(4)[-1:]
    assert "--right" in prove(brought, onnx, mixed, 0.8).fault
    assert "all pictures" in prove(brought, onnx, reds_and_blues(20)[:20], 0.8).fault


def test_too_few_pictures_or_uneven_ones_prove_nothing(tmp_path):
    brought = colours(tmp_path / "c.onnx")
    for pictures in (reds_and_blues(9), reds_and_blues(20)[:25], coloured(30)):
        proof = prove(brought, onnx, pictures, 0.8)
        assert (proof.fault, "not proven" in proof.unproven) == ("", True)


def test_boxes_tell_the_layout_of_a_detector(tmp_path):
    """It gives two corners of one box; taken for centre and size, that lies elsewhere."""
    table = np.zeros((1, 5, 21), np.float32)
    table[0, :, 3] = [4, 6, 14, 18, 0.9]
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "none"], ["zero"]),
        helper.make_node("Add", ["table", "zero"], ["y"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    boxes = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 21])
    constants = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.float32(0), "none")]
    graph = helper.make_graph(nodes, "g", [images], [boxes], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "d.onnx")
    pictures = [replace(one, boxes=(("joint", (4, 6, 14, 18)),)) for one in coloured(6)]
    faults = {}
    for layout in ("corners", "yolov8"):
        means = Outputs.model_validate({"name": "y", "layout": layout})
        expert = Expert("x", "onnx", ("joint",), SIZE, "t/x", preprocessing=seen("0..1"), outputs=means)
        faults[layout] = prove(Brought(expert, (), file=tmp_path / "d.onnx"), onnx, pictures, 0.8).fault
    assert faults["corners"] == ""
    assert "--layout corners" in faults["yolov8"]
    means = Outputs.model_validate({"name": "y", "layout": "corners"})
    swapped = replace(expert, labels=("bridge",), outputs=means)  # its pictures show joints
    fault = prove(Brought(swapped, (), file=tmp_path / "d.onnx"), onnx, pictures, 0.8).fault
    assert "0.00 (IoU)" in fault


@pytest.fixture
def run(tmp_path, call):
    colours(tmp_path / "c.onnx")
    given = ("import", "b/x", tmp_path / "c.onnx", "--labels", "red,blue", "--resize", "letterbox", "--no-prepare")
    given += ("--activation", "softmax", "--store", tmp_path / "s")
    return lambda *options: call(*given, *options, command=experts_command)


def test_import_refuses_what_pictures_refute_unless_the_user_insists(run, tmp_path):
    for number, one in enumerate(reds_and_blues()):
        path = tmp_path / "seen" / one.label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), one.image[:, :, ::-1])
    wrong = ("--channels", "bgr", "--normalize", "0..1", "--images", tmp_path / "seen")
    said = run(*wrong)
    assert (said.status, "--channels rgb" in said.words, (tmp_path / "s").exists()) == (2, True, False)
    said = run(*wrong, "--force")
    assert (said.status, "--channels rgb" in (Store(tmp_path / "s").manifest("b/x").unproven or "")) == (0, True)
    said = run("--channels", "rgb", "--normalize", "0..1", "--images", tmp_path / "seen")
    assert (said.status, "20 of 20 as labelled" in said.out) == (0, True)


def test_without_pictures_the_manifest_says_that_nothing_is_proven(run, tmp_path):
    said = run("--channels", "rgb", "--normalize", "0..1")
    assert (said.status, "not proven" in said.words) == (0, True)
    assert "not proven" in Store(tmp_path / "s").manifest("b/x").unproven
    for number, one in enumerate(coloured(6)):
        (tmp_path / "plain").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "plain" / f"{number}.png"), one.image)
    said = run("--channels", "rgb", "--normalize", "0..1", "--images", tmp_path / "plain")
    assert (said.status, "no picture has a label" in said.words) == (0, True)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_person_confirms_what_a_model_says_of_pictures_without_labels(run, tmp_path, monkeypatch, is_right):
    (tmp_path / "plain").mkdir()
    for number, one in enumerate(reds_and_blues(2)):
        cv2.imwrite(str(tmp_path / "plain" / f"{number}.png"), one.image[:, :, ::-1])
    stated = ("--channels", "rgb", "--normalize", "0..1", "--sheet", tmp_path / "sheet.png")
    assert run(*stated).status == 2  # of which pictures?
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", lambda *_, **__: is_right)
    assert run(*stated, "--images", tmp_path / "plain").status == 0
    assert cv2.imread(str(tmp_path / "sheet.png")).shape[2] == 3
    assert (Store(tmp_path / "s").manifest("b/x").unproven == "") is is_right


def test_boxes_of_yolo_are_read_beside_their_pictures(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    for number in range(6):
        picture(tmp_path / "set" / "images" / f"{number}.png", 20)
    (tmp_path / "set" / "labels").mkdir()
    (tmp_path / "set" / "labels" / "0.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    options = ("--channels", "rgb", "--normalize", "0..1", "--images", tmp_path / "set")
    said = run(*options)  # a classifier finds no box
    assert (said.status, "0.00 (IoU)" in said.words) == (2, True)
    for number in ("7", "-1", "0.5"):  # of two labels
        (tmp_path / "set" / "labels" / "1.txt").write_text(f"{number} 0.5 0.5 0.2 0.2\n")
        said = run(*options)
        assert (said.status, "1.txt" in said.words) == (2, True)
    (tmp_path / "set" / "labels" / "1.txt").write_text("2 0.5 0.5 0.2 0.2\n")
    (tmp_path / "set" / "data.yaml").write_text("train: images\nnames: [red, green, blue]\n")
    said = run(*options)  # 2 is blue
    assert (said.status, "(IoU)" in said.words) == (2, True)
