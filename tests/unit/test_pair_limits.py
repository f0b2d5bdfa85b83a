"""Kinds that compare judge each component by its own good parts: a neighbour that varies more sets no limit for it."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from exams import examined
from golden_parts import bad, moved, noisy, part
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from small_experts import edit
from trainings import plan, silent

from coe.board import scores
from coe.core import NOTHING, Expert, GoodLimits, Shown
from coe.errors import StoreError
from coe.learn import golden_reference
from coe.store.exam import Exam, ExamItem, added, stops_of
from coe.store.kinds import Reference, resolve
from coe.store.store import Store
from coe.store.store_reader import Snapshot
from coe.testing import rules_from
from experts import exam, suspects
from experts.difference import difference
from experts.difference_network import LIMIT
from experts.golden import golden
from experts.golden_network import PEAKS
from experts.nearness import LEAST_DEVIATIONS, Cloud, Nearness, NearnessNetwork
from experts.pair_limits import ExamPicture, GoodPart, limits_of
from experts.proposals import CELL
from experts.series import farthest, parts_of, remarks

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


def parts(reference, largest, misfit=0.01):
    return [GoodPart(reference, f"{number}", reference, value, misfit) for number, value in enumerate(largest)]


def plain_chip(seed):
    """Return a part that looks the same turned by 180 degrees, in a window that is as symmetrical, (60, 90, 3)."""
    picture = np.full((60, 90, 3), 50, np.uint8)
    picture[20:40, 25:65] = (120, 90, 60)
    picture[20:40, 20:30] = picture[20:40, 60:70] = 200
    return noisy(picture, seed)


def chip(seed):
    """Return such a part whose surroundings differ from picture to picture."""
    chance, picture = np.random.default_rng(seed), plain_chip(seed)
    left, top = int(chance.integers(3, 75)), int(chance.choice([4, 48]))
    picture[top : top + 8, left : left + 12] = noisy(np.full((8, 12, 3), 190, np.uint8), seed)
    return picture


def circuit(seed, turned=False):
    """Return an integrated circuit with bright leads, and a dim mark at its pin 1, (120, 140, 3)."""
    picture = np.full((120, 140, 3), 50, np.uint8)
    body = np.full((60, 120, 3), 45, np.uint8)
    cv2.circle(body, (14, 46), 7, (130, 130, 130), -1)
    cv2.putText(body, "LM324", (30, 34), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (110, 110, 110), 2)
    picture[30:90, 10:130] = body[::-1, ::-1] if turned else body
    for x in range(16, 124, 16):
        picture[8:30, x : x + 8] = picture[90:112, x : x + 8] = 230
    chance = np.random.default_rng(seed)
    return noisy(moved(picture, *(int(value) for value in chance.integers(-1, 2, 2))), seed, levels=6)


def reference_of(pixels, id=""):
    return Reference(pixels, np.zeros(pixels.shape[:2], np.uint8), id)


def train_on(folder, *drawn, **options):
    references = {}
    for name, draw, count in drawn:
        (folder / name / "good").mkdir(parents=True)
        pictures = {f"{seed}.png": draw(seed) for seed in range(count)}
        for file, pixels in pictures.items():
            Image.fromarray(pixels).save(folder / name / "good" / file)
        learned = golden_reference.learn(pictures if count > 2 else {"0.png": pictures["0.png"]})
        references[name] = Reference(learned.image, learned.spread, f"b/{name}")
    return difference.train(EXPERT, plan(folder, references=references, **options), silent), references


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
    assert (limits["same"], limits["other"].pictures) == (limits["c"], 0)
    assert limits_of([], {"c": SIZE})["c"].pictures == 0
    expert = replace(EXPERT, limits=limits)
    good = part()
    for id, doubted in (("c", False), ("same", False), ("other", True), ("unknown", True)):
        reference = reference_of(good, id)
        finding = judged(expert, noisy(good, 1), reference)
        assert (finding.label, "good parts differ" in finding.doubt) == (NOTHING, doubted)
        assert judged(expert, bad(good), reference).boxes, "what differs much is a defect all the same"


def test_one_picture_of_a_part_teaches_no_limit(tmp_path):
    Image.fromarray(part(0)).save(tmp_path / "0.png")
    reference = reference_of(part(0))
    made = plan(tmp_path, references={"U1": reference})
    trained = difference.train(EXPERT, made, silent)
    assert (trained.metrics["good_parts"], trained.metrics["limit"], len(trained.remarks)) == (0, LIMIT, 1)
    assert judged(replace(EXPERT, limits=trained.limits), noisy(part(0), 1), reference).doubt
    Image.fromarray(noisy(part(0), 2)).save(tmp_path / "1.png")
    trained = difference.train(EXPERT, made, silent)
    assert trained.limits[""].pictures == 1, "of two pictures each is the reference of the other"
    assert judged(replace(EXPERT, limits=trained.limits), noisy(part(0), 1), reference).doubt == ""


@pytest.mark.parametrize(("levels", "is_told"), [((60, 70), False), ((10, 180), True)])
def test_good_parts_that_differ_so_much_that_few_defects_stand_out_are_told(tmp_path, levels, is_told):
    for number in range(8):
        picture = plain_chip(number)
        picture[6:12, 6:14] = levels[number % 2]
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    trained = difference.train(EXPERT, plan(tmp_path, references={"U1": reference_of(plain_chip(99), "U1")}), silent)
    assert any("U1 (" in remark and "255 grey levels" in remark for remark in trained.remarks) is is_told


def test_what_golden_takes_for_no_defect_is_for_a_person_if_good_parts_differ_less():
    reference = reference_of(part())

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
    assert doubt(250, misfit=0.0001)
    assert found(GOLDEN, score=0.1).doubt == "", "nobody measured good parts"
    expert = replace(GOLDEN, limits={"": GoodLimits(60, 0.0001, 9)})
    defect = found(expert, score=0.9)
    assert (defect.label, bool(defect.doubt)) == ("hole", True)
    ignored = scores.adjusted(defect, replace(expert, ignore_under={"hole": 0.95}))
    assert (ignored.label, bool(ignored.doubt)) == (NOTHING, True), "a box that does not count takes no doubt along"


def test_limits_go_with_the_weights_a_line_keeps_to_them_and_over_which_nothing_lies_are_damage(tmp_path):
    store, state = Store(tmp_path), difference.skeleton(EXPERT).state_dict()
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
    for damage in ({"largest": float("nan")}, {"misfit": -1}):
        edit(store, "b/d", limits={"b/U1": {"largest": 9, "misfit": 0.1, "pictures": 3} | damage})
        with pytest.raises(StoreError, match="cannot be read"):
            store.manifest("b/d")


def looks(parts, each, within, ways=40):
    """Return looks of parts that differ in so many ways, and their shots in all."""
    chance = np.random.default_rng(0)
    middles = np.pad(chance.normal(size=(parts, ways)), ((0, 0), (0, 40 - ways)))
    return (middles[:, None] + within * chance.normal(size=(parts, each, 40))).reshape(-1, 40)


@pytest.mark.parametrize(
    ("parts", "each", "within", "ways"), [(4, 5, 0.1, 40), (7, 3, 0.1, 40), (10, 2, 0.1, 40), (6, 4, 0.08, 4)]
)
def test_a_series_counts_as_one_part(parts, each, within, ways):
    numbers = parts_of(looks(parts, each, within, ways))
    assert [len(set(numbers[first : first + each])) for first in range(0, parts * each, each)] == [1] * parts
    assert len(set(numbers)) == parts
    assert f"about {parts} parts" in remarks(numbers, "so")[0]


ALIKE_AND_OTHERS = np.concatenate([looks(1, 8, 0.1), looks(10, 1, 0.1)])


@pytest.mark.parametrize(
    "seen",
    [looks(20, 1, 0.1), looks(2, 10, 0.1), looks(4, 5, 1.0), np.ones((20, 40)), ALIKE_AND_OTHERS, looks(20, 1, 0, 1)],
)
def test_different_parts_groups_and_copies_are_no_series(seen):
    assert remarks(parts_of(seen), "so") == []


def test_the_good_pictures_that_deviate_most_are_named_first_the_farthest():
    names = [f"{number}.png" for number in range(9)]
    assert "8.png, 7.png;" in farthest(names, np.arange(9.0), 9.0)
    assert "1 beyond the limit: 8.png, 7.png;" in farthest(names, np.arange(9.0), 7.5)


def drawn(seed, count, far=0.0):
    """Features (n, 300), in some directions more varied than in others; `far` off in ten of them."""
    chance = np.random.default_rng(seed)
    features = chance.normal(size=(count, 300)) * np.linspace(1.5, 0.5, 300) + 5
    features[:, 100:110] += far
    return features


def test_good_parts_are_near_and_others_are_not_as_a_network_says_too():
    for share in (0.01, 0.05):
        near = Nearness.of(drawn(1, 20), np.arange(20), share)
        assert (near.of_others(drawn(2, 400)) > near.limit).mean() < 4 * share
        assert (near.of_others(drawn(3, 50, far=6.0)) > near.limit).all()
    network = NearnessNetwork(300)
    network.fill(near)
    further = drawn(4, 30, far=2.0)
    said = network(torch.from_numpy(further)).numpy()
    np.testing.assert_allclose(said, near.of_others(further) - near.limit, atol=0.1)
    features = np.concatenate([drawn(1, 20), drawn(5, 1, far=6.0), drawn(5, 1, far=6.0)])
    near = Nearness.of(features, np.array([*range(20), 20, 20]), 0.05)
    assert (near.deviations[20:] > near.limit).all()
    assert (near.of_changed(features[20:], np.array([20, 20])) > near.limit).all()
    cloud = Cloud.of(np.ones((5, 8)))
    assert np.isfinite(cloud.logarithms(np.array([np.ones(8), np.zeros(8)]))).all()


def test_bad_pictures_among_the_good_are_found_by_their_like_or_by_a_gap():
    good, bad = drawn(1, 20), drawn(6, 20, far=14.0)
    mixed = np.concatenate([good[:17], bad[:3]])
    assert suspects.beside_bad(mixed, bad[3:]) == ([17, 18, 19], True)
    assert suspects.beside_bad(good, bad) == ([], True)
    found, are_left_out = suspects.beside_bad(good, drawn(9, 60))
    assert (len(found) > 5, are_left_out) == (True, False), "where bad parts look as good ones do, none is left out"
    good, bad = drawn(1, 20), drawn(6, 3, far=40.0)
    for count in (0, 1, 2, 3):
        mixed = np.concatenate([good[: 20 - count], bad[:count]])
        assert suspects.far_from_most(mixed) == list(range(20 - count, 20))


@given(st.lists(st.floats(-3, 8) | st.just(float("inf")), min_size=1, max_size=40), st.floats(1.3, 3))
def test_a_limit_is_tightened_until_a_tenth_passes_or_to_the_least(deviations, limit):
    new = exam.tightened(limit, deviations)
    passing = sum(one <= new for one in deviations)
    assert LEAST_DEVIATIONS <= new <= limit
    assert passing <= len(deviations) // 10 or new == LEAST_DEVIATIONS
    if sum(one <= limit for one in deviations) <= len(deviations) // 10:
        assert new == limit


def pictures(count):
    chance = np.random.default_rng(3)
    images = chance.integers(90, 110, (count, 3, 128, 128)).astype(np.uint8)
    images[:, :, 44:76, 36:92] = chance.integers(200, 220, (count, 3, 32, 56))
    return torch.from_numpy(images)


def test_an_exam_shows_the_part_missing_and_turned_and_its_rows_add_up():
    images = pictures(4)
    missing, turned = exam.sheets(images)
    assert (missing.item, turned.item) == (Shown.MISSING, Shown.TURNED)
    assert missing.made_of.tolist() == [0, 1, 2, 3]
    assert turned.made_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3], "in two boxes each"
    assert turned.least(np.array([1.0, 5, 2, 0, 3, 7, 4, 8])).tolist() == [1, 0, 3, 4]
    around = torch.ones(128, 128, dtype=torch.bool)
    around[24:98, 16:112] = False
    for boxes in (turned.images[::2], turned.images[1::2]):
        assert torch.equal(boxes[:, :, around], images[:, :, around])
        assert not torch.equal(boxes[:, :, 48:72, 40:88], images[:, :, 48:72, 40:88])
    assert int(missing.images[:, :, 48:72, 40:88].max()) < 130, "nothing is left of the part"
    assert torch.equal(missing.images[:, :, :30], images[:, :, :30]), "and all around it"
    some = [exam.graded(Shown.MISSING, np.array([True, False])), exam.graded(Shown.MISSING, np.array([False]))]
    (item,) = added(some)
    assert (item.shown, item.passed) == (3, 1)


def crowded(seed, at=(0, 0), contrast=1.0):
    """A part (3, 128, 128) between two like it, with print close to a third side, moved by `at` pixels."""
    chance = np.random.default_rng(seed)
    board = np.full((128, 128, 3), (30.0, 90.0, 160.0))
    for top in (-22, 42, 106):
        board[max(0, top) : top + 44, 28:100] = (190, 180, 170)  # its pads, and its body
        board[max(0, top + 2) : top + 42, 44:84] = (40, 36, 34)
    board[30:98, 104:112] = (240, 240, 235)
    board = contrast * board + (1 - contrast) * np.array((30, 90, 160))
    moved = np.roll(board * chance.uniform(0.8, 1.2), at, (0, 1))
    return (moved + chance.normal(0, 4, moved.shape)).clip(0, 255).astype(np.uint8).transpose(2, 0, 1)


def boxes(found):
    return [one and (one.part.left, one.part.top, one.part.right, one.part.bottom) for one in found]


def is_near(box, wanted, by=8):
    return box is not None and max(abs(one - two) for one, two in zip(box, wanted, strict=True)) <= by


def test_a_part_is_found_between_its_like_and_print_whatever_strange_parts_and_frames_there_are():
    moves = [(0, 0), (4, 4), (-4, 0), (0, 4), (4, -4), (0, 0), (-4, -4), (0, 0)]
    images = [crowded(seed, at) for seed, at in enumerate(moves)]
    found = boxes(exam.parts_of([*images, crowded(9, contrast=0.02)]))
    for (down, across), box in zip([*moves, (0, 0)], found, strict=True):
        assert is_near(box, (28 + across, 42 + down, 100 + across, 86 + down)), f"{box} moved by {across, down}"
    good = [crowded(seed) for seed in range(12)]
    turned = [crowded(seed)[:, ::-1, ::-1].copy() for seed in range(20, 26)]
    assert all(is_near(box, (28, 42, 100, 86)) for box in boxes(exam.parts_of([*good, *turned])))
    chance, framed = np.random.default_rng(5), []
    for seed in range(8):
        image = np.tile(np.array((124, 116, 104), np.uint8)[:, None, None], (1, 128, 128))
        image[:, 8:120] = chance.integers(250, 254, (3, 112, 128))  # a frame, as a JPEG keeps it
        content = cv2.resize(crowded(seed).transpose(1, 2, 0), (88, 88), interpolation=cv2.INTER_AREA)
        image[:, 20:108, 20:108] = content.transpose(2, 0, 1)
        framed.append(image)
    assert all(is_near(box, (39, 49, 89, 79)) for box in boxes(exam.parts_of(framed)))


def nowhere():
    """Pictures in which nobody can tell where a part is."""
    chance = np.random.default_rng(7)
    anywhere = chance.integers(90, 110, (12, 3, 128, 128)).astype(np.uint8)
    for image, (left, top) in zip(anywhere, chance.choice([4, 88], (12, 2)), strict=True):
        image[:, top : top + 32, left : left + 32] = 200
    weave = chance.integers(60, 140, (12, 8, 8)).astype(np.uint8)
    return {
        "parts at any place": list(anywhere),
        "a surface": [np.stack([cv2.resize(one, (128, 128), interpolation=cv2.INTER_CUBIC)] * 3) for one in weave],
        "one colour": [np.full((3, 128, 128), 100, np.uint8)] * 3,
    }


@pytest.mark.parametrize("what", ["parts at any place", "a surface", "one colour"])
def test_where_nobody_can_tell_the_place_the_exam_does_not_tell_what_passes(what):
    images = nowhere()[what]
    assert exam.parts_of(images) == [None] * len(images)
    (sheet,) = exam.sheets(torch.from_numpy(np.stack(images)))
    assert (sheet.item, len(sheet.images)) == (Shown.TURNED, len(images))
    for passed, told in ((0, {}), (12, {Shown.TURNED: False})):
        taken = Exam.of([ExamItem(item=Shown.TURNED, shown=12, passed=passed)])
        assert (stops_of(taken).get("", {}), len(taken.notes)) == (told, 1), "undecided, or proved to pass"
        assert stops_of(Exam(is_surface=True).again(taken.items)).get("", {}) == told


def test_a_part_is_turned_where_it_lies_and_its_pads_or_leads_stay_where_its_body_is_missing():
    picture = np.full((80, 120, 3), 60, np.uint8)
    picture[:, :, 2] = np.random.default_rng(0).integers(110, 130, (80, 120))
    picture[28:52, 24:36] = picture[28:52, 84:96] = 220  # pads
    picture[30:50, 34:86] = 30
    picture[33:39, 40:50] = 160  # a mark at one end
    picture[16:21, 50:70] = 230  # print beside it
    made = dict(exam.made_of(picture, exam.part_of(picture)))
    outside = np.ones(picture.shape[:2], bool)
    outside[15:65, 10:110] = False
    for pixels in made.values():
        assert pixels.shape == picture.shape
        assert (pixels[outside] == picture[outside]).all()
    turned, bare = made[Shown.TURNED], made[Shown.MISSING]
    assert turned[41:47, 70:80, 0].mean() > 120
    assert turned[33:39, 40:50, 0].mean() < 60
    assert bare[34:46, 50:70, 2].mean() > 100, "the surroundings lie over the body"
    assert bare[34:46, 50:70, 0].max() < 100, "and none of the print"
    assert (bare[32:48, 26:30, 0] > 200).all(), "and the pads are seen"
    picture = np.full((96, 96, 3), 60, np.uint8)
    picture[:, :, 2] = np.random.default_rng(0).integers(110, 130, (96, 96))
    picture[28:68, 24:72] = 30
    picture[40:46, 32:64:2] = 110  # its print
    picture[16:28, 28:68:8] = picture[68:80, 28:68:8] = 220
    bare = dict(exam.made_of(picture, exam.part_of(picture)))[Shown.MISSING]
    assert bare[34:62, 30:66, 2].min() > 90, "no body and no print"
    assert (bare[18:24, 28:68:8, 0] > 150).all(), "and the leads are seen"


@pytest.mark.parametrize("name", ["probe", "patch", "resnet18"])
def test_calibration_shows_kinds_that_see_wholes_the_part_missing_too(name):
    part = pictures(1)[0].permute(1, 2, 0).numpy()
    made = dict(resolve(name).must_not_pass(part))
    turned = made[Shown.TURNED]
    assert (turned[:20] == part[:20]).all(), "the board stays as it is"
    assert (turned[46:74, 40:88] != part[46:74, 40:88]).any()
    assert made[Shown.MISSING][46:74, 40:88].mean() < 130, "the surroundings lie over it"
    plain = np.full_like(part, 100)
    assert set(dict(resolve(name).must_not_pass(plain))) == {Shown.TURNED}
