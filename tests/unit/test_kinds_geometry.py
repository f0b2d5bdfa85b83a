import cv2
import numpy as np
import torch
from candidates import candidates
from hypothesis import given
from hypothesis import strategies as st

from coe.core import NOTHING, Expert
from coe.store.kinds import ExpertInput
from experts.findings import Cut, corners_of, detected, suppress
from experts.geometry import letterbox, to_image

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
