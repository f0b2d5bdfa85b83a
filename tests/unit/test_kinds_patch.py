"""The kind `patch`: learned from good parts alone, wherever they lie, or in the frame of a reference."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional
from trainings import plan, silent

from coe import Inspector
from coe.board import calibration_file, rules, scores
from coe.cli import experts_command
from coe.core import NOTHING, Expert, Heat, Request, Result, Verdict
from coe.errors import ConfigError, StoreError
from coe.learn import calibration_text, learning
from coe.pictures.image_source import Reference
from coe.results import result_lines
from coe.results.drawing import enlarged_pair
from coe.store import bodies
from coe.store.kinds import Trained
from coe.store.store import Store
from coe.variants.fold import fold, network
from coe.variants.prepare import Preparer
from experts.core_set import core_set
from experts.patch import patch
from experts.patch_deviations import LeftOut, Parts, apart
from experts.patch_network import USUAL

EXPERT = Expert("eye", "patch", ("strange",), 64, "line7/eye", reject=frozenset({"strange"}))
SIDE = 96


def part(seed, *, blot=None, at=None):
    """Draw a part with two marks on a board, at a place that the seed decides, with a blot at a place if it is bad."""
    rng = np.random.default_rng(seed)
    x, y = at or (int(rng.integers(16, 32)), int(rng.integers(16, 32)))
    picture = np.full((SIDE, SIDE, 3), (40, 110, 60), np.uint8)
    cv2.rectangle(picture, (x, y), (x + 48, y + 32), (200, 190, 170), -1)
    cv2.circle(picture, (x + 10, y + 16), 5, (40, 40, 50), -1)
    cv2.rectangle(picture, (x + 26, y + 10), (x + 42, y + 22), (230, 60, 50), -1)
    if blot is not None:
        cv2.circle(picture, (x + blot[0], y + blot[1]), 10, (10, 20, 200), -1)
    return (picture + rng.normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8)


def saved(folder, pictures):
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(folder / f"{number:02}.png"), picture[:, :, ::-1])
    return folder


@pytest.fixture(scope="module")
def learn(backbone, tmp_path_factory):
    def learn(pictures, expert=EXPERT, **more):
        data = saved(tmp_path_factory.mktemp("photos") / "good", pictures)
        return patch.train(expert, plan(data, **{"init": backbone, **more}), silent)

    return learn


@pytest.fixture(scope="module")
def learned(learn):
    return learn([part(seed) for seed in range(12)])


LAST = []


def network_of(trained, expert):
    """Return an expert's network, which is kept until another expert is asked: tests let it judge several pictures."""
    if not LAST or LAST[0] is not trained or LAST[1] != expert:
        LAST[:] = trained, expert, network(patch, expert, trained.state)
    return LAST[2]


def judged(trained, picture, reference=None, expert=EXPERT):
    prepared = patch.preprocess(picture, expert) if reference is None else patch.compare(picture, reference, expert)
    with torch.inference_mode():
        outputs = patch.forward(network_of(trained, expert), torch.from_numpy(prepared.pixels[None]))
    return patch.postprocess(outputs, [prepared], expert)[0]


def is_shown_at(finding, x, y, by):
    """Return whether the best box holds the place, and the heat map has its top so near."""
    x1, y1, x2, y2 = max(finding.boxes, key=lambda box: box.score).xyxy
    heat = np.frombuffer(finding.heat.values, np.uint8).reshape(finding.heat.rows, finding.heat.columns)
    down, across = (np.array(np.unravel_index(heat.argmax(), heat.shape)) + 0.5) * SIDE / heat.shape
    return bool(x1 < x < x2 and y1 < y < y2 and abs(across - x) < by and abs(down - y) < by)


def test_good_parts_pass_a_blot_is_shown_an_ignored_box_takes_no_doubt_along_and_the_bank_is_small(learned):
    assert {judged(learned, part(seed)).label for seed in range(100, 106)} == {"none"}
    bad = judged(learned, part(200, blot=(36, 27), at=(20, 30)))
    assert bad.label == "strange"
    assert is_shown_at(bad, 56, 57, by=20)
    finding = judged(learned, np.full((SIDE, SIDE, 3), 250, np.uint8))
    assert (finding.label, bool(finding.doubt)) == ("strange", True)
    ignored = scores.adjusted(finding, replace(EXPERT, ignore_under={"strange": 1.0}))
    assert (ignored.label, bool(ignored.doubt)) == (NOTHING, True)
    own = {name: tensor for name, tensor in learned.state.items() if not name.startswith("backbone.")}
    assert sum(tensor.nbytes for tensor in own.values()) < 1e6
    assert learned.metrics["good_parts"] >= 11
    assert len(fold(patch, EXPERT, learned.state).pairs) == 48


