import json
import os
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_files import written
from onnxruntime import InferenceSession
from PIL import Image

from coe.bring import facts
from coe.core import Expert
from coe.errors import ConfigError, NoInt8, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from experts.normalising import DEVIATION, MEAN
from experts.onnx import onnx as kind
from experts.onnx_reading import bundled

LOGITS = Outputs(name="means", layout="scores", activation="softmax")
IMAGENET = Preprocessing(mean=MEAN, std=DEVIATION)
COLOUR = Expert("colour", "onnx", ("red", "green", "blue"), 32, "b/colour", preprocessing=IMAGENET, outputs=LOGITS)
JOINT = Expert("joint", "onnx", ("joint", "bridge"), 32, "b/joint", frozenset({"bridge"}))


MEANS = "numbers = Cast<to=1>(images) means = ReduceMean<axes=[2,3], keepdims=0>(numbers)"
PICTURES = "float[n,3,32,32] images"


def classifier(path, batch="n", of="float", size=32):
    """Returns the mean of each channel as its logit."""
    return written(path, f"{of}[{batch},3,{size},{size}] images", MEANS, f"float[{batch},3] means")


def detector(path, candidates):
    """Returns the same candidates for every image of a batch of one."""
    nodes = "mean = ReduceMean<keepdims=0>(images) nothing = Mul(mean, zero) output0 = Add(candidates, nothing)"
    given = f"float[1,{','.join(map(str, np.shape(candidates)))}] output0"
    candidates = np.asarray(candidates, np.float32)[None]
    return written(path, "float[1,3,32,32] images", nodes, given, zero=0.0, candidates=candidates)


def run(path, expert, *images):
    prepared = [kind.preprocess(image, expert) for image in images]
    outputs = kind.open(path, expert, 1).run(np.stack([one.pixels for one in prepared]))
    return outputs, kind.postprocess(outputs, prepared, expert)


def painted(channel):
    image = np.zeros((32, 32, 3), np.uint8)
    image[:, :, channel] = 255
    return image


def test_pictures_with_more_boxes_and_fewer_have_one_table(tmp_path):
    nodes = """mean = ReduceMean<keepdims=0>(images) some = Mul(mean, most) whole = Cast<to=7>(some)
        count = Reshape(whole, one) output0 = Slice(candidates, none, count, one)"""
    numbers = {"most": 3.0, "one": [1], "none": [0]}
    rows = np.float32([[at, at, at + 9, at + 9, 0.9, 1] for at in (1, 11, 21)])[None]
    taken, path = "float[1,3,32,32] images", tmp_path / "d.onnx"
    written(path, taken, nodes, "float[1,N,6] output0", candidates=rows, **numbers)
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
    outputs, _ = run(classifier(tmp_path / "c.onnx", of="uint8"), COLOUR, painted(1))
    assert outputs.tolist() == [[0.0, 255.0, 0.0]]


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


def test_outputs_that_do_not_fit_the_labels_name_the_shapes(tmp_path):
    with pytest.raises(StoreError, match=r"\(6, 9, 9\).*\(n, 2\), \(n, 6, N\) or \(n, N, 7\)"):
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
        nodes, path = MEANS + " y = MatMul(means, weights)", tmp_path / folder / "x.onnx"
        written(path, PICTURES, nodes, "float[n,3] y", weights=np.ones((3, 3)))
        onnx.save(onnx.load(path), str(path), save_as_external_data=True, location="x.data", size_threshold=0)
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "from" / "x.onnx"
    for opened in (lambda: kind.open(path, COLOUR, 1), lambda: kind.open_bytes(path.read_bytes(), path, COLOUR, 1)):
        with pytest.raises(StoreError, match="with the weights in this one file"):
            opened()


def test_a_file_that_is_no_model_or_takes_no_image_is_told(tmp_path):
    path = tmp_path / "x.onnx"
    for raw in (b"", b"no model", b"\x08\x07"):
        path.write_bytes(raw)
        with pytest.raises(StoreError, match=r"x\.onnx: not an ONNX model"):
            kind.open(path, COLOUR, 1)
    written(path, "float[n,4,32,32] images", "y = Identity(images)", "float[n,4,32,32] y")
    with pytest.raises(StoreError, match=r"\(n, 3, height, width\)"):
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


