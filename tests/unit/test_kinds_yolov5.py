import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from trainings import plan, silent

from coe.bring.importing import check_layers, unwrapped
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.pictures.photographs import Purpose, by_purpose
from coe.store.kinds import ExpertInput, resolve
from experts import yolo_images, yolo_labels
from experts.checkpoint import read_checkpoint
from experts.yolov5 import YoloV5
from experts.yolov5_train import read_data_set, train

JOINT = Expert("joint", "yolov5n", ("joint", "bridge"), 64, "b/joint", frozenset({"bridge"}))
KIND = YoloV5("n")
NOISE = cv2.imencode(".jpg", np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))[1].tobytes()
"""The file of a picture of noise."""


def data_set(root, *, val=True, images=6):
    rng = np.random.default_rng(0)
    for split in ("train", "val") if val else ("train",):
        (root / "images" / split).mkdir(parents=True)
        (root / "labels" / split).mkdir(parents=True)
        for index in range(images):
            image = np.full((64, 64, 3), 40, np.uint8)
            x, y = rng.integers(8, 40, 2)
            image[y : y + 14, x : x + 14] = 220
            cv2.imwrite(str(root / "images" / split / f"{index}.png"), image)
            line = f"{index % 2} {(x + 7) / 64} {(y + 7) / 64} {14 / 64} {14 / 64}\n"
            (root / "labels" / split / f"{index}.txt").write_text(line)
    told = {"path": ".", "train": "images/train", "names": ["joint", "bridge"]} | ({"val": "images/val"} if val else {})
    (root / "data.yaml").write_text(yaml.safe_dump(told))
    return root / "data.yaml"


def few(data, work, **more):
    return plan(data, work, batch=3, **more)


def watch_convolutions(monkeypatch, look):
    conv2d = torch.nn.functional.conv2d

    def watched(pixels, *given, **named):
        result = conv2d(pixels, *given, **named)
        look(pixels, result)
        return result

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)


def test_all_four_are_found_and_a_batch_gives_a_finding_an_image_in_its_pixels():
    for size in "nsml":
        assert resolve(f"experts.yolov5:yolov5{size}").name == f"yolov5{size}"
    module = KIND.skeleton(JOINT)
    prepared = [KIND.preprocess(np.zeros((50, 80, 3), np.uint8), JOINT) for _ in range(2)]
    images = torch.stack([torch.from_numpy(one.pixels) for one in prepared])
    with torch.inference_mode():
        outputs = KIND.forward(module, images)
        findings = KIND.postprocess(outputs, prepared, JOINT)
    assert outputs.shape == (2, 4 + 2, 8 * 8 + 4 * 4 + 2 * 2)
    assert [finding.label for finding in findings] == ["none", "none"]
    outputs = torch.zeros(1, 6, 3)
    outputs[0, :, 1] = torch.tensor([32.0, 32.0, 16.0, 8.0, 0.1, 0.9])
    prepared = ExpertInput(np.zeros((3, 64, 64), np.uint8), height=64, width=128, scale=0.5, left=0.0, top=16.0)
    (finding,) = KIND.postprocess(outputs, [prepared], JOINT)
    assert (finding.label, round(finding.score, 3)) == ("bridge", 0.9)
    assert finding.boxes[0].xyxy == (48.0, 24.0, 80.0, 40.0)


def test_training_returns_the_skeletons_tensors_and_held_out_measures(tmp_path):
    seen = []
    work = tmp_path / "work"
    trained = KIND.train(JOINT, few(data_set(tmp_path / "d"), work), lambda *words: seen.append(words))
    assert [(done, of) for done, of, _ in seen] == [(1, 1)]
    assert {"map50", "precision", "recall"} <= set(trained.metrics)
    assert trained.metrics["smallest_px"] == pytest.approx(14), "of an input of 64 pixels"
    module = KIND.skeleton(JOINT)
    module.load_state_dict(trained.state)
    assert all(value.is_contiguous() for value in trained.state.values())
    assert all(trained.state[name].dtype == value.dtype for name, value in module.state_dict().items())
    assert not [path for path in work.rglob("*") if path.suffix in (".pt", ".pth", ".pkl")]
    again = few(tmp_path / "d" / "data.yaml", tmp_path / "again", init=work / "best.safetensors", learning_rate=0.0)
    again = KIND.train(JOINT, again, silent)
    assert set(again.state) == set(trained.state)
    assert (again.metrics["map50"] < 0.05, again.metrics["held_out"] > 0, bool(again.unproven)) == (True,) * 3