def test_a_picture_without_its_part_is_called_though_it_shows_nothing_new(learn):
    def empty(seed):
        rng = np.random.default_rng(seed)
        weave = cv2.GaussianBlur(rng.normal(0, 80, (SIDE, SIDE)), (0, 0), 2)[:, :, None]
        rough = np.full((SIDE, SIDE, 3), (40, 110, 60)) + weave + rng.normal(0, 3, (SIDE, SIDE, 3))
        return np.asarray(rough.clip(0, 255), np.uint8)

    def small(seed):
        picture, shown = empty(seed), cv2.resize(part(seed, at=(20, 30))[24:68, 14:74], (36, 26))
        x, y = np.random.default_rng(seed + 500).integers(0, (SIDE - 36, SIDE - 26))
        picture[y : y + 26, x : x + 36] = shown
        return picture

    trained = learn([small(seed) for seed in range(12)])
    assert {judged(trained, small(seed)).label for seed in range(100, 104)} == {"none"}
    assert all(judged(trained, empty(seed)).doubt for seed in range(900, 904))
    assert trained.exam is not None
    assert trained.exam.is_surface, "nobody can tell where the parts lie, so the exam does not tell what passes"


def test_the_wanted_rate_moves_the_limit_alone_and_16_bits_give_the_same_expert(learn, learned):
    strict = learn([part(seed) for seed in range(12)], false_calls=0.01)
    differing = {name for name, one in learned.state.items() if not torch.equal(one, strict.state[name])}
    assert differing == {"limit", "near.usual"}
    again = learn([part(seed).astype(np.uint16) << 8 | 0x80 for seed in range(12)])
    assert all(torch.equal(again.state[name], tensor) for name, tensor in learned.state.items())


def test_it_shows_a_good_patch_beside_what_deviates_which_survives_the_results_of_a_run(learned):
    picture = part(200, blot=(36, 27), at=(20, 30))
    likeness = judged(learned, picture).likeness
    good = np.frombuffer(likeness.pixels, np.uint8).reshape(likeness.side, likeness.side, 3)
    blue = (good[:, :, 2].astype(int) - good[:, :, 0]) > 100
    assert not blue.any()
    here, beside = enlarged_pair(picture, likeness)
    x1, y1, x2, y2 = likeness.box
    assert here.shape == beside.shape
    assert here.shape[0] * (x2 - x1) == pytest.approx(here.shape[1] * (y2 - y1), rel=0.02)
    assert ((here[:, :, 2].astype(int) - here[:, :, 0]) > 100).any()
    finding = judged(learned, part(200, blot=(36, 27), at=(20, 30)))
    result = Result(Request(0, "U1", "a.png"), Verdict.NG, (finding,), 0.1)
    back = result_lines.from_line(result_lines.to_line(result).encode(), 0).findings[0].likeness
    assert (back.side, back.pixels) == (finding.likeness.side, finding.likeness.pixels)
    assert back.box == pytest.approx(finding.likeness.box, abs=0.1)