CAFFE = np.reshape([103.9, 116.8, 123.7], (1, 3, 1, 1))
COLOURS = {"mean": np.reshape(MEAN, (1, 3, 1, 1)), "deviation": np.reshape(DEVIATION, (1, 3, 1, 1))}
EDGES = {"edges": [0, 0, 1, 1, 0, 0, 1, 1]}


def beginning_with(path, nodes, **numbers):
    """A classifier whose first operators make `x` of its pictures."""
    return written(
        path, PICTURES, f"{nodes} means = ReduceMean<axes=[2,3], keepdims=0>(x)", "float[n,3] means", **numbers
    )


@pytest.mark.parametrize(
    ("nodes", "numbers", "seen"),
    [
        ("a = Div(images, c) b = Sub(a, mean) x = Div(b, deviation)", COLOURS | {"c": 255.0}, "0..255"),
        ("a = Sub(images, m) x = Div(a, c)", {"m": CAFFE, "c": 58.0}, "0..255"),
        ("x = Mul(images, c)", {"c": 1 / 255}, "0..255"),
        ("a = Div(images, c) x = Sub(a, one)", {"c": 127.5, "one": 1.0}, "0..255"),
        ("a = Sub(images, mean) x = Div(a, deviation)", COLOURS, "0..1"),
        ("a = Mul(images, c) x = Sub(a, one)", {"c": 2.0, "one": 1.0}, "0..1"),
        ("x = Sub(images, c)", {"c": 0.0}, ""),
        ("x = Add(images, c)", {"c": 1e-6}, ""),
        ("x = Div(images, c)", {"c": 1.0}, ""),
        ("x = Max(images, c)", {"c": 0.0}, ""),
        ("x = Identity(images)", {}, ""),
        # Behind what changes no number.
        ("turned = Gather<axis=1>(images, bgr) x = Sub(turned, m)", {"bgr": [2, 1, 0], "m": CAFFE}, "0..255"),
        ("wide = Pad(images, edges) x = Div(wide, c)", EDGES | {"c": 255.0}, "0..255"),
        ("same = Sub(images, least) x = Div(same, c)", {"least": 0.0, "c": 255.0}, "0..255"),
        ("m = Unsqueeze(plain, axes) x = Sub(images, m)", {"plain": CAFFE.ravel()[::-1], "axes": [1, 2]}, "0..255"),
        ("x = Sub(images, picture)", {"picture": np.full((1, 3, 32, 32), 117.0)}, "0..255"),
        ("c = Constant<value_float=255.0>() x = Div(images, c)", {}, "0..255"),
        ("wide = Pad(images, edges) x = Relu(wide)", EDGES, ""),
        ("cut = Clip(images, c, m) a = Sub(cut, mean) x = Div(a, deviation)", COLOURS | {"c": 0.0, "m": 1.0}, "0..1"),
        # Beside them stands no number.
        *[(f"x = {one}", {}, "") for one in ("Add(images, images)", "Sub(images, images)")],
        *[(f"x = {one}", {"none": np.zeros((0, 1, 1, 1))}, "") for one in ("Add(images, none)", "Mul(images, none)")],
        ("x = Clip(images, none, least)", {"none": np.zeros((0, 1, 1, 1)), "least": 0.0}, ""),
        ('text = Constant<value_string="7">() seven = Cast<to=1>(text) x = Sub(images, seven)', {}, ""),
    ],
)
def test_a_model_that_normalises_its_pictures_itself_gets_them_as_it_takes_them(tmp_path, nodes, numbers, seen):
    said = kind.read(beginning_with(tmp_path / "c.onnx", nodes, **numbers))
    assert (said.seen.get("mean"), said.seen.get("std")) == (NORMALIZATIONS[seen] if seen else (None, None))
    if seen == "0..255":
        with pytest.raises(ConfigError, match="pixels"):
            facts.agree(COLOUR, said, kind, facts.wishes({"normalize": "imagenet"}))


