"""What a network sees of a picture belongs to its weights: kept with them, and honoured wherever the expert runs."""

import json

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from coe import Inspector, Picture
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ImageError, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Preprocessing
from coe.inspector.weights_used import findings_facts
from coe.runtime.cpu import CpuDevice
from coe.runtime.slot import Slot
from coe.store import kinds
from coe.store.store import Store
from coe.store.store_reader import Snapshot
from experts.geometry import fitted_image, letterbox, to_image

SHAPES = [(60, 60), (61, 97), (200, 33), (31, 50), (480, 640), (7, 9)]
METHODS = {"area": cv2.INTER_AREA, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


def picture(height, width):
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("edge", [32, 40])
@pytest.mark.parametrize("resize", ["center-crop", "stretch"])
@pytest.mark.parametrize("sides", [None, (24, 32)])
def test_a_crop_is_that_of_torchvision(height, width, interpolation, edge, resize, sides):
    from torchvision import transforms

    mode = transforms.InterpolationMode(interpolation)
    size = edge if resize == "center-crop" else (edge, edge)
    wanted = transforms.Compose(
        [transforms.Resize(size, mode), transforms.CenterCrop(sides or 32), transforms.PILToTensor()]
    )
    seen = Preprocessing(resize=resize, shortest_edge=edge, interpolation=f"{interpolation}-antialias", sides=sides)
    ours = fitted_image(picture(height, width), 32, seen).pixels[:, : (sides or (32, 32))[0]]
    assert (torch.from_numpy(ours) == wanted(Image.fromarray(picture(height, width)))).all()


@pytest.mark.parametrize(("height", "width"), [(63, 32), (32, 65), (65, 32), (71, 67)])
@pytest.mark.parametrize(("resize", "edge"), [("center-crop", 47), ("stretch", 45), ("stretch", 47)])
def test_a_crop_rounds_down_where_hugging_face_cuts(height, width, resize, edge):
    """transformers' `center_crop`: int((height - crop) / 2); torchvision's rounds half to even."""
    image = picture(height, width)
    seen = Preprocessing(resize=resize, shortest_edge=edge, interpolation="bicubic-antialias", rounds_down=True)
    short, long = sorted((height, width))
    other = int(edge * long / short) if resize == "center-crop" else edge
    rows, columns = (edge, other) if height < width else (other, edge)
    scaled = np.asarray(Image.fromarray(image).resize((columns, rows), Image.Resampling.BICUBIC))
    top, left = (rows - 32) // 2, (columns - 32) // 2
    expected = scaled[top : top + 32, left : left + 32]
    assert (fitted_image(image, 32, seen).pixels == expected.transpose(2, 0, 1)).all()


@pytest.mark.parametrize(("height", "width"), [(464, 697), (1333, 2000), (2999, 4000), (31, 33), (900, 50)])
@pytest.mark.parametrize("resize", ["letterbox", "center-crop", "stretch"])
def test_boxes_lead_back_by_the_sides_that_the_scaled_picture_has(height, width, resize):
    seen = Preprocessing(resize=resize, interpolation="bilinear")
    prepared = fitted_image(np.zeros((height, width, 3), np.uint8), 160, seen)
    scale = (min if resize == "letterbox" else max)(160 / height, 160 / width)
    rounded = round if resize == "letterbox" else int
    rows, columns = (160, 160) if resize == "stretch" else (rounded(side * scale) for side in (height, width))
    whole = np.array([[0.25 * columns, 0.1 * rows, 0.5 * columns, 0.75 * rows]])
    shift = np.array([prepared.left, prepared.top] * 2)
    expected = [0.25 * width, 0.1 * height, 0.5 * width, 0.75 * height]
    assert to_image(whole + shift, prepared)[0] == pytest.approx(expected, rel=1e-9)


def test_boxes_lead_back_as_those_of_ultralytics():
    from ultralytics.data.augment import LetterBox
    from ultralytics.utils.ops import scale_boxes

    seen = Preprocessing(resize="letterbox", interpolation="bilinear", pad=(114, 114, 114))
    chance = np.random.default_rng(0)
    for height, width in ((464, 697), (1333, 2000), (641, 480), (333, 1000)):
        image = chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
        prepared = fitted_image(image, 160, seen)
        assert (prepared.pixels == LetterBox((160, 160), auto=False)(image=image).transpose(2, 0, 1)).all()
        boxes = np.sort(chance.uniform(0, 160, (20, 2, 2)), axis=1).reshape(20, 4)
        theirs = scale_boxes((160, 160), boxes.copy(), (height, width))
        assert to_image(boxes, prepared) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("interpolation", METHODS)
def test_a_stretch_is_one_call_of_opencv_and_its_boxes_lead_back(height, width, interpolation):
    prepared = fitted_image(picture(height, width), 32, Preprocessing(resize="stretch", interpolation=interpolation))
    method = METHODS[interpolation]
    if interpolation == "area" and not (height >= 32 and width >= 32):
        method = cv2.INTER_LINEAR
    expected = cv2.resize(picture(height, width), (32, 32), interpolation=method)
    assert (prepared.pixels == expected.transpose(2, 0, 1)).all()
    assert to_image(np.array([[0.0, 0.0, 32.0, 16.0]]), prepared)[0] == pytest.approx([0, 0, width, height / 2])


def test_boxes_of_a_centre_crop_and_of_a_stretch_that_is_cut_lead_back():
    prepared = fitted_image(picture(64, 128), 32, Preprocessing(resize="center-crop"))
    assert to_image(np.array([[0.0, 0.0, 32.0, 32.0]]), prepared)[0].tolist() == [32.0, 0.0, 96.0, 64.0]
    cut = fitted_image(picture(64, 128), 32, Preprocessing(resize="stretch", shortest_edge=64))
    assert to_image(np.array([[0.0, 0.0, 32.0, 32.0]]), cut)[0].tolist() == [32.0, 16.0, 96.0, 48.0]
    with pytest.raises(ImageError):  # of a picture that is long and thin
        fitted_image(picture(4, 90), 32, Preprocessing(resize="center-crop"))


@pytest.mark.parametrize(
    ("resize", "seen", "shown"),
    [
        ("letterbox", [8, 0, 24, 16], [0, 0, 64, 64]),
        ("stretch", [0, 0, 32, 16], [0, 0, 64, 64]),
        ("center-crop", [0, 0, 32, 16], [0, 16, 64, 48]),
    ],
)
def test_a_network_of_no_square_gets_the_picture_in_its_corner(resize, seen, shown):
    prepared = fitted_image(picture(64, 64), 32, Preprocessing(resize=resize, sides=(16, 32)))
    assert prepared.pixels.shape == (3, 32, 32)
    assert to_image(np.array([seen], float), prepared)[0].tolist() == shown


def test_channels_come_in_the_order_of_the_network_and_a_letterbox_interpolates_as_it_is_told():
    image = picture(20, 30)
    for resize in ("letterbox", "stretch", "center-crop"):
        one, other = (fitted_image(image, 32, Preprocessing(resize=resize, channels=order)) for order in ("rgb", "bgr"))
        assert (one.pixels == other.pixels[::-1]).all()
    prepared = letterbox(picture(100, 50), 40, (9, 9, 9), "bilinear")
    assert (prepared.pixels[:, :, 10:30] == cv2.resize(picture(100, 50), (20, 40)).transpose(2, 0, 1)).all()


def put(store, name, seen, kind="narrow"):
    """Put the same random weights under a name, with what they see."""
    expert = Expert(name, kind, ("ok", "bad"), 32, f"t/{name}", preprocessing=seen)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        state = kinds.resolve(kind).skeleton(expert).state_dict()
    store.put(expert.weights, kind=kind, labels=expert.labels, input_size=32, state=state, preprocessing=seen)
    return expert


@pytest.mark.parametrize("kind", ["narrow", "narrow_boxes"])
def test_experts_of_one_kind_run_side_by_side_each_with_its_own_normalisation(tmp_path, kind):
    store, resolved = Store(tmp_path), kinds.resolve(kind)
    named = {name: Preprocessing(mean=mean, std=std) for name, (mean, std) in NORMALIZATIONS.items()}
    made = {name: put(store, f"n{place}", seen, kind) for place, (name, seen) in enumerate(named.items())}
    device = CpuDevice(store, {kind: resolved}, threads=1)
    pixels = picture(32, 32)
    for name, expert in made.items():
        device.load("cpu", expert)
        module = resolved.skeleton(expert)
        module.load_state_dict(store.load(expert.weights))
        mean, std = (torch.tensor(values)[:, None, None] for values in NORMALIZATIONS[name])
        with torch.inference_mode():
            expected = module(((torch.from_numpy(pixels.transpose(2, 0, 1)).float() / 255 - mean) / std)[None])
        outputs = device.outputs("e", "cpu", expert, [resolved.preprocess(pixels, expert)])
        torch.testing.assert_close(outputs, expected)


def test_an_expert_whose_manifest_does_not_say_it_sees_what_it_always_saw(tmp_path):
    store, kind = Store(tmp_path), kinds.resolve("narrow")
    plain, said = put(store, "plain", None), put(store, "said", kind.preprocessing)
    device = CpuDevice(store, {"narrow": kind}, threads=1)
    for expert in (plain, said):
        device.load("cpu", expert)
    image = picture(50, 41)
    prepared = [kind.preprocess(image, expert) for expert in (plain, said)]
    assert (prepared[0].pixels == letterbox(image, 32, (124, 116, 104)).pixels).all()
    assert (prepared[0].pixels == prepared[1].pixels).all()
    one, other = (device.outputs("e", "cpu", expert, [prepared[0]]) for expert in (plain, said))
    assert torch.equal(one, other)
    assert store.manifest("t/plain").preprocessing is None


def test_a_manifest_keeps_the_record_and_an_older_one_has_none(tmp_path):
    store = Store(tmp_path)
    seen = Preprocessing(resize="center-crop", shortest_edge=40, channels="bgr", mean=(0.5, 0.4, 0.3))
    put(store, "x", seen)
    assert store.check("t/x").preprocessing == seen
    path = tmp_path / "t" / "x" / "manifest.json"
    path.write_text(path.read_text().replace('"bgr"', '"rgb"'))
    with pytest.raises(StoreError):  # one that was edited by hand is not that of the weights
        store.check("t/x")
    put(store, "old", None)
    path = tmp_path / "t" / "old" / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["preprocessing"], fields["outputs"]
    path.write_text(json.dumps(fields))
    assert store.check("t/old").preprocessing is None


def test_a_line_notices_that_another_preprocessing_came(tmp_path):
    store = Store(tmp_path)
    put(store, "x", Preprocessing())
    taken = store.manifest("t/x")
    put(store, "x", Preprocessing(channels="bgr"))
    with pytest.raises(StoreError, match=r"'t/x'.*preprocessing"):
        Snapshot(store, {"t/x": taken.model_copy(update={"checksum": store.manifest("t/x").checksum})}).manifest("t/x")
    assert findings_facts(taken, "fp32") != findings_facts(store.manifest("t/x"), "fp32")


BOARD = """
board: t
experts:
  x: {kind: narrow, labels: [bad, ok], input: 32}
components:
  C: {count: 1, inspect: x, then: {ok: OK, bad: NG}}
"""


def test_a_line_runs_an_expert_as_its_manifest_says(tmp_path, board_file):
    """The board names the labels in another order than the outputs: the weights know it. Pictures come as BGR."""
    store, kind, image = Store(tmp_path / "s"), kinds.resolve("narrow"), picture(50, 90)
    scores = set()
    for seen in (None, Preprocessing(resize="stretch", channels="bgr", std=(0.1, 0.1, 0.1))):
        expert = put(store, "x", seen)
        slot = Slot(kind, expert)
        slot.module.load_state_dict(store.load("t/x"))
        prepared = kind.preprocess(image, expert)
        outputs = slot.run(None, torch.from_numpy(prepared.pixels[None]))
        (expected,) = kind.postprocess(outputs, [prepared], expert)
        with Inspector(board_file(BOARD), store=store.root, profile=None, memory="200MB") as line:
            (result,) = list(line.stream([Picture(image[:, :, ::-1], "C")]))
        found = result.findings[0]
        assert (found.label, found.score) == (expected.label, pytest.approx(expected.score, abs=1e-5))
        scores.add(found.score)
    assert len(scores) == 2


def test_training_records_what_it_showed_the_network(tmp_path, call):
    for label, level in (("dark", 20), ("light", 220)):
        (tmp_path / "d" / label).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((32, 32, 3), level + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "d" / label / f"{number}.png")
    given = ("--kind", "narrow", "--input", "32", "--epochs", "1", "--no-prepare", "--store", tmp_path / "s")
    assert call("train", "t/x", "--data", tmp_path / "d", *given, command=experts_command).status == 0
    store, usual = Store(tmp_path / "s"), kinds.resolve("narrow").preprocessing
    assert store.manifest("t/x").preprocessing == usual
    put(store, "scaled", Preprocessing())
    more = call("train", "t/y", "--data", tmp_path / "d", *given, "--init", "t/scaled", command=experts_command)
    assert more.status == 0
    assert store.manifest("t/y").preprocessing == Preprocessing()


def test_a_file_that_was_exported_here_says_what_it_sees(tmp_path, call):
    seen = Preprocessing(resize="stretch", channels="bgr")
    store = Store(tmp_path / "s")
    put(store, "x", seen)
    file = tmp_path / "x.safetensors"
    assert call("show", "t/x", "--weights", file, "--store", store.root, command=experts_command).status == 0
    given = ("import", "t/y", file, "--kind", "narrow", "--no-prepare", "--store", store.root)
    assert call(*given, command=experts_command).status == 0
    stored = store.manifest("t/y")
    assert (stored.preprocessing, stored.labels, stored.input_size) == (seen, ("ok", "bad"), 32)
    assert call(*given, "--labels", "a,b", command=experts_command).status == 2
    assert call(*given, "--channels", "rgb", command=experts_command).status == 2


def test_a_classifier_of_one_label_is_refused(tmp_path, call):
    kind = kinds.resolve("narrow")
    torch.save(kind.skeleton(Expert("x", "narrow", ("bad",), 32, "t/x")).state_dict(), tmp_path / "x.pth")
    given = ("--kind", "narrow", "--labels", "bad", "--input", 32, "--no-prepare", "--store", tmp_path / "s")
    assert call("import", "t/x", tmp_path / "x.pth", *given, command=experts_command).status == 2


def test_a_checkpoint_of_ultralytics_says_what_its_network_sees(tmp_path, call):
    from experts import quiet_ultralytics

    quiet_ultralytics.prepare()
    from ultralytics.nn.tasks import DetectionModel

    network = DetectionModel("yolov5n.yaml", nc=11, verbose=False)
    network.names = {str(number): f"c{number}" for number in range(11)}
    torch.save({"model": network, "train_args": {"imgsz": 96}}, tmp_path / "x.pt")
    words = ("import", "t/x", tmp_path / "x.pt", "--kind", "yolov5n", "--no-prepare", "--store", tmp_path / "s")
    for options in (("--input", 64), ("--interpolation", "area")):
        assert call(*words, *options, command=experts_command).status == 2
    assert call(*words, command=experts_command).status == 0
    stored = Store(tmp_path / "s").manifest("t/x")
    assert stored.labels == tuple(f"c{number}" for number in range(11))
    assert (stored.input_size, stored.preprocessing) == (96, Preprocessing(interpolation="bilinear"))
