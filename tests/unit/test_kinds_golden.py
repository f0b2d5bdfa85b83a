"""The kinds that compare with a reference, without a line: what they prepare, judge, and learn."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from golden_parts import DEFECT, bad, moved, noisy, part
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from thorough import THOROUGH
from trainings import plan, silent

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Reference
from coe.store.skeletons import random_weights
from coe.variants.fold import fold, network
from experts import golden_network
from experts.difference import difference
from experts.difference_network import LIMIT
from experts.golden import UNUSED, golden
from experts.golden_crops import MARGIN, Crops, varied
from experts.golden_network import PEAKS, SIDE, STRIDE, peaks
from experts.pair import PairInput, in_picture
from experts.pair_limits import GoodPart, typical
from experts.proposals import CELL, LARGE, PART, REACH, Region, covering, crops, regions

GOLDEN = Expert("g", "golden", ("hole", "blob"), 2 * CELL, "b/g", frozenset({"hole", "blob"}))
FIRST_DAY = Expert("d", "difference", ("different",), 160, "b/d", frozenset({"different"}))
GOOD = part()


def reference(picture=GOOD, spread=0):
    return Reference(picture, np.full(picture.shape[:2], spread, np.uint8))


@pytest.mark.parametrize("side", [1, 2, 79])
def test_a_picture_too_small_to_show_a_defect_is_in_doubt(side):
    """Enlarged, it may differ little from a plain reference: that is no reason to call the part good."""
    few, plain = np.full((side, side, 3), 90, np.uint8), reference(np.full((160, 160, 3), 128, np.uint8))
    for kind, expert in ((difference, FIRST_DAY), (golden, GOLDEN)):
        prepared = kind.compare(few, plain, expert)
        assert "160 x 160" in prepared.doubt


def test_regions_are_what_differs_and_what_another_crop_shows_well_gets_none_of_its_own():
    different = np.zeros((100, 100), bool)
    different[10:20, 30:45] = True
    different[50:54, 50:54] = True
    different[70, :] = True
    assert [region.xyxy for region in regions(different)] == [(30, 10, 45, 20), (50, 50, 54, 54)]

    def square(x, y, side=8):
        return Region((x, y, x + side, y + side))

    near, far, wide = square(110, 90), square(125, 100), square(80, 80, 50)
    assert covering([square(100, 100), near, far, wide]) == [square(100, 100), far, wide]
    assert covering([wide, near]) == [wide, near], "a crop of a wide region has half the resolution"


@settings(max_examples=12 * THOROUGH, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 180)] * 2, *[st.integers(5, 120)] * 2), max_size=6))
def test_every_pixel_of_a_thick_difference_is_in_a_region_that_a_crop_shows(squares):
    different = np.zeros((200, 200), bool)
    for x, y, width, height in squares:
        different[y : y + height, x : x + width] = True
    covered = np.zeros_like(different)
    for region in regions(different):
        x1, y1, x2, y2 = region.xyxy
        assert max(x2 - x1, y2 - y1) <= LARGE
        covered[y1:y2, x1:x2] = True
    missed = different & ~covered
    # The opening takes corners, and a large region is cut along lines.
    assert missed.sum() <= 12 * len(squares) + (2 * 200 * (200 // PART) if different.sum() > LARGE else 0)


def test_a_crop_shows_its_place_also_at_the_border_and_more_of_a_large_region_at_half_the_resolution():
    stack = np.zeros((200, 200, 3), np.uint8)
    stack[0:4, 0:4] = stack[80:120, 40:160] = 200
    places = ((0, 0, 4, 4), (96, 96, 104, 104), (60, 80, 140, 120))
    shown = crops(stack, [Region(place) for place in places])
    assert shown.shape == (3, CELL, CELL, 3)
    assert [int(crop[CELL // 2, CELL // 2, 0]) for crop in shown] == [200] * 3
    assert [int((crop[..., 0] > 100).sum()) for crop in shown[1:]] == [40 * CELL, 20 * 60]


def test_two_defects_of_one_crop_are_two_places_and_boxes_are_upright_around_turned_corners():
    logits, boxes = torch.full((1, 2, SIDE, SIDE), -9.0), torch.full((1, 4, SIDE, SIDE), 0.1)
    for label, row, column, score in ((0, 8, 10, 2.0), (1, 14, 10, 3.0), (1, 14, 11, 1.0), (0, 0, 10, 5.0)):
        logits[0, label, row, column] = score
    rows = peaks(logits, boxes, 4, REACH)[0]
    assert rows[:2, :2].flatten().tolist() == pytest.approx([0.0, 0.953, 0.881, 0.0], abs=1e-3)
    assert rows[2:, :2].max() < 0.01
    x, y = (10.5 * STRIDE - CELL / 2) / CELL, (14.5 * STRIDE - CELL / 2) / CELL
    assert rows[0, 2:].tolist() == pytest.approx([0.1 - x, 0.1 - y, 0.1 + x, 0.1 + y], abs=1e-6)
    quarter = np.array([[0.0, -1.0, 100.0], [1.0, 0.0, 0.0]])
    assert in_picture(np.array([[10.0, 20.0, 30.0, 50.0]]), quarter).tolist() == [[50.0, 10.0, 80.0, 30.0]]


def test_an_equal_picture_has_nothing_to_judge_and_a_hole_is_judged_where_it_is():
    prepared = golden.compare(GOOD, reference(), GOLDEN)
    assert (prepared.regions, prepared.doubt) == ((), "")
    assert (prepared.pixels == UNUSED).all()
    loud = noisy(GOOD, seed=1, levels=40)
    assert golden.compare(loud, reference(), GOLDEN).regions
    assert not golden.compare(loud, reference(spread=215), GOLDEN).regions
    prepared = golden.compare(moved(bad(GOOD), right=5, down=-3), reference(), GOLDEN)
    assert len(prepared.regions) == 1
    (x, y), x1, y1, x2, y2 = prepared.regions[0].centre, *DEFECT
    assert x1 <= x <= x2
    assert y1 <= y <= y2
    outputs = torch.zeros(1, 4, PEAKS, 2 + 4)
    outputs[0, 0, 0] = torch.tensor([0.8, 0.1, *(length / CELL for length in (x - x1, y - y1, x2 - x, y2 - y))])
    (finding,) = golden.postprocess(outputs, [prepared], GOLDEN)
    assert (finding.label, finding.score) == ("hole", pytest.approx(0.8))
    assert finding.boxes[0].xyxy == pytest.approx((x1 + 5, y1 - 3, x2 + 5, y2 - 3), abs=0.6)


BOTH = ("hole", "blob")


@pytest.mark.parametrize(
    ("reject", "at", "scores", "stays"),
    [
        # Of overlapping boxes the best stays, but a harmless box hides none to reject.
        (["hole"], [(50, 50), (52, 50), (51, 52)], [(0.6, 0.3), (0.7, 0.1), (0.05, 0.9)], ["blob 0.9", "hole 0.7"]),
        (BOTH, [(50, 50), (52, 50), (51, 52)], [(0.6, 0.3), (0.7, 0.1), (0.05, 0.9)], ["blob 0.9"]),
        # Boxes of 19 pixels, 10 beside each other, overlap by 0.31: neighbours of two labels, or one defect.
        (BOTH, [(50, 50), (60, 50)], [(0.9, 0.1), (0.2, 0.8)], ["hole 0.9", "blob 0.8"]),
        (BOTH, [(50, 50), (60, 50)], [(0.9, 0.1), (0.8, 0.2)], ["hole 0.9"]),
        # A box that gives way hides no other: the second overlaps the first by 0.65, the third by 0.23; these by 0.09.
        (BOTH, [(50, 50), (54, 50), (66, 50)], [(0.9, 0.0), (0.0, 0.8), (0.0, 0.7)], ["hole 0.9", "blob 0.7"]),
    ],
)
def test_of_boxes_that_overlap_the_best_stays(reject, at, scores, stays):
    places = tuple(Region((x - 4, y - 4, x + 4, y + 4)) for x, y in at)
    prepared = PairInput(np.zeros((3, 2 * CELL, 2 * CELL), np.uint8), 160, 160, to_picture=np.eye(2, 3), regions=places)
    outputs = torch.zeros(1, 4, PEAKS, 6)
    outputs[0, : len(at), 0, 2:] = 0.1
    outputs[0, : len(at), 0, :2] = torch.tensor(scores)
    (finding,) = golden.postprocess(outputs, [prepared], replace(GOLDEN, reject=frozenset(reject)))
    assert [f"{box.label} {box.score:.1f}" for box in finding.boxes] == stays


@settings(max_examples=20 * THOROUGH, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 25))
def test_every_box_that_gives_way_overlaps_a_better_one_that_stays_and_no_two_that_stay_do(seed, number):
    chance = np.random.default_rng(seed)
    expert = replace(GOLDEN, labels=("hole", "blob", "dust"))
    low = chance.random((number, 2)) * 30
    boxes = np.hstack((low, low + 5 + chance.random((number, 2)) * 20))
    rows = torch.from_numpy(np.hstack((boxes, chance.permutation(3 * number).reshape(number, 3) / 99.0))).float()
    kept = golden._alone(rows, expert).tolist()

    def hides(better, worse):
        width, height = (min(better[2 + axis], worse[2 + axis]) - max(better[axis], worse[axis]) for axis in (0, 1))
        shared = max(0.0, width) * max(0.0, height)
        areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (better, worse))
        labels = [max(range(3), key=box[4:].__getitem__) for box in (better, worse)]
        alike = (labels[0] == 2) == (labels[1] == 2)
        least = 0.15 if labels[0] == labels[1] else 0.5 if alike else 1.0
        return max(better[4:]) > max(worse[4:]) and shared / (areas - shared) > least

    for row in rows.tolist():
        assert any(hides(better, row) for better in kept) == (row not in kept)


def test_more_differences_than_crops_are_in_doubt_and_the_largest_are_judged():
    good = np.tile(GOOD, (2, 2, 1))
    picture = good.copy()
    for place in range(7):
        picture[10 + 42 * place : 18 + 42 * place, 20 : 30 + 2 * place] = (255, 0, 255)
    prepared = golden.compare(picture, reference(good), GOLDEN)
    assert len(prepared.regions) == 4
    assert all(number in prepared.doubt for number in "74")
    (finding,) = golden.postprocess(torch.zeros(1, 4, PEAKS, 6), [prepared], GOLDEN)
    assert (finding.label, finding.doubt) == ("none", prepared.doubt)


def test_cells_without_a_crop_cost_nothing_and_change_nothing_and_the_network_folds_whole():
    module = network(golden, GOLDEN, random_weights(golden, GOLDEN, 0))
    mosaic = torch.full((1, 3, 2 * CELL, 2 * CELL), UNUSED, dtype=torch.uint8)
    assert not golden.forward(module, mosaic).any()
    crop = torch.randint(0, 200, (3, CELL, CELL), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mosaic[0, :, CELL:, :CELL] = crop
    alone = golden.forward(module, mosaic)[0]
    assert not alone[[0, 1, 3]].any()
    mosaic[0, :, :CELL, :CELL] = 255 - crop
    assert torch.allclose(golden.forward(module, mosaic)[0, 2], alone[2], atol=1e-5)
    folded = fold(golden, GOLDEN, random_weights(golden, GOLDEN, 0))
    assert len(folded.pairs) == 11, "every norm is folded into its convolution"


def test_without_a_reference_there_is_something_to_measure():
    for kind, expert in ((golden, GOLDEN), (difference, FIRST_DAY)):
        prepared = kind.preprocess(GOOD, expert)
        assert prepared.pixels.shape == (3, expert.input_size, expert.input_size)
        assert prepared.to_picture is not None
        assert 0 < (prepared.pixels[2] > LIMIT).mean() < 0.9


def run(picture, against, expert=FIRST_DAY):
    prepared = difference.compare(picture, against, expert)
    module = difference.skeleton(expert)
    with torch.inference_mode():
        outputs = difference.forward(module, torch.from_numpy(prepared.pixels)[None])
    return difference.postprocess(outputs, [prepared], expert)[0]


@pytest.mark.parametrize("size", [160, 96, 240])
def test_a_difference_is_a_box_at_any_input_size(size):
    finding = run(bad(GOOD), reference(), replace(FIRST_DAY, input_size=size))
    assert finding.label == "different"
    (box,) = finding.boxes
    assert box.xyxy == pytest.approx(DEFECT, abs=4)
    clean = run(noisy(GOOD, 1), reference(), replace(FIRST_DAY, input_size=size))
    assert (clean.label, clean.boxes) == ("none", ())
    assert clean.score > 0.9


def test_an_expert_that_cannot_work_says_what_to_change():
    with pytest.raises(ConfigError, match="96"):
        golden.skeleton(replace(GOLDEN, input_size=CELL - 1))
    with pytest.raises(ConfigError, match="exactly one"):
        difference.skeleton(replace(FIRST_DAY, labels=("a", "b")))


@pytest.fixture(scope="module")
def drawn_pairs(tmp_path_factory):
    """A data set of good parts, and of parts with four holes or four blobs; do not change it."""
    root, chance = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 6)):
        for folder in ("images", "references", "labels"):
            (root / folder / split).mkdir(parents=True)
        for number in range(count):
            good, label = part(number % 4), number % 3
            picture, lines = good.copy(), []
            for left, top in ((10, 10), (85, 10), (10, 85), (85, 85)) if label else ():
                x, y = (low + int(value) for low, value in zip((left, top), chance.integers(0, 45, 2), strict=True))
                picture[y : y + 16, x : x + 16] = (20, 20, 20) if label == 1 else (250, 250, 250)
                lines.append(f"{label - 1} {(x + 10) / 160} {(y + 9) / 160} 0.1 0.1\n")
            picture = noisy(moved(picture, 2, 1), number + (100 if split == "val" else 0))
            name = f"{split}/{number}"
            Image.fromarray(picture).save(root / "images" / f"{name}.png", compress_level=0)
            Image.fromarray(good).save(root / "references" / f"{name}.bmp")
            if lines:
                (root / "labels" / f"{name}.txt").write_text("".join(lines))
    described = {"train": "images/train", "val": "images/val", "names": ["hole", "blob"]}
    (root / "data.yaml").write_text(yaml.safe_dump(described))
    return root


@pytest.fixture
def pairs(drawn_pairs, tmp_path, monkeypatch):
    """The YAML of a copy of `drawn_pairs`, for narrow networks."""
    monkeypatch.setattr(golden_network, "WIDTHS", (16, 24, 32, 32))
    shutil.copytree(drawn_pairs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "data.yaml"


def short(data, epochs=1, **more):
    return plan(data, data.parent, epochs=epochs, learning_rate=3e-3, **more)


def test_golden_learns_from_pairs(pairs):
    seen = []
    trained = golden.train(GOLDEN, short(pairs, 5), lambda done, of, measures: seen.append(done))
    assert seen == list(range(1, 6))
    assert trained.metrics["accuracy"] > 0.9
    assert trained.metrics["iou"] > 0.3
    for split in ("train", "val"):
        for picture in sorted((pairs.parent / "images" / split).iterdir())[3:]:
            picture.unlink()
    again = golden.train(GOLDEN, short(pairs), silent)
    once = golden.train(GOLDEN, short(pairs), silent)
    assert all(torch.equal(again.state[name], value) for name, value in once.state.items())


def test_a_box_follows_its_defect_through_every_variation_and_a_negative_has_the_inverse_label():
    side = CELL + 2 * MARGIN
    images = torch.full((8, 3, side, side), 200, dtype=torch.uint8)
    x1, y1, x2, y2 = 40, 52, 60, 58  # of what is seen without a shift
    images[:, 0, MARGIN + y1 : MARGIN + y2, MARGIN + x1 : MARGIN + x2] = 20
    images[:, 2] = 180 * (images[:, 0] == 20)
    boxes = torch.tensor([x1, y1, x2, y2]) / CELL
    crops = Crops(images, torch.tensor([[1, -1]] * 8), torch.stack((boxes, torch.zeros(4))).repeat(8, 1, 1))
    torch.manual_seed(0)
    labels = set()
    for _ in range(20):
        changed, label, box = varied(crops, torch.arange(8), torch.tensor([1, 0, -1]))
        for crop, one, corners in zip(changed, label, box[:, 0] * CELL, strict=True):
            dark = bool(crop[1, CELL // 2, CELL // 2] > 0.5)
            rows, columns = ((crop[0] < 0.4) if dark else (crop[0] > 0.6)).nonzero(as_tuple=True)
            found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert [int(value) for value in found] == corners.round().int().tolist()
            assert one.tolist() == [1 if dark else 0, -1]
            labels.add(int(one[0]))
    assert labels == {0, 1}
    changed, label, _ = varied(crops, torch.arange(8), None)
    assert (changed[:, 1, CELL // 2, CELL // 2] > 0.5).all()
    assert (label[:, 0] == 1).all()


def test_difference_is_calibrated_on_the_good_parts(pairs):
    replaced(pairs, "- hole\n- blob", "- different")
    for path in pairs.parent.glob("labels/*/*.txt"):
        path.write_text(re.sub("^1", "0", path.read_text(), flags=re.MULTILINE))
    trained = difference.train(FIRST_DAY, short(pairs), silent)
    assert trained.metrics["good_parts"] == trained.limits[""].pictures == 6
    assert trained.metrics["largest"] < trained.limits[""].largest == trained.metrics["limit"] <= LIMIT
    assert (trained.metrics["called"], trained.remarks) == (0.0, ())
    Image.fromarray(part(9)).save(pairs.parent / "references/val/3.bmp")
    (remark,) = difference.train(FIRST_DAY, short(pairs), silent).remarks
    assert remark.startswith("left out: 3.png")


def replaced(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: (root / "references/train/3.bmp").unlink(), "'3.png' has no reference '.*references/train/3.png"),
        (lambda root: (root / "labels/train/1.txt").write_text("7 0.5 0.5 0.1 0.1"), "1.txt:1: not a box"),
        (lambda root: (root / "labels/train/1.txt").write_text("0 0.5 0.5"), "1.txt:1: not a box"),
        (lambda root: (root / "images/train/2.png").write_bytes(b"x"), "'2.png' or its reference"),
        (
            lambda root: replaced(root / "data.yaml", "names:", "inverse: {hole: blob}\nnames:"),
            "'inverse'.*'hole', 'blob'",
        ),
    ],
)
def test_a_damaged_data_set_of_pairs_says_where(pairs, damage, sentence):
    damage(pairs.parent)
    with pytest.raises(ConfigError, match=sentence):
        golden.train(GOLDEN, short(pairs), silent)


def test_labels_and_layers_that_do_not_fit_are_refused_and_pairs_that_do_not_are_left_out(pairs):
    with pytest.raises(ConfigError, match="has the labels"):
        golden.train(replace(GOLDEN, labels=("x",)), short(pairs), silent)
    with pytest.raises(ConfigError, match="cannot be frozen"):
        golden.train(GOLDEN, short(pairs, freeze=("body",), init=pairs), silent)
    Image.fromarray(part(9)).save(pairs.parent / "references/train/3.bmp")
    (remark,) = golden.train(GOLDEN, short(pairs), silent).remarks
    assert remark.startswith("left out: 3.png")
    for number in range(9):
        Image.fromarray(part(9)).save(pairs.parent / f"references/train/{number}.bmp")
    with pytest.raises(ConfigError, match=r"'\d.png'"):
        golden.train(GOLDEN, short(pairs), silent)


def test_one_bad_part_among_good_ones_does_not_set_the_limit():
    def parts(*largest, component="U1"):
        return [of(component, f"{component}/{number}.png", value) for number, value in enumerate(largest)]

    def of(component, name, largest):
        return GoodPart(component, name, component, largest, 0.01)

    good, bad_one, bad_two = parts(31, 28, 35, 30, 26, 33), of("U1", "a", 160.0), of("U1", "b", 120.0)
    assert typical([bad_one, *good, bad_two]) == good, "two bad parts do not hide each other"
    still = parts(14, 11, 2, 6, 11)
    assert typical([*still, of("U1", "bad", 172.0)]) == still, "within the spread parts differ by next to nothing"
    assert typical(good) == good
    assert typical(parts(31, 28, 160)) == parts(31, 28, 160), "so few parts do not tell which is strange"
    assert typical(parts(30, 45, 60, 40, 255)) == parts(30, 45, 60, 40), "five parts do"
    few = parts(25, 30, component="U3")
    assert typical([*good, *few, of("U3", "bad", 170.0)]) == [*good, *few], "few parts are compared with all"
    with pytest.raises(ConfigError, match="3 of 8 parts of U1"):
        typical(parts(20, 22, 25, 28, 30, 120, 140, 150))
    other = parts(1, 1, 1, 1, 1, 1, component="U2")
    assert typical([*good, *other]) == [*good, *other], "one component may vary more than another"


def folder_plan(data, **references):
    return short(data, references={name: reference(pixels) for name, pixels in references.items()})


def test_a_bad_part_in_a_folder_of_good_ones_is_named(tmp_path):
    for number in range(8):
        Image.fromarray(noisy(part(0), number)).save(tmp_path / f"{number}.png")
    Image.fromarray(bad(part(0))).save(tmp_path / "hole.png")
    Image.fromarray(part(5)).save(tmp_path / "other.png")
    trained = difference.train(FIRST_DAY, folder_plan(tmp_path, U1=part(0)), silent)
    other, hole = trained.remarks
    assert other.startswith("left out: other.png")
    assert hole.startswith("left out: hole.png")
    assert trained.metrics["good_parts"] == 8
    assert trained.metrics["limit"] < 70


def test_a_folder_of_good_parts_that_cannot_be_used_is_refused(tmp_path):
    Image.fromarray(part(5)).save(tmp_path / "5.png")
    (tmp_path / "empty").mkdir()
    for use, sentence in [
        (folder_plan(tmp_path), "--board"),
        (folder_plan(tmp_path, U1=part(0), U2=part(1)), "U1, U2"),
        (folder_plan(tmp_path, U1=part(0)), "0 of 1 .*5.png"),
        (folder_plan(tmp_path / "empty", U1=part(0)), "empty"),
        (replace(folder_plan(tmp_path, U1=part(5)), false_calls=0.1), "false"),
        (replace(folder_plan(tmp_path, U1=part(5)), init=tmp_path), "--init"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            difference.train(FIRST_DAY, use, silent)