@pytest.mark.parametrize("of", ["float", "float16", "uint8"])
@pytest.mark.parametrize("shape", ["n,32,32,1", "n,1,32,32"])
def test_a_model_of_grey_pictures_gets_grey_of_their_colours_in_bytes_as_pillow_rounds_it(tmp_path, of, shape):
    nodes = """numbers = Cast<to=1>(images) scaled = Mul(numbers, share)
        mean = ReduceMean<axes=[1,2,3], keepdims=0>(scaled) row = Unsqueeze(mean, axis)
        means = Concat<axis=1>(row, row, row)"""
    numbers = {"share": 1.0 if of == "uint8" else 1 / 255, "axis": [1]}
    path = written(tmp_path / "grey.onnx", f"{of}[{shape}] images", nodes, "float[n,3] means", **numbers)
    said = kind.read(path)
    assert said.remarks
    expert = replace(COLOUR, preprocessing=Preprocessing(**said.seen))
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (10, 200, 30)]
    pictures = np.array(colours, np.uint8)[:, :, None, None] * np.ones((1, 3, 32, 32), np.uint8)
    answers = kind.open(path, expert, 1).run(pictures)[:, 0]
    if of == "uint8":
        grey = [Image.new("RGB", (1, 1), colour).convert("L").getpixel((0, 0)) for colour in colours]
        assert answers.tolist() == grey
        with pytest.raises(NoInt8):
            kind.network(path, replace(expert, outputs=Outputs(name="means", layout="scores", activation="none")))
    else:
        assert (said.seen["mean"], said.seen["std"]) == NORMALIZATIONS["0..255"]
        assert answers[:3] == pytest.approx([0.299, 0.587, 0.114], abs=1e-3)


@pytest.mark.parametrize(("shape", "axes"), [("n,16,32,3", "1,2"), ("n,3,16,32", "2,3")])
def test_a_model_whose_input_is_not_square_sees_the_whole_picture_as_it_takes_it(tmp_path, shape, axes):
    nodes = f"means = ReduceMax<axes=[{axes}], keepdims=0>(images)"
    path = written(tmp_path / "c.onnx", f"float[{shape}] images", nodes, "float[n,3] means")
    foreign = kind.read(path)
    assert (foreign.input_size, foreign.seen) == (32, {"sides": (16, 32)})
    expert = replace(COLOUR, preprocessing=Preprocessing(resize="stretch", sides=(16, 32)))
    image = np.random.default_rng(0).integers(0, 200, (64, 64, 3), np.uint8)
    image[48:, 40:], image[:8] = 255, 0  # the brightest lies at the lower right corner
    outputs, _ = run(path, expert, image)
    assert outputs.tolist() == [[1.0, 1.0, 1.0]]


def test_a_model_with_its_channels_last_answers_as_one_with_its_channels_first(tmp_path):
    first, nodes = classifier(tmp_path / "first.onnx"), "means = ReduceMean<axes=[1,2], keepdims=0>(images)"
    last = written(tmp_path / "last.onnx", "float[n,32,32,3] images", nodes, "float[n,3] means")
    pictures = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32)).astype(np.uint8)
    answers = [kind.open(path, COLOUR, 1).run(pictures) for path in (first, last)]
    assert answers[1] == pytest.approx(answers[0], abs=1e-5)
    session = InferenceSession(kind.network(last, COLOUR).SerializeToString())
    assert session.run(None, {"images": pictures})[0] == pytest.approx(answers[0], abs=1e-5)


def with_metadata(path, **entries):
    model = onnx.load(str(path))
    helper.set_model_props(model, entries)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("entry", "normalization"), [("float", ((0.5,) * 3, (0.25,) * 3)), ("uint8", NORMALIZATIONS["0..255"])]
)
def test_what_hugging_face_writes_beside_a_model_counts(tmp_path, entry, normalization):
    (folder := tmp_path / "onnx").mkdir()
    classifier(folder / "model.onnx", size="side", of=entry)
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
    inside = kind.read(with_metadata(beginning_with(tmp_path / "i.onnx", "x = Mul(images, c)", c=1 / 255), **entries))
    assert (inside.seen["mean"], inside.seen["std"]) == NORMALIZATIONS["0..255"]


def test_what_openvino_says_of_channels_and_sizes_counts(tmp_path):
    words = {"standard": "stretch", "fit_to_window_letterbox": "letterbox", "crop": "center-crop"}
    path = classifier(tmp_path / "c.onnx")
    for word, resize in words.items():
        entries = {"model_info resize_type": word, "model_info pad_value": "0"}
        assert kind.read(with_metadata(path, **entries)).seen == {"resize": resize, "pad": (0, 0, 0)}
    said = kind.read(with_metadata(path, **{"model_info reverse_input_channels": "True"}))
    assert "reverse_input_channels" in said.unsaid["channels"]


