"""The kind `good`: what it learns from good parts, how it finds what is strange, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_parts import DEFECT, GoodPart, bad, findings_of, half_second, moved, noisy, part, second_look
from picture_folders import saved

from coe.core import Expert, Finding, Heat
from coe.errors import ConfigError
from coe.prepare.golden_reference import learn
from coe.prepare.prepare import Preparer
from coe.store.kinds import Reference, Trained, TrainingPlan
from coe.store.store import Store
from experts.good_network import GRID

KIND = GoodPart()
EXPERT = Expert("good", "good", ("strange",), 96, "pairs/good", frozenset({"strange"}))


def shifted(seed: int) -> np.ndarray:
    """Return a good part as a camera sees it: noisy, shifted by up to three pixels."""
    right, down = np.random.default_rng(seed).integers(-3, 4, 2)
    return moved(noisy(part(), seed), float(right), float(down))


@pytest.fixture(scope="module")
def reference() -> Reference:
    learned = learn({str(seed): shifted(seed) for seed in range(8)})
    return Reference(learned.image, learned.spread)


def plan_of(data: Path, reference: Reference | None, **more: object) -> TrainingPlan:
    references = {} if reference is None else {"U1": reference}
    plan = TrainingPlan(data, data, epochs=1, batch=1, learning_rate=1e-3, threads=1, references=references)
    return replace(plan, **more)


@pytest.fixture(scope="module")
def trained(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    data = saved(tmp_path_factory.mktemp("good"), *(shifted(seed) for seed in range(8)))
    return KIND.train(EXPERT, plan_of(data, reference), lambda *_: None)


def look(trained: Trained, reference: Reference, *pictures: np.ndarray) -> list[Finding]:
    return findings_of(KIND, EXPERT, trained, [KIND.compare(pixels, reference, EXPERT) for pixels in pictures])


def test_what_good_parts_do_not_show_is_found_where_it_is(trained: Trained, reference: Reference) -> None:
    good, hole, aside = look(
        trained, reference, shifted(20), bad(shifted(21)), moved(bad(noisy(part(), 22)), right=4, down=-3)
    )
    assert (good.label, good.boxes) == ("none", ())
    assert hole.label == aside.label == "strange"
    x1, y1, x2, y2 = aside.boxes[0].xyxy
    middle = ((DEFECT[0] + DEFECT[2]) / 2 + 4, (DEFECT[1] + DEFECT[3]) / 2 - 3)
    assert x1 < middle[0] < x2, "boxes are in pixels of the picture"
    assert y1 < middle[1] < y2


def test_the_heat_map_lies_over_the_picture(trained: Trained, reference: Reference) -> None:
    (finding,) = look(trained, reference, moved(bad(noisy(part(), 22)), right=4, down=-3))
    heat = np.frombuffer(finding.heat.values, np.uint8).reshape(finding.heat.rows, finding.heat.columns)
    hot_row, hot_column = (axis.mean() + 0.5 for axis in (heat == heat.max()).nonzero())
    height, width = part().shape[:2]
    assert hot_column * width / GRID == pytest.approx((DEFECT[0] + DEFECT[2]) / 2 + 4, abs=6)
    assert hot_row * height / GRID == pytest.approx((DEFECT[1] + DEFECT[3]) / 2 - 3, abs=6)


def test_a_finding_does_not_depend_on_its_batch(trained: Trained, reference: Reference) -> None:
    pictures = [shifted(30), bad(shifted(31)), shifted(32)]
    together = look(trained, reference, *pictures)
    for pixels, finding in zip(pictures, together, strict=True):
        (alone,) = look(trained, reference, pixels)
        assert (alone.label, alone.score) == (finding.label, pytest.approx(finding.score, abs=1e-5))


def test_the_measures_say_what_few_parts_prove(trained: Trained) -> None:
    assert trained.metrics["good_parts"] == 8
    assert trained.metrics["called"] == 0
    assert trained.metrics["called_at_most"] == pytest.approx(1 - 0.05 ** (1 / 8))
    assert trained.metrics["wanted_false_calls"] == 0.05
    assert [remark.partition(":")[0] for remark in trained.remarks] == ["only 8 good parts"]


def test_a_lower_false_call_rate_sets_a_higher_limit(trained: Trained, reference: Reference, tmp_path: Path) -> None:
    data = saved(tmp_path / "good", *(shifted(seed) for seed in range(8)))
    strict = KIND.train(EXPERT, plan_of(data, reference, false_calls=0.001), lambda *_: None)
    assert strict.metrics["limit"] > trained.metrics["limit"] + 1
    again = KIND.train(EXPERT, plan_of(data, reference), lambda *_: None)
    assert all(torch.equal(again.state[name], value) for name, value in trained.state.items())


def test_a_bad_part_among_the_good_is_left_out_and_said(reference: Reference, tmp_path: Path) -> None:
    pictures = [shifted(seed) for seed in range(9)]
    pictures[4], pictures[6] = bad(pictures[4]), part(5)
    outcome = KIND.train(EXPERT, plan_of(saved(tmp_path / "good", *pictures), reference), lambda *_: None)
    assert outcome.metrics["good_parts"] == 7
    assert outcome.remarks[0].startswith("left out: 06.png: it does not fit its reference")
    assert outcome.remarks[1] == "left out: 04.png: it looks unlike the other good parts"
    assert look(outcome, reference, bad(shifted(40)))[0].label == "strange"


def test_layers_of_a_trained_classifier_take_the_place_of_random_layers(
    reference: Reference, tmp_path: Path, trained: Trained
) -> None:
    from safetensors.torch import save_file

    from experts.resnet import resnet18

    seen = resnet18.skeleton(Expert("c", "resnet18", ("a", "b"), 64, "b/c")).state_dict()
    save_file(seen, tmp_path / "c.safetensors")
    data = saved(tmp_path / "good", *(shifted(seed) for seed in range(6)))
    outcome = KIND.train(EXPERT, plan_of(data, reference, init=tmp_path / "c.safetensors"), lambda *_: None)
    assert torch.equal(outcome.state["layer1.0.conv1.weight"], seen["layer1.0.conv1.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"references": {}}, "make it with `coe-experts reference`, and train with --board"),
        ({"freeze": ("conv1",)}, "leave 'freeze' out"),
        ({"data": Path("nothing")}, "give a folder with images of good parts"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    reference: Reference, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    plan = replace(plan_of(saved(tmp_path / "good"), reference), **change)
    with pytest.raises(ConfigError, match=message):
        KIND.train(EXPERT, plan, lambda *_: None)


def test_too_few_good_parts_are_refused_with_the_reason(reference: Reference, tmp_path: Path) -> None:
    data = saved(tmp_path / "good", part(5), *(shifted(seed) for seed in range(4)))
    with pytest.raises(ConfigError, match=r"4 of 5 images.*00\.png"):
        KIND.train(EXPERT, plan_of(data, reference), lambda *_: None)


@pytest.mark.parametrize(
    ("expert", "message"),
    [(replace(EXPERT, labels=("a", "b")), "give exactly one"), (replace(EXPERT, input_size=48), "give at least 64")],
)
def test_an_expert_has_one_label_and_a_large_enough_input(expert: Expert, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KIND.skeleton(expert)


def test_a_heat_map_has_a_value_for_each_place() -> None:
    with pytest.raises(ValueError, match="2 x 3 places has 5"):
        Heat(2, 3, bytes(5))


def test_a_lesser_precision_agrees_or_looks_again(trained: Trained, reference: Reference, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put("pairs/good", kind=KIND.name, labels=("strange",), input_size=96, state=trained.state)
    data = saved(tmp_path / "seen", *(make(shifted(seed)) for seed in range(3) for make in (np.copy, bad)))
    outcome = Preparer(store, ("fp32", "bf16", "q8"), allow_kinds=["golden_parts"]).prepare(
        "pairs/good", sorted(data.iterdir())
    )
    assert outcome.failed == {}
    off = {
        name: blob.agreement.largest_score_difference
        for name, blob in outcome.manifest.variants.items()
        if blob.agreement
    }
    assert off["fp32"] < 1e-4
    assert off["bf16"] < 0.2
    # Parts that hardly differ have small spreads: 8 bits move such scores, and the expert looks again.
    assert outcome.manifest.variants["q8"].escalate_below > 0


def turned(seed: int, share: float = 0.0) -> np.ndarray:
    """Return a part that lies a little askew; its defect, if any, shows a share of its difference."""
    good, chance = noisy(part(), seed), np.random.default_rng(seed)
    mixed = ((1 - share) * good + share * bad(good)).round().astype(np.uint8)
    right, down, degrees = chance.uniform((-1.5, -1.5, -0.5), (1.5, 1.5, 0.5))
    return moved(mixed, float(right), float(down), float(degrees))


def test_one_faint_defect_among_good_parts_is_left_out_and_such_defects_are_called(
    reference: Reference, tmp_path: Path
) -> None:
    data = saved(tmp_path / "data", *(turned(seed) for seed in range(10)), turned(30, 0.25))
    learned = KIND.train(EXPERT, plan_of(data, reference), lambda *_: None)
    assert learned.remarks == ("left out: 10.png: it looks unlike the other good parts",)
    assert (learned.metrics["good_parts"], learned.metrics["left_out"]) == (10, 1)
    findings = look(learned, reference, *(turned(seed, 0.25) for seed in range(40, 44)))
    assert [finding.label for finding in findings] == ["strange"] * 4


def test_at_most_a_quarter_is_left_out_and_no_part_of_a_clean_folder(reference: Reference, tmp_path: Path) -> None:
    clean = KIND.train(
        EXPERT,
        plan_of(saved(tmp_path / "clean", *(turned(seed) for seed in range(50, 62))), reference),
        lambda *_: None,
    )
    assert clean.remarks == ()
    half = [*(turned(seed) for seed in range(6)), *(turned(seed, 0.25) for seed in range(6, 12))]
    mixed = KIND.train(EXPERT, plan_of(saved(tmp_path / "half", *half), reference), lambda *_: None)
    assert mixed.metrics["good_parts"] >= 9


def test_each_alternate_has_statistics_of_its_own(reference: Reference, tmp_path: Path) -> None:
    learned = learn({str(seed): second_look(shifted(seed)) for seed in range(6)})
    both = replace(reference, id="b/one", others=(Reference(learned.image, learned.spread, "b/two", place=1),))
    looks = [look for seed in range(6) for look in (shifted(seed), second_look(shifted(seed)))]
    trained = KIND.train(EXPERT, plan_of(saved(tmp_path / "both", *looks), both), lambda *_: None)
    assert trained.metrics["good_parts"] == 12
    expert = replace(EXPERT, alternates=2)
    part_of = [
        shifted(50),
        second_look(shifted(51)),
        bad(shifted(52)),
        bad(second_look(shifted(53))),
        half_second(part()),
    ]
    prepared = [KIND.compare_best(pixels, both, expert) for pixels in part_of]
    findings = findings_of(KIND, expert, trained, prepared)
    assert [one.reference for one in prepared] == ["b/one", "b/two", "b/one", "b/two", "b/one"]
    assert [finding.label for finding in findings] == ["none", "none", "strange", "strange", "strange"]


def test_each_alternate_needs_good_parts(reference: Reference, tmp_path: Path) -> None:
    learned = second_look(part())
    both = replace(reference, others=(Reference(learned, np.zeros(learned.shape[:2], np.uint8), "b/two", place=1),))
    pictures = [*(shifted(seed) for seed in range(6)), second_look(shifted(6))]
    with pytest.raises(ConfigError, match=r"1 of 7 images fit 'b/two' best"):
        KIND.train(EXPERT, plan_of(saved(tmp_path / "few", *pictures), both), lambda *_: None)
