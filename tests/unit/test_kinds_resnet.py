import cv2
import numpy as np
import pytest
import torch
from candidates import candidates
from hypothesis import given
from hypothesis import strategies as st
from narrow import Narrow
from safetensors.torch import load_file, save_file
from trainings import plan, silent

from coe.core import NOTHING, Expert
from coe.errors import ConfigError, StoreError
from coe.store.kinds import ExpertInput, resolve
from coe.store.skeletons import random_weights, skeleton
from experts import trainers
from experts.augment import Augment
from experts.classifier_train import pace
from experts.findings import Cut, corners_of, detected, suppress
from experts.geometry import letterbox, to_image
from experts.normalising import normalise
from experts.resnet import ResNet
from experts.trainers import computing, uses_bf16

CHIP = Expert("chip", "resnet18", ("bright", "dark"), 32, "b/chip")
KIND, SMALL = ResNet(18), Narrow()
"""Training is the same for a network of any width; one test trains a wide one."""


def folder(root, counts, seed=0):
    rng = np.random.default_rng(seed)
    for label, count in counts.items():
        (root / label).mkdir(parents=True)
        for index in range(count):
            image = rng.integers(150 if "bright" in label else 0, 255 if "bright" in label else 100, (24, 30, 3))
            cv2.imwrite(str(root / label / f"{index}.png"), image.astype(np.uint8))
    return root


def test_all_four_are_found_by_dotted_path_and_normalise_like_imagenet():
    for depth in (18, 34, 50, 101):
        assert resolve(f"experts.resnet:resnet{depth}").name == f"resnet{depth}"
    from torchvision.transforms.functional import normalize

    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    expected = normalize(images.float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(normalise(images, torch.float32), expected)


@pytest.mark.parametrize("depth", [18, 50])
def test_a_network_is_torchvisions_and_is_drawn_as_it_is(depth):
    from torchvision import models

    torch.manual_seed(1)
    theirs = getattr(models, f"resnet{depth}")(weights=None, num_classes=2).eval()
    torch.manual_seed(1)
    ours = ResNet(depth).skeleton(CHIP)
    ours.optional = None
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(own, theirs.state_dict()[name]) for name, own in ours.state_dict().items())
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(ours(images), theirs(images))


def short(root, **more):
    return plan(root, **{"epochs": 2, "batch": 6, **more})


def test_training_learns_and_reports_what_was_held_out(tmp_path):
    seen, root = [], folder(tmp_path / "d", {"bright": 12, "dark": 12})
    trained = SMALL.train(CHIP, short(root, epochs=12), lambda *words: seen.append(words))
    assert [done for done, _, _ in seen] == list(range(1, 13))
    assert (trained.metrics["held_out"], trained.metrics["accuracy"]) == (4, 1.0)
    assert set(trained.state) == set(SMALL.skeleton(CHIP).state_dict())