def test_what_nobody_says_is_asked_for_at_once(tmp_path):
    said = kind.read(with_metadata(classifier(tmp_path / "c.onnx"), mean="[0.5, 0.5, 0.5]", names="a,b,c"))
    agreed = facts.agree(replace(COLOUR, labels=(), input_size=0), said, kind, facts.Wishes())
    assert agreed.missing.keys() == {"labels", "resize", "channels", "mean"}
    asked = facts.wishes({"normalize": "-1..1", "resize": "letterbox", "channels": "bgr"})
    agreed = facts.agree(COLOUR, said, kind, asked)
    assert (agreed.missing, agreed.expert.preprocessing.normalization) == ({}, NORMALIZATIONS["-1..1"])


@pytest.mark.parametrize(("scale", "seen"), [(255, "0..255"), (1, "")])
def test_a_batch_norm_of_three_channels_says_the_range_of_bytes(tmp_path, scale, seen):
    numbers = {"one": np.ones(3), "none": np.zeros(3), "m": np.array(MEAN) * scale, "v": np.ones(3) * scale}
    said = kind.read(beginning_with(tmp_path / "c.onnx", "x = BatchNormalization(images, one, none, m, v)", **numbers))
    assert said.seen.get("mean") == (NORMALIZATIONS[seen][0] if seen else None)


def test_a_classifier_whose_first_output_is_the_number_of_a_label_is_one(tmp_path):
    nodes, given = MEANS + " best = ReduceMax<axes=[1], keepdims=0>(means)", "float[n] best, float[n,3] means"
    assert kind.settle(written(tmp_path / "c.onnx", PICTURES, nodes, given), COLOUR).name == "means"


# Weights in other files: carried into the store as one file, and read from nowhere else


def in_two_files(path):
    """Write a model of one matrix, whose numbers lie in another file."""
    matrix = np.arange(32, dtype=np.float32).reshape(4, 8)
    whole = onnx.load(written(path, "float[n,4] x", "y = MatMul(x, w)", "float[n,8] y", w=matrix))
    onnx.save(whole, str(path), save_as_external_data=True, location="x.onnx.data", size_threshold=0)
    return path


def placed(path, **entries):
    """Say other places of the numbers in a model's file."""
    made = onnx.load(str(path), load_external_data=False)
    (tensor,) = made.graph.initializer
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(made.SerializeToString())


def test_one_file_holds_what_two_held_and_any_other_stays_as_it_is(tmp_path):
    path = in_two_files(tmp_path / "x.onnx")
    (out := tmp_path / "out").mkdir()
    whole = bundled(path, out)
    assert whole == out / "x.onnx"
    (said,) = InferenceSession(whole.read_bytes()).run(None, {"x": np.ones((1, 4), np.float32)})
    assert said.tolist() == [[48, 52, 56, 60, 64, 68, 72, 76]]
    (other := tmp_path / "no.onnx").write_bytes(b"no model")
    assert [bundled(one, tmp_path) for one in (whole, other)] == [whole, other]


@pytest.mark.parametrize(
    "entries",
    [
        *[{"location": place} for place in ("../secret", "/etc/hostname", "sub/../../secret", "link")],
        *[{"offset": "-8"}, {"length": "many"}, {"offset": "1000000"}, {"length": str(1 << 60)}],
    ],
)
def test_places_outside_the_folder_or_that_are_none_are_not_read(tmp_path, entries):
    (tmp_path / "secret").write_bytes(bytes(1000))
    (home := tmp_path / "home").mkdir()
    path = in_two_files(home / "x.onnx")
    os.symlink(tmp_path / "secret", home / "link")
    placed(path, **entries)
    with pytest.raises(StoreError, match=r"x\.onnx"):
        bundled(path, tmp_path)


def test_files_that_are_missing_or_too_short_are_refused(tmp_path):
    path, data = in_two_files(tmp_path / "x.onnx"), tmp_path / "x.onnx.data"
    shorter = data.read_bytes()[:-4]
    for spoil, words in ((lambda: data.write_bytes(shorter), "cannot be read"), (data.unlink, "no file")):
        spoil()
        with pytest.raises(StoreError, match=words):
            bundled(path, tmp_path)
    os.mkfifo(data)
    with pytest.raises(StoreError, match="no file"):
        bundled(path, tmp_path)
