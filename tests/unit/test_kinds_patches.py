import cv2
import numpy as np
import pytest
import torch

from apps.deeppcb import measures, tiles
from apps.deeppcb.crops import Crops, PairImages, marked
from apps.deeppcb.data import DataMissing, Defect, find, read, split_held_out
from apps.deeppcb.images import write
from apps.deeppcb.patch_train import read_list, threshold, write_list
from apps.deeppcb.patches import PatchResNet18
from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import TrainingPlan, resolve

BOARD = Expert("board", "apps.deeppcb.patches:PatchResNet18", ("ok", "defective"), 64, "b/board")


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


def test_lists_and_notes_become_pairs(tmp_path):
    folder = find(data_set(tmp_path / "deeppcb").parent)
    pairs = read(folder, "trainval")
    assert [pair.group for pair in pairs[:2]] == ["group0", "group1"]
    assert pairs[1].tested.is_file()
    assert pairs[1].template.is_file()
    assert pairs[1].defects[0].label == 1
    train, held = split_held_out(pairs, 3)
    assert ([pair.key for pair in held], len(train)) == (["00000004", "00000005"], 4)


def test_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(DataMissing, match="--data or COE_DATA"):
        find(tmp_path)


def test_the_table_names_every_image_under_its_own_folder(tmp_path):
    from coe.board.images import find as find_images

    folder = data_set(tmp_path / "deeppcb")
    table = write(folder, read(folder, "test"), tmp_path / "out")
    items, _ = find_images(table, {"group0", "group1"})
    assert len(items) == 12
    assert not [item.error for item in items if item.error]
    write(folder, read(folder, "test"), tmp_path / "out")  # again, over itself


def test_tiles_hold_their_defect_and_say_where(tmp_path):
    pairs = read(data_set(tmp_path / "deeppcb"), "trainval")
    made = tiles.cut({"train": pairs[:4], "val": pairs[4:]}, tmp_path / "tiles", size=96, templates=1.0, seed=0)
    images = sorted((made.parent / "images" / "train").glob("*.png"))
    assert len(images) == 8
    for path in images:
        image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
        assert image.shape == (96, 96)
        lines = (made.parent / "labels" / "train" / f"{path.stem}.txt").read_text().split("\n")
        if path.stem.endswith("-good"):
            assert lines == [""]
        else:
            x, y, width, height = (float(word) * 96 for word in lines[0].split()[1:])
            assert (width, height) == pytest.approx((40, 40), abs=0.01)
            assert image[int(y), int(x)] < 40


def test_a_defect_that_can_hardly_be_seen_is_no_label():
    whole, half = Defect(2, (0, 0, 20, 20)), Defect(1, (90, 0, 110, 20))
    assert tiles.labels((whole, half), 0, 0, 100) == ["2 0.100000 0.100000 0.200000 0.200000"]


def test_places_of_a_crop_are_defect_unknown_or_good():
    target, weight = marked((Defect(0, (64, 64, 96, 96)),), 0, 0, 160)
    assert target.sum() == 4
    assert target[4:6, 4:6].all()
    assert (weight == 0).sum() > 0
    assert (weight[0], weight[:, 9]) == (pytest.approx(1), pytest.approx(1))
    target, weight = marked((Defect(0, (150, 0, 200, 50)),), 0, 0, 160)
    assert target.sum() == 0  # cut off by the border: neither good nor bad
    assert weight[0, 9] == 0


def test_crops_are_drawn_by_seed():
    tested, template = np.zeros((640, 640), np.uint8), np.full((640, 640), 255, np.uint8)
    loaded = [PairImages(tested, template, (Defect(0, (300, 300, 340, 340)),), "g")]
    images, targets, weights = Crops(loaded, 5).batch(8)
    assert images.shape == (8, 1, 160, 160)
    assert [int(image.max()) for image in images] == [0, 255] * 4
    assert targets[0::2].flatten(1).sum(dim=1).min() > 0
    assert targets[1::2].sum() == 0
    assert weights[1::2].min() == 1
    assert torch.equal(images, Crops(loaded, 5).batch(8)[0])


def test_the_threshold_lies_midway_in_the_widest_gap_of_fewest_errors():
    assert threshold([0.0, 1.0], [3.0, 4.0]) == 2.0
    assert threshold([0.0, 5.0], [3.0, 4.0, 6.0]) == 1.5
    assert threshold([1.0], [1.0]) == 1.0