def test_the_same_plan_gives_the_same_weights_and_leaves_the_world_as_it_was(tmp_path):
    root = folder(tmp_path / "d", {"bright": 5, "dark": 5})
    threads, drawn = torch.get_num_threads(), torch.get_rng_state()
    first, second = (SMALL.train(CHIP, short(root, epochs=1), silent).state for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.slow
def test_products_in_bf16_train_other_weights_and_these_are_fp32(tmp_path):
    root = folder(tmp_path / "d", {"bright": 12, "dark": 12})
    exact, rounded = (SMALL.train(CHIP, short(root, epochs=12, bf16=bf16), silent) for bf16 in (False, True))
    assert rounded.metrics["accuracy"] == 1.0
    assert not torch.equal(rounded.state["fc.weight"], exact.state["fc.weight"])
    assert all(value.dtype == exact.state[name].dtype for name, value in rounded.state.items())


def test_a_processor_with_bf16_trains_in_it_unless_the_plan_says_otherwise(tmp_path, monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for native in (True, False):
        monkeypatch.setattr(trainers, "has_bf16", lambda native=native: native)
        assert [uses_bf16(plan(tmp_path), device) for device in (cpu, gpu)] == [native, False]
        for bf16 in (True, False):
            assert [uses_bf16(plan(tmp_path, bf16=bf16), device) for device in (cpu, gpu)] == [bf16] * 2


def test_training_uses_the_split_that_is_there(tmp_path):
    folder(tmp_path / "train", {"bright": 4, "dark": 4})
    folder(tmp_path / "valid", {"bright": 2, "dark": 1}, seed=1)
    assert SMALL.train(CHIP, short(tmp_path, epochs=1), silent).metrics["held_out"] == 3
    folder(tmp_path / "validation", {"bright": 2, "dark": 1}, seed=2)
    with pytest.raises(ConfigError, match="the same"):
        SMALL.train(CHIP, short(tmp_path, epochs=1), silent)


def test_training_starts_from_weights_with_another_head_and_says_what_is_missing(tmp_path):
    other = Expert("other", "resnet18", ("a", "b", "c"), 32, "b/other")
    save_file(KIND.skeleton(other).state_dict(), tmp_path / "start.safetensors")
    root = folder(tmp_path / "d", {"bright": 4, "dark": 4})
    trained = KIND.train(CHIP, plan(root, epochs=1, learning_rate=0.0, init=tmp_path / "start.safetensors"), silent)
    assert trained.state["fc.weight"].shape == (2, 512)
    root = folder(tmp_path / "e", {"bright": 3, "dark": 3})
    (damaged := root / "dark" / "x.png").write_bytes(b"no image")
    for error, words, made in [
        (ConfigError, r"x\.png", short(root)),
        (ConfigError, "not a folder", short(tmp_path / "none")),
        (StoreError, "safetensors", short(root, init=tmp_path / "none.safetensors")),
    ]:
        with pytest.raises(error, match=words):
            SMALL.train(CHIP, made, silent)
        damaged.unlink(missing_ok=True)


def test_a_folder_that_does_not_fit_is_told(tmp_path):
    for number, (counts, word) in enumerate([({"bright": 3}, "dark"), ({"bright": 3, "dark": 3, "odd": 1}, "odd")]):
        with pytest.raises(ConfigError, match=word):
            SMALL.train(CHIP, short(folder(tmp_path / str(number), counts)), silent)


def test_a_torchvision_state_dict_is_imported_and_one_that_does_not_fit_names_the_tensor():
    state = dict(KIND.skeleton(CHIP).state_dict())
    foreign = {f"module.{name}": value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    converted = KIND.convert(foreign, CHIP)
    assert list(converted) == list(state)
    assert torch.equal(converted["conv1.weight"], state["conv1.weight"])
    for name, size, words in (("fc.weight", (1, 512), "--activation sigmoid"), ("conv1.weight", (64, 1, 7, 7), "grey")):
        with pytest.raises(StoreError, match=words):
            KIND.convert({**state, name: torch.zeros(size)}, CHIP)


def test_augmenting_follows_its_generator_and_nothing_changes_nothing():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    still = Augment(shift=0, scale=0, gain=0, offset=0, noise=0)
    assert torch.equal(still(images, torch.Generator()), images)
    both = Augment(mirror_x=True, shift=0, scale=0, gain=0, offset=0, noise=0)
    for before, after in zip(images, both(images, torch.Generator().manual_seed(3)), strict=True):
        assert torch.equal(after, before) or torch.equal(after, before.flip(2))
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    wild = Augment(mirror_y=True, rotate=30, erase=0.5, gain=0.9, offset=0.5)
    first, second = (wild(images, torch.Generator().manual_seed(7)) for _ in range(2))
    assert (first.dtype, first.shape) == (torch.uint8, images.shape)
    assert torch.equal(first, second)


def test_the_learning_rate_rises_and_falls_and_threads_are_restored_after_an_error():
    rates = [pace(step, 100) for step in range(100)]
    assert rates.index(max(rates)) in (9, 10)
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] < 0.02
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="x"), computing(1):
        raise ValueError("x")
    assert torch.get_num_threads() == before


def test_frozen_layers_stay_as_they_were_given_and_the_rest_learns(tmp_path):
    start = tmp_path / "start.safetensors"
    save_file(SMALL.skeleton(CHIP).state_dict(), start)
    root = folder(tmp_path / "d", {"bright": 5, "dark": 5})
    frozen = ("conv1", "bn1", "layer1", "layer2", "layer3.conv1")
    after = SMALL.train(CHIP, short(root, init=start, freeze=frozen), silent)
    before = load_file(start)
    same = {name for name, value in after.state.items() if torch.equal(value, before[name])}
    assert {name for name in before if name.startswith(frozen)} <= same
    learns = ("layer3.conv2", "deep", "fc")
    assert not {name for name in before if name.startswith(learns) and not name.endswith("tracked")} & same


@pytest.mark.parametrize(
    ("frozen", "given", "words"),
    [
        (("layer1",), False, "weights to start from"),
        (("stem",), True, "'stem'"),
        (("conv1", "bn1", "layer", "wide", "deep", "fc"), True, "nothing to train"),
    ],
)
def test_what_cannot_be_frozen_is_said(tmp_path, frozen, given, words):
    start = tmp_path / "start.safetensors"
    save_file(SMALL.skeleton(CHIP).state_dict(), start)
    root = folder(tmp_path / "d", {"bright": 2, "dark": 2})
    with pytest.raises(ConfigError, match=words):
        SMALL.train(CHIP, short(root, init=start if given else None, freeze=frozen), silent)


@pytest.mark.slow
def test_random_weights_stay_in_the_range_of_fp16_and_come_from_their_seed():
    kind, expert = resolve("resnet101"), Expert("e", "resnet101", ("ok", "bad"), 64, "t/e")

    def largest(state):
        module, seen = skeleton(kind, expert, optional=()), []
        module.load_state_dict(state)
        for one in module.modules():
            if isinstance(one, torch.nn.Conv2d):
                one.register_forward_hook(lambda _, __, output: seen.append(float(output.abs().max())))
        with torch.inference_mode():
            kind.forward(module, torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))
        return max(seen)

    torch.manual_seed(0)
    assert largest(skeleton(kind, expert, optional=()).state_dict()) > 1e4
    first, same, other = (random_weights(kind, expert, seed) for seed in (1, 1, 2))
    assert largest(first) < 1e3
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    assert not skeleton(kind, expert, optional=()).training


