"""Kinds that compare judge each component by its own good parts: a neighbour that varies more sets no limit for it."""

from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from exams import examined
from golden_parts import bad, moved, noisy, part
from PIL import Image

from coe.board import scores
from coe.core import NOTHING, Expert, GoodLimits, Shown
from coe.errors import StoreError
from coe.learn import golden_reference
from coe.store.exam import stops_of
from coe.store.kinds import Reference, TrainingPlan
from coe.store.store import Store
from coe.store.store_reader import Snapshot
from coe.testing import rules_from
from experts.difference import difference
from experts.difference_network import LIMIT
from experts.golden import golden
from experts.golden_network import PEAKS
from experts.pair_limits import ExamPicture, GoodPart, limits_of
from experts.proposals import CELL

BOARD = """
board: b
experts:
  d: {kind: difference, labels: [different], input: 160, reject: [different], then: {none: OK}}
components:
  C1: {inspect: d, reference: C1, polarity: yes}
  U1: {inspect: d, reference: U1, polarity: yes}
"""
EXPERT = Expert("d", "difference", ("different",), 160, "b/d", frozenset({"different"}))
GOLDEN = Expert("g", "golden", ("hole",), 2 * CELL, "b/g", frozenset({"hole"}))
SIZE = (90, 60)
Draw = Callable[[int], np.ndarray]


def parts(reference, largest, misfit=0.01):
    return [GoodPart(reference, f"{number}", reference, value, misfit) for number, value in enumerate(largest)]


def chip(seed):
    """Return a small part whose surroundings differ from picture to picture, (60, 90, 3)."""
    chance = np.random.default_rng(seed)
    picture = np.full((60, 90, 3), 50, np.uint8)
    picture[20:40, 25:65] = (120, 90, 60)
    picture[20:40, 20:30] = picture[20:40, 60:70] = 200
    left, top = int(chance.integers(3, 75)), int(chance.choice([4, 48]))
    picture[top : top + 8, left : left + 12] = 190
    return noisy(picture, seed)


def circuit(seed, turned=False):
    """Return an integrated circuit with bright leads, and a dim mark at its first pin, (120, 140, 3)."""
    picture = np.full((120, 140, 3), 50, np.uint8)
    body = np.full((60, 120, 3), 45, np.uint8)
    cv2.circle(body, (14, 46), 7, (130, 130, 130), -1)
    cv2.putText(body, "LM324", (30, 34), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (110, 110, 110), 2)
    picture[30:90, 10:130] = body[::-1, ::-1] if turned else body
    for x in range(16, 124, 16):
        picture[8:30, x : x + 8] = picture[90:112, x : x + 8] = 230
    chance = np.random.default_rng(seed)
    return noisy(moved(picture, *(int(value) for value in chance.integers(-1, 2, 2))), seed, levels=6)


def train_on(folder, *drawn, **options):
    """Learn from so many pictures of each component, and from references that are made of them."""
    references = {}
    for name, draw, count in drawn:
        (folder / name / "good").mkdir(parents=True)
        pictures = {f"{seed}.png": draw(seed) for seed in range(count)}
        for file, pixels in pictures.items():
            Image.fromarray(pixels).save(folder / name / "good" / file)
        learned = golden_reference.learn(pictures if count > 2 else {"0.png": pictures["0.png"]})
        references[name] = Reference(learned.image, learned.spread, f"b/{name}")
    plan = TrainingPlan(folder, folder, 1, 8, 1e-3, threads=1, references=references, **options)
    return difference.train(EXPERT, plan, lambda *_: None), references


@pytest.fixture
def taught(tmp_path):
    """An expert that learned eight chips, each beside other neighbours, and two circuits; and the references."""
    trained, references = train_on(tmp_path, ("C1", chip, 8), ("U1", circuit, 2))
    return replace(EXPERT, limits=trained.limits), references


def test_what_must_not_pass_tightens_the_misfit_where_that_keeps_it_out():
    good = parts("u", [30, 24, 36, 28, 40], misfit=0.02)

    def limits(item, misfit, largest=30.0, matters=True):
        shown = [ExamPicture("U1", "u", item, largest, misfit, matters)] * 4
        return limits_of(good, {"u": SIZE}, shown)["u"]

    usual = limits_of(good, {"u": SIZE})["u"]
    near = usual.misfit * 0.95
    for item in (Shown.MISSING, Shown.TURNED):
        assert 0.02 < limits(item, near).misfit < near
        assert limits(item, near, largest=250) == usual, "the largest difference shows it"
        assert limits(item, 0.5) == usual, "it is not OK"
        assert limits(item, 0.02) == usual, "good parts would be called, and it would pass all the same"
        assert limits(item, near, matters=False) == usual