@pytest.mark.parametrize("bf16", [False, True])
def test_a_detector_computes_products_as_planned(tmp_path, monkeypatch, bf16):
    types = []
    watch_convolutions(monkeypatch, lambda _, result: types.append(result.dtype) if result.requires_grad else None)
    made = few(data_set(tmp_path / "d", images=3), tmp_path / "w", bf16=bf16)
    trained = KIND.train(JOINT, made, silent)
    assert (torch.bfloat16 in types) is bf16
    assert {value.dtype for value in trained.state.values() if value.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize(
    ("bits", "samples", "least"),
    [
        (12, lambda grey: grey.astype(np.uint16) << 4, 0.0),  # 12 bits in 16
        (None, lambda grey: np.dstack([grey, grey, grey, (grey > 200).astype(np.uint8) * 255]), 0.4),  # over white
    ],
)
def test_a_detector_learns_from_the_pixels_that_are_judged(tmp_path, monkeypatch, bits, samples, least):
    data = data_set(tmp_path / "d", images=3)
    for path in (tmp_path / "d" / "images").rglob("*.png"):
        cv2.imwrite(str(path), samples(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)))
    seen = []
    watch_convolutions(monkeypatch, lambda pixels, _: seen.append(pixels.detach().float()))
    still = {"hsv_v": 0.0, "scale": 0.0, "translate": 0.0}
    train(JOINT, few(data, tmp_path / "w", bits=bits), silent, still)
    inputs = [one for one in seen if one.shape[1] == 3]
    assert all(one.max() > 0.8 and one.min() >= least for one in inputs if one.max() > 0)
    assert any(one.max() > 0 for one in inputs)


def test_many_held_out_images_are_halved_and_a_test_part_measures(tmp_path):
    def parts(path):
        read = yolo_images.read(JOINT, few(path, tmp_path / "w"))
        assert len({one.path for one in read}) == len(read)
        return [len(rows) for rows in by_purpose(read).values()]

    data = data_set(tmp_path / "d", images=4)
    trained, held = parts(data)[0], parts(data)[2]
    assert parts(data) == [trained, 0, held], "few images choose no epoch"
    folder = tmp_path / "d" / "images" / "val"
    for number in range(100, 100 + 50 - held):
        shutil.copy(next(folder.iterdir()), folder / f"{number}.jpg")
    assert parts(data) == [trained, 25, 25]
    data.write_text(data.read_text() + "test: images/train\n")
    assert len(by_purpose(yolo_images.read(JOINT, few(data, tmp_path / "w")))[Purpose.TEST]) == trained


def test_what_is_read_of_a_data_set_and_what_is_refused_in_it(tmp_path):
    data = data_set(tmp_path / "d")
    data.write_text(data.read_text() + f"download: bash -c 'touch {tmp_path}/ran'\n")
    assert "download" not in read_data_set(few(data, tmp_path / "w"), JOINT)[0]
    data.write_text("train: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError, match="tag"):
        read_data_set(few(data, tmp_path / "w"), JOINT)
    data = data_set(tmp_path / "few", val=False, images=1)
    (tmp_path / "few" / "images" / "train" / "shot 2").write_bytes(b"\xff\xd8\xff\0")
    with pytest.raises(ConfigError, match="shot 2"):
        read_data_set(few(data, tmp_path / "w"), JOINT)
    data = data_set(tmp_path / "damaged")
    (tmp_path / "damaged" / "images" / "train" / "6.jpg").write_bytes(NOISE[:-900] + b"\xff\xd9")
    with pytest.raises(ConfigError, match=r"6\.jpg' is damaged"):
        read_data_set(few(data, tmp_path / "w"), JOINT)
    data = data_set(tmp_path / "one", val=False, images=10)
    first, _ = read_data_set(few(data, tmp_path / "w", held_out=0.3), JOINT)
    learned, held = (Path(first[split]).read_text().split() for split in ("train", "val"))
    assert (len(learned), len(held)) == (7, 3)
    assert not set(learned) & set(held)
    with pytest.raises(ConfigError, match="plan it with 'bf16'"):
        train(JOINT, few(data, tmp_path / "w"), silent, {"amp": True})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: images/train\nnames: [joint, other]\n", "same order"),
        ("train: nowhere\nnames: [joint, bridge]\n", "nowhere"),
        ("train: images/train\nnc: 3\nnames: [joint, bridge]\n", "'nc' says 3"),
        (None, "obj.names"),
    ],
)
def test_a_data_set_that_does_not_fit_is_told(tmp_path, text, words):
    data = data_set(tmp_path / "d")
    data.write_text(text or "")
    with pytest.raises(ConfigError, match=words):
        read_data_set(few(data if text else tmp_path / "d", tmp_path / "w"), JOINT)