JOINT = Expert("joint", "yolov5n", ("joint", "bridge"), 64, "b/joint", frozenset({"bridge"}))
PLAIN = ExpertInput(np.zeros((3, 64, 64), np.uint8), height=64, width=64)


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([32, 64, 96]))
def test_letterbox_fits_any_shape_and_boxes_lead_back(height, width, size):
    prepared = letterbox(np.zeros((height, width, 3), np.uint8), size, (9, 9, 9))
    assert prepared.pixels.shape == (3, size, size)
    ((x1, y1, x2, y2),) = to_image(np.array([[0.0, 0.0, size, size]]), prepared)
    # One pixel of the input is 1 / scale pixels of the image: sizes were rounded to whole pixels.
    slack = 1.5 / prepared.scale
    assert 0 <= x1 <= slack
    assert 0 <= y1 <= slack
    assert width - slack <= x2 <= width
    assert height - slack <= y2 <= height


@given(st.integers(1, 80), st.integers(1, 80), st.sampled_from([8, 33, 64]), st.integers(0, 3))
def test_letterbox_gives_the_bytes_that_the_plain_definition_gives(height, width, size, layout):
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)
    image = (pixels, pixels[::-1], np.asfortranarray(pixels), np.repeat(pixels, 2, axis=1)[:, ::2])[layout]
    prepared = letterbox(image, size, (1, 2, 3))
    scale = min(size / height, size / width)
    high, wide = max(1, round(height * scale)), max(1, round(width * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = image if (high, wide) == (height, width) else cv2.resize(image, (wide, high), interpolation=method)
    expected = np.empty((size, size, 3), np.uint8)
    expected[:] = (1, 2, 3)
    top, left = (size - high) // 2, (size - wide) // 2
    expected[top : top + high, left : left + wide] = resized
    assert (prepared.pixels == expected.transpose(2, 0, 1)).all()
    assert prepared.pixels.flags.c_contiguous


def test_a_box_goes_back_to_the_pixels_of_the_original():
    assert corners_of(np.array([[10.0, 20.0, 4.0, 6.0]])).tolist() == [[8.0, 17.0, 12.0, 23.0]], "of a centre and sides"
    prepared = letterbox(np.zeros((100, 200, 3), np.uint8), 100, (0, 0, 0))
    assert to_image(np.array([[10.0, 35.0, 20.0, 60.0]]), prepared).tolist() == [[20.0, 20.0, 40.0, 70.0]]


def rows(*boxes):
    return [[*corners, *scores] for corners, scores in boxes]


def see(boxes, expert=JOINT):
    (finding,) = detected(candidates(boxes, 2), [PLAIN], expert, Cut(threshold=0.25, overlap=0.45, most=300))
    return finding


def test_of_boxes_above_the_threshold_a_rejected_label_speaks_before_a_better_good_one():
    finding = see(rows(((0, 0, 10, 10), (0.9, 0.0)), ((30, 30, 40, 40), (0.0, 0.4))))
    assert (finding.label, round(finding.score, 2)) == ("bridge", 0.4)
    assert [box.label for box in finding.boxes] == ["joint", "bridge"]
    finding = see(rows(((0, 0, 10, 10), (0.5, 0.0)), ((30, 30, 40, 40), (0.7, 0.1))))
    assert (finding.label, round(finding.score, 2)) == ("joint", 0.7)
    finding = see(rows(((0, 0, 10, 10), (0.2, 0.1))))
    assert (finding.label, round(finding.score, 2), finding.boxes) == (NOTHING, 0.8, ())
    assert see([]).score == 1.0
    same = rows(((0, 0, 10, 10), (0.5, 0.0)), ((0, 0, 10, 11), (0.8, 0.0)), ((0, 0, 10, 10), (0.0, 0.6)))
    assert sorted((box.label, round(box.score, 2)) for box in see(same).boxes) == [("bridge", 0.6), ("joint", 0.8)]


def all_at_once(corners, scores, labels, overlap):
    """Suppress all boxes of a label together, as the definition says."""
    from torchvision.ops import nms

    groups = [(labels == label).nonzero()[0] for label in np.unique(labels)]
    parts = [
        group[nms(torch.from_numpy(corners[group]), torch.from_numpy(scores[group]), overlap).numpy()]
        for group in groups
    ]
    kept = np.sort(np.concatenate(parts))
    return kept[np.argsort(-scores[kept], kind="stable")]


@given(st.integers(0, 1000), st.integers(1, 60), st.sampled_from([3, 30, 300]), st.integers(1, 3))
def test_the_best_boxes_are_suppressed_alike_whether_or_not_worse_ones_are_compared(seed, number, spread, most):
    chance = np.random.default_rng(seed)
    low = chance.random((number, 2), np.float32) * spread
    corners = np.concatenate((low, low + 1 + chance.random((number, 2), np.float32) * 20), axis=1)
    # Few different scores, so that many are equal.
    scores, labels = chance.integers(1, 5, number).astype(np.float32) / 5, chance.integers(0, 2, number)
    kept = suppress(corners, scores, labels, 0.45, most)
    whole = all_at_once(corners, scores, labels, 0.45)
    first = [place for place in whole if list(labels[whole[: list(whole).index(place)]]).count(labels[place]) < most]
    assert kept.tolist() == first


@given(st.integers(0, 1000), st.sampled_from([0.3, 1.0]))
def test_a_finding_depends_on_no_other_image_of_its_batch(seed, brightness):
    chance = np.random.default_rng(seed)
    batch = chance.random((3, 6, 20), np.float32) * np.float32(brightness)
    batch[:, :4] *= 50
    cut = Cut(threshold=0.25, overlap=0.45, most=4)
    together = detected(batch, [PLAIN] * 3, JOINT, cut)
    assert together == [detected(image[None], [PLAIN], JOINT, cut)[0] for image in batch]