def test_the_exam_has_a_row_for_each_component_that_is_blind_by_itself(tmp_path):
    """The chip looks the same turned round, the circuit does not: of the circuit nothing is said by the chip's row."""
    exam = train_on(tmp_path, ("C1", plain_chip, 4), ("U1", circuit, 4), polarity=True)[0].exam
    turned = {item.component: (item.passed, item.shown) for item in exam.items if item.item is Shown.TURNED}
    assert turned == {"C1": (4, 4), "": (0, 4)}
    assert stops_of(exam)["C1"][Shown.TURNED] is False
    board = examined(rules_from(BOARD), {"d": exam})
    gaps = {name: [gap.item for gap in one.gaps(["d"])] for name, one in board.components.items()}
    assert gaps == {"C1": [Shown.TURNED], "U1": []}, "as the board says, both have a polarity"


def plain_chip(seed):
    """Return a part that looks the same turned by 180 degrees, in a window that is as symmetrical, (60, 90, 3)."""
    picture = np.full((60, 90, 3), 50, np.uint8)
    picture[20:40, 25:65] = (120, 90, 60)
    picture[20:40, 20:30] = picture[20:40, 60:70] = 200
    return noisy(picture, seed)


def judged(expert, pixels, reference):
    prepared = difference.compare(pixels, reference, expert)
    with torch.inference_mode():
        outputs = difference.forward(difference.skeleton(expert), torch.from_numpy(prepared.pixels)[None])
    return difference.postprocess(outputs, [prepared], expert)[0]


def test_a_circuit_that_lies_the_wrong_way_round_is_not_ok_although_its_neighbours_differ_more(taught):
    expert, references = taught
    wrong = circuit(99, turned=True)
    wide = max(own.largest for own in expert.limits.values())
    before = judged(replace(expert, limits={"": GoodLimits(wide, 1.0, 10)}), wrong, references["U1"])
    assert (before.label, before.doubt) == (NOTHING, ""), "by the limit of the board it would be good"
    assert judged(expert, wrong, references["U1"]).label == "different"
    misfit = expert.limits["b/U1"].misfit
    unlike = judged(replace(expert, limits={"": GoodLimits(wide, misfit, 2)}), wrong, references["U1"])
    assert (unlike.label, "unlike every good part" in unlike.doubt) == (NOTHING, True)
    for seed in range(20, 26):
        good = judged(expert, circuit(seed), references["U1"])
        assert (good.label, good.doubt) == (NOTHING, "")
        chips = judged(expert, chip(seed), references["C1"])
        assert (chips.label, chips.doubt) == (NOTHING, "")


def test_a_component_has_the_limits_of_its_own_good_parts():
    chips, circuits = parts("c", [122, 60, 90, 41, 75, 110]), parts("u", [30, 24, 36], misfit=0.02)
    limits = limits_of([*chips, *circuits], {"c": SIZE, "u": (300, 200)})
    assert limits["c"].largest >= 122
    assert 36 < limits["u"].largest < 110
    assert 0.02 < limits["u"].misfit < 0.15
    assert [limits[name].pictures for name in "cu"] == [6, 3]
    alone = limits_of(circuits, {"u": SIZE})
    assert alone["u"].largest <= LIMIT, "nothing that was seen differs more than an expert that learned nothing allows"
    one = limits_of([*chips, circuits[0]], {"c": SIZE, "u": (300, 200)})
    assert one["u"].largest > limits["u"].largest, "one part says less than three"


def test_a_component_without_good_parts_has_those_of_its_package_or_is_for_a_person():
    chips = parts("c", [50, 60, 55])
    limits = limits_of(chips, {"c": SIZE, "same": (SIZE[0] + 1, SIZE[1]), "other": (300, 200)})
    assert limits["same"] == limits["c"]
    assert limits["other"].pictures == 0
    assert limits_of([], {"c": SIZE})["c"].pictures == 0
    expert = replace(EXPERT, limits=limits)
    good = part()
    for id, doubted in (("c", False), ("same", False), ("other", True), ("unknown", True)):
        reference = Reference(good, np.zeros(good.shape[:2], np.uint8), id)
        finding = judged(expert, noisy(good, 1), reference)
        assert finding.label == NOTHING
        assert ("nobody has shown" in finding.doubt) == doubted
        assert judged(expert, bad(good), reference).boxes, "what differs much is a defect all the same"