def other(seed):
    picture = np.full((SIDE, SIDE, 3), 128, np.uint8)
    cv2.circle(picture, (48, 48), 30, (250, 240, 20), 6)
    return (picture + np.random.default_rng(seed).normal(0, 3, picture.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("others", [1, 3])
def test_pictures_of_another_part_are_left_out_and_named_and_do_not_hide_each_other(learn, others):
    trained = learn([*(part(seed) for seed in range(10)), *(other(seed) for seed in range(others))])
    assert trained.metrics["left_out"] == others
    assert trained.metrics["called"] >= others, "if they are good, their like is called"
    assert all(any(f"{number}.png" in remark for remark in trained.remarks) for number in range(10, 10 + others))


def test_pictures_of_another_part_that_are_too_many_to_be_left_out_are_named(learn):
    trained = learn([*(part(seed) for seed in range(8)), *(other(seed) for seed in range(6))])
    assert trained.metrics["left_out"] == 0
    assert [remark for remark in trained.remarks if "08.png, 09.png, 10.png and 3 more" in remark]


def test_series_of_few_parts_and_what_deviates_most_are_told(learn, learned):
    places = [(14, 14), (14, 48), (34, 30), (20, 60)]
    trained = learn([part(seed, at=places[seed % 4]) for seed in range(16)])
    assert [remark for remark in trained.remarks if "series of about 4 parts" in remark]
    (most,) = (remark for remark in learned.remarks if "deviate most" in remark)
    assert most.count(".png") >= 2
    assert not [remark for remark in learned.remarks if "series" in remark]


def test_one_odd_good_part_does_not_let_defects_pass(learn):
    odd = part(11, at=(20, 24))
    cv2.circle(odd, (50, 50), 3, (120, 110, 100), -1)
    trained = learn([*(part(seed) for seed in range(11)), odd])
    assert trained.metrics["left_out"] == 0
    bad = part(200, at=(20, 30))
    cv2.circle(bad, (56, 57), 4, (10, 20, 200), -1)
    assert judged(trained, bad).label == "strange"


@pytest.mark.parametrize(
    ("pictures", "plan", "named"),
    [
        ([part(seed) for seed in range(4)], {}, "at least 5"),
        ([part(1)] * 8, {}, "8 .* 1 "),
        ([part(seed) for seed in range(6)], {"init": None}, "backbone add"),
        ([part(seed) for seed in range(6)], {"freeze": ("conv1",)}, "freeze"),
    ],
    ids=["few", "alike", "no backbone", "freeze"],
)
def test_what_cannot_be_learned_is_refused(learn, pictures, plan, named):
    with pytest.raises(ConfigError, match=named):
        learn(pictures, **plan)


def surface(seed):
    chance = np.random.default_rng(seed)
    weave = cv2.GaussianBlur(chance.normal(0, 30, (SIDE, SIDE)), (0, 0), 2)[:, :, None]
    return (125 + weave + chance.normal(0, 2, (SIDE, SIDE, 3))).clip(0, 255).astype(np.uint8)


@pytest.mark.slow
def test_a_part_that_is_small_in_its_pictures_is_told_and_grey_pictures_are_learned_as_they_are(learn):
    def small(seed):
        picture = np.full((4 * SIDE, 4 * SIDE, 3), (40, 110, 60), np.uint8)
        at = 30 + 7 * seed
        picture[at : at + 40, at : at + 40] = cv2.resize(part(seed, at=(20, 30)), (40, 40))
        return picture

    assert [remark for remark in learn([small(seed) for seed in range(12)]).remarks if "crop" in remark]
    assert not [remark for remark in learn([surface(seed) for seed in range(12)]).remarks if "crop" in remark]

    def grey(seed, **how):
        return cv2.cvtColor(cv2.cvtColor(part(seed, **how), cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)

    trained = learn([grey(seed) for seed in range(12)])
    assert judged(trained, grey(100)).label == "none"
    assert judged(trained, grey(200, blot=(36, 27), at=(20, 30))).label == "strange"


@pytest.mark.slow
def test_a_part_that_fills_five_hundredths_of_its_pictures_is_told(learn):
    def at(seed, side):
        picture = np.full((4 * SIDE, 4 * SIDE, 3), (40, 110, 60), np.uint8)
        left, top = np.random.default_rng(seed).integers(20, 360 - side, 2)
        picture[top : top + side, left : left + side] = cv2.resize(part(seed, at=(20, 30)), (side, side))
        return picture

    def remarks(side, light=1.0):
        board = np.array((40, 110, 60))
        pictures = [(light * (0.7 * at(seed, side) + 0.3 * board)).astype(np.uint8) for seed in range(5)]
        return [remark for remark in learn(pictures, replace(EXPERT, input_size=224)).remarks if "crop" in remark]

    # The part has a sixth of the square that is pasted.
    assert remarks(200)
    assert not remarks(330)
    assert not remarks(330, light=0.3)


@pytest.mark.slow
def test_each_alternate_has_a_bank_of_its_own(learn):
    at = (24, 28)

    def turned(seed, **more):
        return part(seed, at=at, **more)[:, ::-1].copy()

    nothing = np.zeros((SIDE, SIDE), np.uint8)
    other = Reference(turned(0), nothing, "b/two", place=1)
    reference = Reference(part(0, at=at), nothing, "b/one", (other,))
    both = [look for seed in range(6) for look in (part(seed, at=at), turned(seed))]
    trained = learn(both, references={"U1": reference})
    assert (trained.metrics["good_parts"], trained.in_frame) == (12, True)
    expert = replace(EXPERT, alternates=2)
    module = network(patch, expert, trained.state)

    def said(picture):
        prepared = patch.compare_best(picture, reference, expert)
        with torch.inference_mode():
            outputs = patch.forward(module, torch.from_numpy(prepared.pixels[None]))
        return prepared.reference, patch.postprocess(outputs, [prepared], expert)[0].label

    assert said(part(100, at=at)) == ("b/one", "none")
    assert said(turned(101)) == ("b/two", "none")
    assert said(part(102, at=at, blot=(36, 27))) == ("b/one", "strange")
    assert said(turned(103, blot=(36, 27))) == ("b/two", "strange")


def loose(seed, shot=0):
    """Draw a part of which no two look alike, as in a shot of a series of it."""
    chance = np.random.default_rng(seed)
    picture = np.full((SIDE, SIDE, 3), (150, 90, 40), np.uint8)
    for _ in range(12):
        at, colour = chance.integers(8, SIDE - 8, 2), chance.integers(0, 256, 3)
        cv2.circle(picture, (int(at[0]), int(at[1])), int(chance.integers(4, 12)), colour.tolist(), -1)
    return (picture + np.random.default_rng(shot).normal(0, 2, picture.shape)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("pictures", "looks"),
    [
        ([loose(shot // 4, shot) for shot in range(24)], 1),
        ([part(seed, at=(20, 30)) for seed in range(8)] + [loose(seed, seed) for seed in range(10)], 2),
    ],
    ids=["series", "one look is more alike"],
)
def test_series_of_a_few_parts_are_not_two_looks(learn, pictures, looks):
    trained = learn(pictures)
    assert trained.looks == looks
    assert not [remark for remark in trained.remarks if "crop" in remark], "the part fills its pictures"


@pytest.mark.slow
def test_it_tells_which_pictures_show_one_part(backbone):
    def parts_of(shots):
        pictures = [loose(shot // shots, shot) for shot in range(12)]
        inputs = [patch.preprocess(one, EXPERT).pixels for one in pictures]
        made = plan(Path(), init=backbone)
        return [*patch.parts_of(EXPERT, made, [*inputs, *inputs], ["good"] * 12 + ["bad"] * 12)]

    assert len(set(parts_of(1))) == 24, "the parts of one label are none of another's"
    series = parts_of(3)
    assert [len({*series[first : first + 3]}) for first in range(0, 24, 3)] == [1] * 8
    assert len({*series}) == 8


@pytest.mark.slow
def test_two_looks_without_a_reference_have_limits_of_their_own(learn):
    trained = learn([part(seed, at=(20, 30)) for seed in range(10)] + [loose(seed) for seed in range(8)])
    assert (trained.looks, trained.in_frame, trained.metrics["good_parts"]) == (2, False, 18)
    expert = replace(EXPERT, alternates=2)
    small = [part(seed, at=(20, 30), blot=(36, 27)) for seed in range(200, 206)]
    assert {judged(trained, one, expert=expert).label for one in small} == {"strange"}
    assert {judged(trained, part(seed, at=(20, 30)), expert=expert).label for seed in range(100, 104)} == {"none"}
    assert judged(trained, loose(100), expert=expert).label == "none"


def test_in_the_frame_of_a_reference_the_place_counts(learn):
    at = (24, 32)
    reference = Reference(part(0, at=at), np.zeros((SIDE, SIDE), np.uint8))
    good = [part(seed, at=(at[0] + seed % 3 - 1, at[1] + seed % 2)) for seed in range(12)]
    trained = learn(good, references={"U1": reference})
    assert trained.in_frame
    assert judged(trained, part(100, at=at), reference).label == "none"
    # A mark that good parts show elsewhere.
    twice = part(101, at=at)
    cv2.circle(twice, (at[0] + 24, at[1] + 16), 5, (40, 40, 50), -1)
    assert judged(trained, twice, reference).label == "strange"
    assert judged(trained, np.zeros((SIDE, SIDE, 3), np.uint8), reference).doubt


@pytest.mark.slow
def test_aligned_parts_seem_no_farther_from_each_other_than_further_ones_do():
    # Each part looks of its own along six directions, more rows than a bank holds: rows stand for others.
    rng, grid, count = torch.Generator().manual_seed(0), 28, 10
    usual, directions = torch.randn(grid, grid, 32, generator=rng), torch.randn(6, 32, generator=rng)
    seen = usual + torch.randn(2 * count, 1, 1, 6, generator=rng) @ directions / 6**0.5
    seen = functional.normalize(seen + 0.1 * torch.randn(seen.shape, generator=rng), dim=3)
    names = [str(number) for number in range(2 * count)]
    whole, numbers = torch.zeros(2 * count, 2), torch.arange(2 * count)
    drawn = Parts(names, torch.zeros(2 * count, 3, 1, 1), seen, whole, numbers, None)
    parts, others = drawn.of([*range(count)]), drawn.of([*range(count, 2 * count)])
    parts = replace(parts, apart=apart(parts))
    judge = LeftOut(parts)
    far = torch.cdist(others.seen.flatten(1, 2), judge.bank.values).square()
    far += parts.apart * torch.cdist(parts.places()[: grid**2], parts.places()[judge.bank.patches]).square()
    own, further = (one.flatten(1).amax(dim=1).mean() for one in (judge.squares(parts.numbers), far.amin(dim=2)))
    assert own / further == pytest.approx(1, abs=0.25)


@pytest.mark.slow
def test_in_the_frame_of_a_reference_a_deviation_counts_less_where_good_parts_vary(learn):
    at = (24, 32)

    def beside_a_trace(seed):
        picture = part(seed, at=at)
        cv2.line(picture, (0, 6 + 3 * seed % 16), (SIDE, 6 + 3 * seed % 16), (150, 230, 170), 2)
        return picture

    reference = Reference(part(0, at=at), np.zeros((SIDE, SIDE), np.uint8))
    trained = learn([beside_a_trace(seed) for seed in range(12)], references={"U1": reference})
    usual = trained.state["log_usual"][0]
    assert usual[2:6].mean() > usual[12:20].mean() + 0.5
    state = trained.state | {
        name: trained.state[name] + more for name, more in (("log_usual", 4.0), ("optional.usual", 1000))
    }
    bad = part(101, at=at, blot=(36, 27))
    assert judged(trained, bad, reference).label == "strange"
    assert judged(replace(trained, state=state), bad, reference).label == "none"


def test_a_colour_that_no_good_part_shows_at_its_place_is_strange(learn):
    at = (24, 32)

    def leads(seed, colour=None):
        """Good leads shine more or less, and each is grey."""
        picture, chance = part(seed, at=at), np.random.default_rng(seed)
        for x in (4, 16, 28, 40):
            shine = (int(chance.integers(90, 220)),) * 3
            cv2.rectangle(picture, (at[0] + x, at[1] + 24), (at[0] + x + 5, at[1] + 30), shine, -1)
        if colour is not None:
            cv2.rectangle(picture, (at[0] + 4, at[1] + 24), (at[0] + 9, at[1] + 30), colour, -1)
        return picture

    reference = Reference(leads(0), np.zeros((SIDE, SIDE), np.uint8))
    trained = learn([leads(seed) for seed in range(12)], references={"U1": reference})
    copper = leads(100, (190, 140, 100))
    assert judged(trained, leads(100), reference).label == "none"
    finding = judged(trained, copper, reference)
    assert finding.label == "strange"
    assert is_shown_at(finding, at[0] + 7, at[1] + 27, by=8)
    blind = {name: one for name, one in trained.state.items() if not name.startswith("optional.")}
    assert judged(replace(trained, state=blind), copper, reference).label == "none"


@pytest.mark.slow
@pytest.mark.parametrize(("boards", "said"), [(3, "none"), (1, "strange")], ids=["several", "one"])
def test_a_board_of_a_new_colour_is_strange_where_good_parts_had_boards_of_one(learn, boards, said):
    def on(board, seed):
        picture = part(seed, at=(24, 32)).astype(int)
        bare = (abs(picture - (40, 110, 60)) < 20).all(axis=2)
        return (picture + bare[:, :, None] * (np.array(board) - (40, 110, 60))).clip(0, 255).astype(np.uint8)

    shown = [(40, 110, 60), (35, 60, 130), (50, 50, 55)][:boards]
    reference = Reference(on(shown[0], 0), np.zeros((SIDE, SIDE), np.uint8))
    trained = learn([on(shown[seed % boards], seed) for seed in range(12)], references={"U1": reference})
    blind = replace(trained, state=trained.state | {"log_usual": trained.state["log_usual"] + 8.0})  # for patches
    assert judged(blind, on(shown[0], 100), reference).label == "none"
    assert judged(blind, red := on((140, 45, 40), 100), reference).label == said
    before = {name: one for name, one in blind.state.items() if name != "leeway"}
    assert judged(replace(blind, state=before), red, reference).label == "strange"


def test_an_expert_that_the_kind_cannot_run_is_refused():
    for wrong in ({"labels": ("a", "b")}, {"input_size": 32}, {"input_size": 100}):
        with pytest.raises(ConfigError, match="eye"):
            patch.skeleton(replace(EXPERT, **wrong))


BOARD = """
board: line7
experts:
  eye: {kind: patch, labels: [strange], input: 64, reject: [strange], then: {none: OK}}
  ear: {kind: patch, labels: [strange], input: 64, reject: [strange], then: {none: OK}}
components:
  U1: {inspect: eye}
  U2: {inspect: ear}
"""


@pytest.mark.slow
def test_experts_of_one_backbone_share_it_and_a_line_runs_them(call, tmp_path):
    board, store = tmp_path / "line7.yaml", tmp_path / "store"
    board.write_text(BOARD)
    for name, first in (("eye", 0), ("ear", 20)):
        good = saved(tmp_path / name, [part(seed) for seed in range(first, first + 12)])
        told = ("train", f"line7/{name}", "--board", board, "--data", good, "--epochs", "1", "--no-prepare")
        assert call(*told, "--store", store, command=experts_command).status == 0
    shelf = Store(store)
    eye, ear = shelf.manifest("line7/eye"), shelf.manifest("line7/ear")
    assert (eye.body is not None, eye.body == ear.body, eye.bytes < 1e6) == (True, True, True)
    assert call("verify", "--store", store, command=experts_command).status == 0
    with Inspector(board, store=store, memory="200MB") as line:
        assert line.submit(part(100), "U1", order="RGB").result().verdict is Verdict.OK
        bad = line.submit(part(200, blot=(36, 27), at=(20, 30)), "U2", order="RGB").result()
    assert bad.verdict is Verdict.NG
    assert bad.findings[0].likeness is not None
    board.write_text(BOARD.replace("U1: {inspect: eye}", "U1: {inspect: eye, reference: U1}"))
    saved(tmp_path / "good" / "U1", [part(seed, at=(24, 32)) for seed in range(3)])
    told = ("reference", board, "--images", tmp_path / "good", "--store", store)
    assert call(*told, command=experts_command).status == 0
    with pytest.raises(StoreError, match=r"eye.*without a reference"):
        Inspector(board, store=store, memory="200MB")


@pytest.mark.slow
def test_experts_with_colours_and_without_take_turns_on_one_line(tmp_path, learned):
    board, store = tmp_path / "line7.yaml", Store(tmp_path / "store")
    board.write_text(BOARD)
    experts = rules.load(board).experts
    colours = patch.skeleton(EXPERT).state_dict()
    # No good part shows any colour.
    none = {"optional.least": colours["optional.least"] + 255, "optional.most": colours["optional.most"] - 255}
    called = {"centre": torch.zeros(2), "optional.usual": colours["optional.usual"]}
    learning.put(store, experts["eye"], learned, None, "drawn parts")
    learning.put(store, experts["ear"], replace(learned, state=learned.state | none | called), None, "drawn parts")
    samples = sorted(saved(tmp_path / "good", [part(0), part(1)]).iterdir())
    for expert in experts.values():
        bodies.divide_frozen(store, store.manifest(expert.weights), ("backbone.",))
        Preparer(store, ["fp32"]).prepare(expert.weights, samples)
    assert {one.body for one in map(store.manifest, store.ids())} != {None}
    with Inspector(board, store=store.root, memory="200MB") as line:
        verdicts = [line.submit(part(100), name, order="RGB").result().verdict for name in ("U1", "U2", "U1", "U2")]
    assert verdicts == [Verdict.OK, Verdict.NG, Verdict.OK, Verdict.NG]


def test_what_was_exported_comes_back_with_its_looks_unless_it_needs_its_reference(call, tmp_path):
    whole, store = patch.skeleton(replace(EXPERT, alternates=2)).state_dict(), Store(tmp_path / "store")
    state = {name: one for name, one in whole.items() if not name.startswith("optional.")}
    learning.put(store, EXPERT, Trained(state, EXPERT.labels, {}, looks=2), None, "made up")
    file = tmp_path / "eye.safetensors"
    show = ("show", EXPERT.weights, "--weights", file, "--store", store.root)
    back = ("import", "line7/back", file, "--kind", "patch", "--no-prepare", "--store", store.root)
    assert [call(*words, command=experts_command).status for words in (show, back)] == [0, 0]
    assert store.manifest("line7/back").looks == 2
    aligned = Trained(whole | {"centre": torch.zeros(6)}, EXPERT.labels, {})
    learning.put(store, EXPERT, aligned, None, "made up", reference="one+two")
    assert call(*show, command=experts_command).status == 0
    refused = call(*back, command=experts_command)
    assert (refused.status, "reference" in refused.err) == (2, True)


@pytest.mark.slow
def test_bad_pictures_calibrate_and_evaluate_it(call, tmp_path, learned):
    board, store = tmp_path / "line7.yaml", Store(tmp_path / "store")
    board.write_text(BOARD)
    learning.put(store, rules.load(board).experts["eye"], learned, None, "trained on drawn parts")
    for purpose, first in (("verified", 100), ("others", 150)):
        saved(tmp_path / purpose / "U1" / "good", [part(seed) for seed in range(first, first + 12)])
        bad = [part(seed, blot=(seed % 40, 27)) for seed in range(first + 20, first + 32)]
        saved(tmp_path / purpose / "U1" / "bad", bad)

    def said(command, images, *options):
        told = (command, board, "--images", tmp_path / images, "--store", store.root, *options)
        return call(*told, command=experts_command)

    calibrated = said("calibrate", "verified", "--escapes", "0.25", "--write")
    assert calibrated.status == 0, calibrated.err
    entry = calibration_text.entries(board, calibration_file.path_for(board).read_bytes())["eye"]
    assert entry.origin.pictures + entry.origin.not_compared == 24
    assert (entry.origin.escapes.events, entry.origin.proven) == (0, True)
    evaluated = said("evaluate", "others")
    wrong = [line for line in evaluated.out.splitlines() if "U1/bad" in line]
    assert all("in doubt" in line for line in wrong), evaluated.out


def test_a_core_set_takes_what_lies_apart_first_and_a_heat_map_has_a_value_for_each_place():
    rows = torch.cat([torch.zeros(50, 4), torch.eye(4) * 5, torch.full((10, 4), 0.01)])
    assert set(core_set(rows, 5).tolist()) >= {50, 51, 52, 53}
    assert len(core_set(torch.ones(9, 4), 5)) == 1
    apart = torch.tensor([[0.0], [0.0], [9.0]])
    assert set(core_set(torch.ones(3, 4), 2, apart).tolist()) in ({0, 2}, {1, 2})
    with pytest.raises(ValueError, match="2 x 3 places has 5"):
        Heat(2, 3, bytes(5))


def test_the_backbone_is_the_body_also_of_experts_without_colours(tmp_path, learned):
    store, colours = Store(tmp_path / "store"), patch.skeleton(EXPERT).optional.state_dict()
    for number in range(2):
        own = {f"optional.{name}": one for name, one in colours.items()} if number else {}
        own["log_usual"] = torch.full((1, USUAL, USUAL), float(number))
        expert, trained = replace(EXPERT, weights=f"line7/{number}"), replace(learned, state=learned.state | own)
        learning.put(store, expert, replace(trained, frozen=("backbone.",)), None, "drawn parts")
    assert len({manifest.body and manifest.body.digest for manifest in map(store.manifest, store.ids())}) == 1
    assert all(name.startswith("backbone.") for name in bodies.names(store, store.manifest("line7/1")))