def test_files_of_labels_that_would_be_passed_over_are_refused_at_once(tmp_path):
    data = data_set(tmp_path / "d")
    wrong = {"1": "2 0.5 0.5 0.1 0.1", "3": "0 32 32 8 8", "4": "0,0.5,0.5,0.1,0.1", "5": "joint 0.5 0.5 0.1 0.1"}
    for name, line in wrong.items():
        (tmp_path / "d" / "labels" / "val" / f"{name}.txt").write_text(line)
    with pytest.raises(ConfigError) as refused:
        KIND.train(JOINT, few(data, tmp_path / "w"), silent)
    assert [f"val/{name}.txt" in str(refused.value) for name in "012345"] == [False, True, False, True, True, True]


def test_images_without_a_file_of_labels_are_told(tmp_path):
    data = data_set(tmp_path / "d", images=3)
    (tmp_path / "d" / "labels" / "train" / "1.txt").unlink()
    for name in ("images", "labels"):
        (tmp_path / "d" / name).rename(tmp_path / "d" / name.title())
    data.write_text(data.read_text().replace("images", "Images"))
    trained = KIND.train(JOINT, few(data, tmp_path / "w"), silent)
    assert [("train/1.png" in one, "0.png" in one) for one in trained.remarks] == [(True, False)]
    assert "recall_at_least" in trained.metrics  # there were objects to find


def test_a_data_set_in_which_nothing_is_marked_is_refused(tmp_path):
    data, labels = data_set(tmp_path / "d", images=3), tmp_path / "d" / "labels"
    for file in (labels / "train").iterdir():
        file.write_text("")
    for folder in (labels, tmp_path / "d" / "labelTxt"):
        labels.rename(folder)
        with pytest.raises(ConfigError, match="'labels'"):
            KIND.train(JOINT, few(data, tmp_path / "w"), silent)


@pytest.mark.parametrize(
    ("images", "labels"),
    [("Images/train", "Labels/train"), ("IMAGES", "labels"), ("images", "images"), ("images/obj_train_data",) * 2],
)
def test_files_of_labels_are_found_as_programs_lay_them(tmp_path, images, labels):
    image, wanted = tmp_path / images / "0.a.png", tmp_path / labels / "0.a.txt"
    wanted.parent.mkdir(parents=True)
    assert yolo_images.labels_of(image) == wanted


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("path: ../datasets/d\ntrain: images/train\nvalid: images/val", []),
        ("train: ../images/train\nval: ../images/val\nnc: 2", []),  # as Roboflow names them
        ("path: C:\\Users\\j\\d\ntrain: images\\train\nval: images\\val", []),
        ("train: /content/d/images/train\nvalidation: /content/d/images/val", []),
        ("train: list.txt\nval: images/val", ["./images/train/0.png", "\ufeff"]),
        ("train: list.txt\nval: images/val", ["data/images/train/0.png"]),
        ("train: list.txt\nval: images/val", ["C:\\d\\images\\train\\0.png\r"]),
    ],
)
def test_images_are_found_where_they_lay_on_another_machine(tmp_path, text, lines):
    data = data_set(tmp_path / "d", images=3)
    data.write_text(f"{text}\nnames: [joint, bridge]\n")
    (tmp_path / "d" / "list.txt").write_text("\n".join(reversed(lines)), encoding="utf-8")
    read = yolo_images.read(JOINT, few(data, tmp_path / "w"))
    assert [len(rows) for rows in by_purpose(read).values()] == [1 if lines else 3, 0, 3]
    assert all(one.path.is_file() for one in read)