def test_the_worst_place_speaks_for_the_image():
    kind = resolve(BOARD.kind, ["apps.deeppcb"])
    module = kind.skeleton(BOARD)
    prepared = kind.preprocess(np.full((64, 64, 3), 255, np.uint8), BOARD)
    images = torch.from_numpy(prepared.pixels)[None].repeat(3, 1, 1, 1)
    images[1, :, 20:30, 20:30] = 0
    with torch.no_grad():
        worst = kind.forward(module, images)
        places = module(images[:, :1].float() / 255).flatten(1).amax(dim=1)
        findings = kind.postprocess(torch.tensor([-2.0, 3.0, 0.5]), [prepared] * 3, BOARD)
    torch.testing.assert_close(worst, places)
    module.limit.fill_(1.5)
    torch.testing.assert_close(kind.forward(module, images), places - 1.5)
    assert [finding.label for finding in findings] == ["ok", "defective", "defective"]
    assert findings[0].score == pytest.approx(0.8808, abs=1e-4)


def test_it_needs_two_labels():
    with pytest.raises(ConfigError, match="exactly two labels"):
        PatchResNet18().skeleton(Expert("x", "k", ("a", "b", "c"), 64, "b/x"))


def test_training_runs_from_a_list_and_calibrates(tmp_path, monkeypatch):
    monkeypatch.setattr("apps.deeppcb.patch_train.STEPS", 2)
    pairs = read(data_set(tmp_path / "deeppcb"), "trainval")
    listed = write_list(tmp_path / "pairs.csv", {"train": pairs[:5], "val": pairs[5:]})
    assert [pair.key for pair in read_list(listed)["val"]] == ["00000005"]
    plan = TrainingPlan(data=listed, work=tmp_path, epochs=1, batch=4, learning_rate=1e-3, threads=1)
    trained = PatchResNet18().train(BOARD, plan, lambda *words: None)
    assert set(trained.state) == set(PatchResNet18().skeleton(BOARD).state_dict())
    assert trained.metrics["held_out"] == 2


def test_a_list_that_is_none_is_told(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="not a list of pairs"):
        read_list(tmp_path / "x.csv")


def shown(true, found):
    return measures.ImageBoxes(
        np.array([box for box, _ in true], float).reshape(-1, 4),
        np.array([label for _, label in true], int),
        np.array([box for box, _, _ in found], float).reshape(-1, 4),
        np.array([label for _, label, _ in found], int),
        np.array([score for _, _, score in found], float),
    )


A, B, FAR = (0, 0, 10, 10), (50, 50, 60, 60), (90, 90, 99, 99)


def test_overlap_is_intersection_over_union():
    assert measures.overlap(np.array([A], float), np.array([A, (0, 5, 10, 15), FAR], float)).tolist() == [
        [1.0, pytest.approx(1 / 3), 0.0]
    ]


def test_a_true_box_is_found_once_and_only_by_its_own_label():
    image = shown([(A, 0), (B, 1)], [(A, 0, 0.9), (A, 0, 0.8), (B, 0, 0.7)])
    assert measures.hits(image, 0.33).tolist() == [True, False, False]


def test_average_precision_by_hand():
    image = shown([(A, 0), (B, 0)], [(A, 0, 0.9), (FAR, 0, 0.8), (B, 0, 0.7)])
    # right, wrong, right: precision 1 at the first half of recall, 2/3 at the second
    assert measures.average_precision([image], 0, 0.5) == pytest.approx((1 + 2 / 3) / 2)
    assert measures.average_precision([image], 1, 0.5) is None
    assert measures.mean_average_precision([image], 2, 0.5) == pytest.approx((1 + 2 / 3) / 2)


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


def test_f_score_at_and_best_over_thresholds():
    image = shown([(A, 0), (B, 0)], [(A, 0, 0.9), (B, 0, 0.6), (FAR, 0, 0.3)])
    at = measures.score_at([image], 0.25, 0.33)
    assert (at.precision, at.recall, at.f) == (pytest.approx(2 / 3), 1.0, pytest.approx(0.8))
    best = measures.best_score([image], 0.33)
    assert best.f == 1.0
    assert 0.3 < best.threshold <= 0.6
    steady = measures.steady_score([image], 0.33)
    assert (steady.f, steady.threshold) == (1.0, pytest.approx(0.45, abs=0.011)), "0.31 to 0.60 are equally good"
    assert measures.score_at([shown([(A, 0)], [])], 0.5, 0.33).f == 0.0
