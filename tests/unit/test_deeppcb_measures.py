"""DeepPCB as lists, notes and a table of images, and the measures of boxes."""

import cv2
import numpy as np
import pytest

from apps.data_set import DataMissing
from apps.deeppcb import evaluate, measures
from apps.deeppcb.data import find, read, split_held_out
from apps.deeppcb.images import write
from coe.board import rules
from coe.pictures.finding import find as find_images
from coe.store.store import Store
from experts.golden import GoldenKind


def data_set(root, pairs=6, size=640):
    """A miniature of DeepPCB: one defect, a black square of 40 pixels, in each tested image."""
    rng = np.random.default_rng(0)
    lines = []
    for index in range(pairs):
        group, key = f"group{index % 2}", f"{index:08d}"
        folder = root / "PCBData" / group / str(index % 2)
        (folder.parent / f"{index % 2}_not").mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        image = np.full((size, size), 255, np.uint8)
        x, y = rng.integers(0, size - 40, 2)
        cv2.imwrite(str(folder / f"{key}_temp.jpg"), image)
        image[y : y + 40, x : x + 40] = 0
        cv2.imwrite(str(folder / f"{key}_test.jpg"), image)
        note = f"{group}/{index % 2}_not/{key}.txt"
        (root / "PCBData" / note).write_text(f"{x} {y} {x + 40} {y + 40} {index % 6 + 1}\n")
        lines.append(f"{group}/{index % 2}/{key}.jpg {note}")
    (root / "splits").mkdir()
    for split in ("trainval", "test"):
        (root / "splits" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return root


def test_lists_and_notes_become_pairs_and_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(DataMissing, match="--data or COE_DATA"):
        find(tmp_path)
    folder = find(data_set(tmp_path / "deeppcb").parent)
    pairs = read(folder, "trainval")
    assert [pair.group for pair in pairs[:2]] == ["group0", "group1"]
    assert pairs[1].tested.is_file()
    assert pairs[1].template.is_file()
    assert pairs[1].defects[0].label == 1
    train, held = split_held_out(pairs, 3)
    assert ([pair.key for pair in held], len(train)) == (["00000004", "00000005"], 4)


def test_the_table_names_every_image_and_its_template_under_its_own_folder(tmp_path):
    folder = data_set(tmp_path / "deeppcb")
    table = write(folder, read(folder, "test"), tmp_path / "out")
    items, _ = find_images(table, {"group0", "group1"})
    assert len(items) == 6
    assert not [item.error for item in items if item.error]
    assert [item.reference.name for item in items] == [f"{index:08d}_temp.jpg" for index in range(6)]
    assert all(item.reference.is_file() for item in items)
    write(folder, read(folder, "test"), tmp_path / "out")  # again, over itself


def shown(true, found):
    return measures.ImageBoxes(
        np.array([box for box, _ in true], float).reshape(-1, 4),
        np.array([label for _, label in true], int),
        np.array([box for box, _, _ in found], float).reshape(-1, 4),
        np.array([label for _, label, _ in found], int),
        np.array([score for _, _, score in found], float),
    )


A, B, FAR = (0, 0, 10, 10), (50, 50, 60, 60), (90, 90, 99, 99)


def test_the_program_that_measures_the_expert_gets_nearly_every_box_of_it(tmp_path):
    pairs = read(data_set(tmp_path / "deeppcb", pairs=2), "test")
    expert, kind = rules.load(evaluate.BOARD_FILE).experts[evaluate.EXPERT], GoldenKind()
    store = Store(tmp_path / "store")
    state = kind.skeleton(expert).state_dict()
    store.put(expert.weights, kind="golden", labels=expert.labels, input_size=expert.input_size, state=state)
    found = evaluate.detect(pairs, store.root, expert.weights)
    # What was not trained scores every label with a hundredth.
    assert all(0 < score < kind.threshold for image in found.shown for score in image.scores)
    assert all(len(image.scores) for image in found.shown)


def test_boxes_are_found_by_their_overlap_and_scored_by_hand():
    assert measures.overlap(np.array([A], float), np.array([A, (0, 5, 10, 15), FAR], float)).tolist() == [
        [1.0, pytest.approx(1 / 3), 0.0]
    ]
    image = shown([(A, 0), (B, 1)], [(A, 0, 0.9), (A, 0, 0.8), (B, 0, 0.7)])
    assert measures.hits(image, 0.33).tolist() == [True, False, False]
    image = shown([(A, 0), (B, 0)], [(A, 0, 0.9), (FAR, 0, 0.8), (B, 0, 0.7)])
    # right, wrong, right: precision 1 at the first half of recall, 2/3 at the second
    assert measures.average_precision([image], 0, 0.5) == pytest.approx((1 + 2 / 3) / 2)
    assert measures.average_precision([image], 1, 0.5) is None
    assert measures.mean_average_precision([image], 2, 0.5) == pytest.approx((1 + 2 / 3) / 2)
    image = shown([(A, 0), (B, 0)], [(A, 0, 0.9), (B, 0, 0.6), (FAR, 0, 0.3)])
    at = measures.score_at([image], 0.25, 0.33)
    assert (at.precision, at.recall, at.f) == (pytest.approx(2 / 3), 1.0, pytest.approx(0.8))
    steady = measures.steady_score([image], 0.33)
    assert (steady.f, steady.threshold) == (1.0, pytest.approx(0.45, abs=0.011)), "0.31 to 0.60 are equally good"
    assert measures.score_at([shown([(A, 0)], [])], 0.5, 0.33).f == 0.0


def test_average_precision_agrees_with_ultralytics():
    from experts import quiet_ultralytics

    quiet_ultralytics.prepare()
    from ultralytics.utils.metrics import ap_per_class

    rng = np.random.default_rng(3)
    images = []
    for _ in range(40):
        corners = rng.uniform(0, 80, (5, 2))
        true = [((x, y, x + 10, y + 10), int(rng.integers(2))) for x, y in corners]
        near = [
            (tuple(np.array(b) + rng.normal(0, 1.5)), c, rng.uniform(0.3, 1)) for b, c in true if rng.random() < 0.8
        ]
        stray = [
            ((x, y, x + 9, y + 9), int(rng.integers(2)), rng.uniform(0, 0.8)) for x, y in rng.uniform(0, 80, (3, 2))
        ]
        images.append(shown(true, near + stray))
    right = np.concatenate([measures.hits(image, 0.5) for image in images])[:, None]
    scores, labels, there = (
        np.concatenate([getattr(image, name) for image in images]) for name in ("scores", "labels", "true_labels")
    )
    theirs = ap_per_class(right, scores, labels, there)[5][:, 0]
    ours = [measures.average_precision(images, label, 0.5) for label in (0, 1)]
    assert ours == pytest.approx(theirs, abs=0.02)  # theirs interpolates at 101 points
