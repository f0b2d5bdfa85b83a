import numpy as np
import pytest

from apps.demo.production import BoardPlace, lot, read_truth, shoot, take, write_truth
from apps.demo.render import COMPONENTS, photograph, render
from coe.board import rules

CASES = [(name, defect) for name, kind in COMPONENTS.items() for defect in (None, *kind.defects)]
# Every component, and every defect on the first component that can have it; `make test-all` draws the others too.
_FIRST = {defect: name for name, defect in reversed(CASES)}
SAMPLED = [
    pytest.param(name, defect, marks=() if defect is None or _FIRST[defect] == name else pytest.mark.slow)
    for name, defect in CASES
]
JOINTS = {"Q-SOT23-NPN": 3, "U-SOIC8-EEPROM": 8, "U-QFP32-MCU": 32, "J-PH4": 4}
MARKED = {name for name, kind in COMPONENTS.items() if "reversed" in kind.defects}


@pytest.mark.parametrize(("component", "defect"), SAMPLED)
def test_every_component_and_defect_is_a_picture_that_its_seed_decides(component, defect):
    size = COMPONENTS[component].size
    image = render(component, defect, np.random.default_rng(5))
    assert image.shape == (size, size, 3)
    assert image.dtype == np.uint8
    assert np.array_equal(image, render(component, defect, np.random.default_rng(5)))
    assert not np.array_equal(image, render(component, defect, np.random.default_rng(6)))


@pytest.mark.parametrize(("component", "defect"), [case for case in SAMPLED if case.values[1]])
def test_a_defect_changes_what_is_seen(component, defect):
    good = render(component, None, np.random.default_rng(3)).astype(int)
    bad = render(component, defect, np.random.default_rng(3)).astype(int)
    assert (np.abs(good - bad).max(axis=2) > 40).sum() > 15


@pytest.mark.parametrize(("component", "defect"), SAMPLED)
def test_truths_lie_in_the_image_and_say_what_is_wrong(component, defect):
    picture = photograph(component, defect, np.random.default_rng(8))
    height, width = picture.image.shape[:2]
    for truth in (*picture.joints, *picture.marks):
        x0, y0, x1, y1 = truth.xyxy
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
    joints = [truth.label for truth in picture.joints]
    if defect == "bridged":
        assert joints.count("bridge") == 1
        assert joints.count("joint") == JOINTS[component] - 2
    elif defect == "lifted":
        assert sorted(joints) == ["joint"] * (JOINTS[component] - 1) + ["lifted"]
    elif defect not in {"missing", "shifted", "rotated"}:
        assert joints == ["joint"] * JOINTS.get(component, 0)
    marks = [truth.label for truth in picture.marks]
    if component in MARKED and defect != "missing":
        assert marks == ["reversed" if defect == "reversed" else "mark"]
    else:
        assert marks == []


def test_training_pictures_show_several_defects_and_what_the_board_does_not_have_is_said():
    labels = [t.label for t in photograph("U-QFP32-MCU", "lifted", np.random.default_rng(1), several=True).joints]
    assert labels.count("lifted") > 1
    assert labels.count("bridge") > 1
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no component 'R9999'; it has R0402-10K"):
        render("R9999", None, rng)
    with pytest.raises(ValueError, match="'R0402-10K' has no defect 'bridged'; it has missing"):
        render("R0402-10K", "bridged", rng)


def test_the_board_file_and_the_renderer_agree():
    board = rules.load("demo")
    assert {name: part.count for name, part in board.components.items()} == {
        name: kind.count for name, kind in COMPONENTS.items()
    }
    for name, kind in COMPONENTS.items():
        labels = {label for step in board.components[name].root.walk() for label in board.experts[step.expert].labels}
        for defect in kind.defects:
            assert any(defect.startswith(label) for label in labels), f"nothing finds '{defect}' of {name}"


def test_a_lot_is_as_a_line_makes_it_and_places_of_one_board_share_its_solder_mask():
    places = lot(6, seed=4)
    assert places == lot(6, seed=4)
    assert places != lot(6, seed=5)
    assert len({place.file for place in places}) == len(places) == 6 * sum(kind.count for kind in COMPONENTS.values())
    faulty = {place.serial for place in places if place.defect}
    assert len(faulty) == 3
    assert 3 <= sum(bool(place.defect) for place in places) <= 9
    assert sum(bool(place.defect) for place in lot(6, seed=4, defective=0.5)) > len(places) / 3
    first, second = [place for place in lot(1, seed=2) if place.component == "R0402-10K"][:2]
    one, two = (take(place)[2:12, 2:12].mean(axis=(0, 1)) for place in (first, second))
    assert np.argmax(one) == np.argmax(two)


def test_images_and_truth_are_found_where_they_are_said_to_be(tmp_path):
    places = [
        BoardPlace("SN1", "R1", "R0402-10K", "", (1, 0, 0)),
        BoardPlace("SN1", "R2", "R0402-10K", "missing", (1, 0, 1)),
    ]
    shoot(places, tmp_path / "images")
    write_truth(places, tmp_path / "images")
    found = sorted(path.relative_to(tmp_path / "images").as_posix() for path in (tmp_path / "images").rglob("*.*"))
    assert found == ["SN1/R1__R0402-10K.png", "SN1/R2__R0402-10K.png"]
    assert read_truth(tmp_path / "images") == {found[0]: "", found[1]: "missing"}