@pytest.mark.parametrize("line", ["0 0.1 0.1 0.3 0.3", "0 0.5 0.5 0 0.1", "0 0.02 0.5 0.2 0.2\n0 0.98 0.5 0.2 0.2"])
@pytest.mark.parametrize("images", [3, 30])
def test_corners_in_the_place_of_centre_and_size_are_refused_and_few_odd_boxes_told(tmp_path, images, line):
    data = data_set(tmp_path / "d", images=images)
    (tmp_path / "d" / "labels" / "train" / "1.txt").write_text(line)
    if images == 3 and "\n" not in line:  # more lines are of objects that the edges of a tile cut
        with pytest.raises(ConfigError, match="train/1"):
            KIND.train(JOINT, few(data, tmp_path / "w"), silent)
    else:
        _, taken = read_data_set(few(data, tmp_path / "w"), JOINT)
        assert ["train/1" in one for one in yolo_labels.check(taken.pictures, 2, data).remarks] == [True]


def test_training_does_not_write_over_the_users_images(tmp_path):
    data = data_set(tmp_path / "d", images=3)
    path = tmp_path / "d" / "images" / "train" / "3.jpg"
    path.write_bytes(with_a_tail := NOISE + b"written by a camera")
    depths, features = path.with_name("0.npy"), path.with_name("1.npy")
    np.save(depths, np.zeros((64, 64), np.float32))
    features.write_bytes(b"of another program")
    before = depths.read_bytes()
    KIND.train(JOINT, few(data, tmp_path / "w"), silent)
    assert path.read_bytes() == with_a_tail
    assert (depths.read_bytes(), features.read_bytes()) == (before, b"of another program")


QUIET = """
import json, os, socket, sys
calls = []
def forbid(name):
    def refuse(*given, **named):
        calls.append([name, repr(given[:3])])
        raise OSError("no network here")
    return refuse
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, forbid(name))
socket.getaddrinfo = socket.create_connection = forbid("getaddrinfo")
sys.path.insert(0, os.environ["ROOT"])
from pathlib import Path
from coe.core import Expert
from coe.store.kinds import TrainingPlan
from experts.yolov5 import yolov5n
expert = Expert("joint", "yolov5n", ("joint", "bridge"), 64, "b/joint")
plan = TrainingPlan(Path(sys.argv[1]), Path(sys.argv[2]), epochs=1, batch=3, learning_rate=1e-3, threads=1)
yolov5n.train(expert, plan, lambda *words: None)
import time, threading
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join(2)
print(json.dumps({"calls": calls, "environment": os.environ.get("OMP_NUM_THREADS")}))
"""


@pytest.mark.slow
def test_ultralytics_calls_nobody_and_writes_nowhere_else(tmp_path):
    """In a training; tests/system/test_surroundings.py watches inference."""
    home, work, here, scratch = (tmp_path / name for name in ("home", "work", "here", "scratch"))
    for path in (home, here, scratch):
        path.mkdir()
    data = data_set(tmp_path / "d")
    before = {path for path in tmp_path.rglob("*") if work not in path.parents}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(scratch)}
    environment |= {"ROOT": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", QUIET, str(data), str(work)]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {"calls": [], "environment": None}
    assert list(home.iterdir()) == []
    after = {path for path in tmp_path.rglob("*") if path != work and work not in path.parents}
    assert after == before


def test_a_checkpoint_is_read_without_running_it_and_one_of_another_size_names_the_tensor(tmp_path):
    module = KIND.skeleton(JOINT)
    module.names = {0: "joint", 1: "bridge"}
    told = {"epoch": 3, "best_fitness": np.float64(0.5), "model": None, "ema": module.half(), "where": Path("x")}
    torch.save(told, tmp_path / "best.pt")
    found = read_checkpoint(tmp_path / "best.pt")
    assert found.labels == ("joint", "bridge")
    expected = {f"ema/{name}": value for name, value in module.state_dict().items()}
    assert found.state.keys() == expected.keys()
    assert all(torch.equal(found.state[name], value) for name, value in expected.items())
    taken = unwrapped(found, KIND.skeleton(JOINT).state_dict(), "best.pt")
    check_layers(taken.layers, KIND.skeleton(JOINT), "best.pt")
    converted = KIND.convert(taken.state, JOINT)
    assert converted["model.0.conv.weight"].dtype == torch.float32
    KIND.skeleton(JOINT).load_state_dict(converted)
    small = YoloV5("s").skeleton(JOINT).state_dict()
    with pytest.raises(StoreError, match=r"'model\.0\.conv\.weight' is"):
        KIND.convert(small, JOINT)