def test_one_picture_of_a_part_teaches_no_limit(tmp_path):
    Image.fromarray(part(0)).save(tmp_path / "0.png")
    reference = Reference(part(0), np.zeros(part(0).shape[:2], np.uint8))
    plan = TrainingPlan(tmp_path, tmp_path, 1, 8, 1e-3, threads=1, references={"U1": reference})
    trained = difference.train(EXPERT, plan, lambda *_: None)
    assert (trained.metrics["good_parts"], trained.metrics["limit"]) == (0, LIMIT)
    assert "no good part shows how parts differ" in trained.remarks[0]
    assert "nobody has shown" in judged(replace(EXPERT, limits=trained.limits), noisy(part(0), 1), reference).doubt
    Image.fromarray(noisy(part(0), 2)).save(tmp_path / "1.png")
    trained = difference.train(EXPERT, plan, lambda *_: None)
    assert trained.limits[""].pictures == 1, "of two pictures each is the reference of the other"
    assert judged(replace(EXPERT, limits=trained.limits), noisy(part(0), 1), reference).doubt == ""


def test_what_golden_takes_for_no_defect_is_for_a_person_if_good_parts_differ_less():
    reference = Reference(part(), np.zeros(part().shape[:2], np.uint8))

    def doubt(largest, misfit=1.0):
        expert = replace(GOLDEN, limits={"": GoodLimits(largest, misfit, 9)})
        return found(expert, score=0.1).doubt

    def found(expert, score):
        prepared = golden.compare(bad(part()), reference, expert)
        outputs = torch.zeros(1, 4, PEAKS, 1 + 4)
        outputs[0, 0, 0] = torch.tensor([score, 0.1, 0.1, 0.1, 0.1])
        return golden.postprocess(outputs, [prepared], expert)[0]

    assert "it differs by " in doubt(60)
    assert doubt(250) == ""
    assert "unlike every good part" in doubt(250, misfit=0.0001)
    assert found(GOLDEN, score=0.1).doubt == "", "nobody measured good parts"
    expert = replace(GOLDEN, limits={"": GoodLimits(60, 0.0001, 9)})
    defect = found(expert, score=0.9)
    assert (defect.label, bool(defect.doubt)) == ("hole", True)
    ignored = scores.adjusted(defect, replace(expert, ignore_under={"hole": 0.95}))
    assert (ignored.label, bool(ignored.doubt)) == (NOTHING, True), "a box that does not count takes no doubt along"


def test_limits_go_with_the_weights_a_line_keeps_to_them_and_over_which_nothing_lies_are_damage(tmp_path):
    store = Store(tmp_path)
    state = difference.skeleton(EXPERT).state_dict()
    limits = {"b/U1": GoodLimits(40.0, 0.02, 3)}

    def put(limits):
        store.put("b/d", kind="difference", labels=EXPERT.labels, input_size=160, state=state, limits=limits)

    put(limits)
    manifest = store.manifest("b/d")
    assert manifest.fit(EXPERT).limits == limits
    snapshot = Snapshot(store, {"b/d": manifest})
    put({"b/U1": GoodLimits(90.0, 0.02, 3)})
    with pytest.raises(StoreError, match="limits"):
        snapshot.manifest("b/d")


@pytest.mark.parametrize("limits", ['{"largest": NaN, "misfit": 0.1, "pictures": 3}', '{"largest": 9, "misfit": -1}'])
def test_limits_over_which_nothing_lies_are_a_damaged_manifest(tmp_path, limits):
    store = Store(tmp_path)
    state = difference.skeleton(EXPERT).state_dict()
    store.put("b/d", kind="difference", labels=EXPERT.labels, input_size=160, state=state)
    file = store.folder("b/d") / "manifest.json"
    file.write_text(
        file.read_text()
        .replace('"limits":{}', f'"limits":{{"b/U1":{limits}}}')
        .replace('"limits": {}', f'"limits": {{"b/U1": {limits}}}')
    )
    assert "U1" in file.read_text()
    with pytest.raises(StoreError, match="cannot be read"):
        store.manifest("b/d")
