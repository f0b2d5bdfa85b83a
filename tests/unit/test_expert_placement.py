"""Where experts lie: every expert, within budgets, balanced, with its predecessors, and hardly ever moving."""

import random
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import with_slow_rows
from thorough import THOROUGH

from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds, Traffic
from coe.cluster.decisions.place_experts import place_experts
from coe.cluster.decisions.placement_solver import PlacementSolver
from coe.errors import ConfigError

TRAFFIC = Traffic(move_s=0.001, images=2000)


def need(name, **changes):
    """An expert of 10 bytes that loads in 1 s and runs an image in 20 ms."""
    return replace(ExpertNeeds(name, 10, {"a": 0.1}, 0.02, 1.0), **changes)


def boxes_of(*budgets):
    return [BoxBudget(f"box{number}", budget) for number, budget in enumerate(budgets)]


def objective(placement, experts, boxes):
    """J of a placement, in seconds for each image; experts that no box can hold do not count."""
    needs = {need.expert: need for need in experts if need.expert in placement.boxes}
    numbers = {box.id: number for number, box in enumerate(boxes)}
    solver = PlacementSolver({name: needs[name] for name in sorted(needs)}, boxes, TRAFFIC)
    for expert in sorted(needs, key=solver.worth, reverse=True):
        solver.settle(expert, [numbers[box] for box in placement.boxes[expert]])
    # A flow counts at both of its ends.
    return solver.book.objective() + TRAFFIC.move_s * sum(map(solver.apart_images, needs)) / 2


def board(classifiers, boards=1, seed=0):
    """Classifiers whose usage falls as 1 / rank; half of them lead to one of a tenth as many detectors."""
    chance = random.Random(seed)
    total = sum(1 / rank for rank in range(1, classifiers + 1))
    used = {f"d{number}": {} for number in range(max(1, classifiers // 10))}
    experts = []
    for rank in chance.sample(range(1, classifiers + 1), classifiers):
        usage, key = 1 / rank / total, f"board{rank % boards}"
        leads = {}
        if rank % 2:
            detector = f"d{rank // 2 % len(used)}"
            leads, used[detector][key] = {detector: 0.9}, used[detector].get(key, 0.0) + 0.9 * usage
        experts.append(need(f"c{rank}", usage={key: usage}, leads=leads))
    return experts + [need(name, usage=usage) for name, usage in used.items()]


EXPERTS = st.lists(
    st.builds(
        ExpertNeeds,
        st.integers(0, 40).map("e{}".format),
        st.integers(0, 30),
        st.dictionaries(st.sampled_from("ab"), st.floats(0, 1, allow_subnormal=False), max_size=2),
        st.floats(0, 0.1, allow_subnormal=False),
        st.floats(0, 2, allow_subnormal=False),
        st.dictionaries(st.integers(0, 40).map("e{}".format), st.floats(0, 1, allow_subnormal=False), max_size=3),
    ),
    unique_by=lambda expert: expert.expert,
    max_size=25,
)
BUDGETS = st.lists(st.integers(1, 80), min_size=2, max_size=5)


def check(placement, experts, boxes):
    needs, budgets = {expert.expert: expert for expert in experts}, {box.id: box.bytes for box in boxes}
    assert set(placement.boxes) == {e for e, n in needs.items() if n.bytes <= max(budgets.values())}
    assert set(placement.held) == set(placement.beyond) == set(budgets)
    for expert, places in placement.boxes.items():
        assert len(set(placement.of(expert))) == len(placement.of(expert)) >= 1
        assert all(budgets[box] >= needs[expert].bytes for box in placement.of(expert))
        assert all((expert in placement.held[box]) + (expert in placement.beyond[box]) == 1 for box in places)
    for box, budget in budgets.items():
        assert sum(needs[expert].bytes for expert in placement.held[box]) <= budget
        assert all(box in placement.boxes[expert] for expert in placement.held[box] + placement.beyond[box])
        assert all(expert in placement.on(box) for expert in needs if box in placement.of(expert))


@given(EXPERTS, BUDGETS, st.randoms(use_true_random=False))
@settings(max_examples=9 * THOROUGH, deadline=None)
def test_every_expert_has_a_box_if_any_can_hold_it_and_budgets_hold(experts, budgets, chance):
    boxes = boxes_of(*budgets)
    placement = place_experts(experts, boxes, TRAFFIC)
    check(placement, experts, boxes)
    assert place_experts(chance.sample(experts, len(experts)), boxes, TRAFFIC) == placement


@given(EXPERTS, BUDGETS, st.data())
@settings(max_examples=9 * THOROUGH, deadline=None)
def test_names_of_boxes_change_nothing(experts, budgets, data):
    boxes = boxes_of(*budgets)
    names = dict(zip([box.id for box in boxes], data.draw(st.permutations("vwxyz")), strict=False))
    placement = place_experts(experts, boxes, TRAFFIC)
    renamed = place_experts(experts, [replace(box, id=names[box.id]) for box in boxes], TRAFFIC)
    assert renamed.boxes == {e: tuple(names[box] for box in places) for e, places in placement.boxes.items()}
    assert renamed.standby == {e: names[box] for e, box in placement.standby.items()}
    assert renamed.held == {names[box]: held for box, held in placement.held.items()}


@given(EXPERTS, BUDGETS, st.data())
@settings(max_examples=9 * THOROUGH, deadline=None)
def test_when_a_box_goes_only_its_experts_move(experts, budgets, data):
    boxes = boxes_of(*budgets)
    before = place_experts(experts, boxes, TRAFFIC)
    gone = data.draw(st.sampled_from(boxes)).id
    left = [box for box in boxes if box.id != gone]
    placement = place_experts(experts, left, TRAFFIC, before=before)
    check(placement, experts, left)
    for expert, places in placement.boxes.items():
        stay = [box for box in before.boxes[expert] if box != gone]
        assert list(places[: len(stay)]) == stay
        if not stay and before.standby.get(expert):
            assert places[0] == before.standby[expert]


@given(EXPERTS, BUDGETS, st.integers(1, 80))
@settings(max_examples=9 * THOROUGH, deadline=None)
def test_when_a_box_comes_homes_move_to_it_alone_and_only_where_that_pays(experts, budgets, budget):
    boxes = boxes_of(*budgets)
    before = place_experts(experts, boxes, TRAFFIC)
    more = [*boxes, BoxBudget("new", budget)]
    placement = place_experts(experts, more, TRAFFIC, before=before)
    check(placement, experts, more)
    for expert, places in before.boxes.items():
        assert places[0] in placement.boxes[expert] or placement.boxes[expert][0] == "new"
    placed = [expert for expert in experts if expert.expert in before.boxes]
    staying = replace(before, held=before.held | {"new": ()}, beyond=before.beyond | {"new": ()})
    assert objective(placement, placed, more) <= objective(staying, placed, more) * (1 + 1e-9) + 1e-12


def test_moves_are_about_a_box_of_experts_and_none_for_the_same_boxes():
    experts, boxes = board(200, boards=3), boxes_of(400, 400, 400)
    before = place_experts(experts, boxes, TRAFFIC)
    assert place_experts(experts, boxes, TRAFFIC, before=before).moves_from(before) == []
    # The inverse of its seconds is more than the largest number.
    experts = [need("hardly", usage={"a": sys.float_info.min}), need("often", usage={"b": 0.5})]
    check(place_experts(experts, boxes_of(20, 20), TRAFFIC), experts, boxes_of(20, 20))
    experts, boxes = board(800, boards=3), boxes_of(*[1000] * 8)
    before = place_experts(experts, boxes, TRAFFIC)
    lost = sum(places[0] == "box0" for places in before.boxes.values())
    assert len(place_experts(experts, boxes[1:], TRAFFIC, before=before).moves_from(before)) <= 1.1 * lost
    joined = place_experts(experts, [*boxes, BoxBudget("new", 1000)], TRAFFIC, before=before)
    assert 0 < len(joined.moves_from(before)) <= 1.5 * len(experts) / 9
    anew = place_experts(experts, [*boxes, BoxBudget("new", 1000)], TRAFFIC)
    assert len(anew.moves_from(before)) > 5 * len(joined.moves_from(before))


@pytest.mark.parametrize(
    ("boxes", "budget"), with_slow_rows([(2, 400), (8, 4000), (2, 4000), (4, 400), (4, 4000), (8, 400)], fast=2)
)
def test_no_other_placement_has_a_lesser_objective(boxes, budget):
    experts, here = board(600, boards=4), boxes_of(*[budget] * boxes)
    ours = objective(place_experts(experts, here, TRAFFIC), experts, here)
    in_turn = PlacementSolver({one.expert: one for one in experts}, here, TRAFFIC)
    for number, one in enumerate(experts):
        in_turn.settle(one.expert, [number % boxes])
    assert ours < objective(in_turn.placement({}), experts, here)


def test_an_expert_that_keeps_more_than_a_box_busy_has_replicas_unless_they_displace_more():
    experts = [need("hot", usage={"a": 1.0}), *(need(f"e{n}", usage={"a": 0.05}) for n in range(20))]
    placement = place_experts(experts, boxes_of(*[200] * 4), TRAFFIC)
    assert len(placement.boxes["hot"]) >= 2
    assert {len(placement.boxes[f"e{n}"]) for n in range(20)} == {1}
    assert "hot" not in placement.standby
    assert all("hot" in placement.held[box] for box in placement.boxes["hot"])
    # The hot expert takes all of a box, and every other expert would have to be loaded for each image.
    experts = [need("hot", usage={"a": 1.0}, bytes=100, stage_s=0.001)]
    experts += [need(f"e{n}", usage={"a": 0.9}, load_s=5.0, stage_s=0.0001) for n in range(10)]
    experts += [need(f"rare{n}", usage={"a": 0.0001}, load_s=0.01, stage_s=0.0) for n in range(10)]
    placement = place_experts(experts, boxes_of(100, 100), Traffic(images=2000))
    assert len(placement.boxes["hot"]) == 1


def test_each_board_is_spread_over_all_boxes_and_successors_lie_with_their_predecessors():
    """Two boards never come together: each must find both boxes, though either half would balance all images."""
    experts = [need(f"{key}{n}", usage={key: 0.05}) for key in "ab" for n in range(10)]
    placement = place_experts(experts, boxes_of(200, 200), TRAFFIC)
    for key in "ab":
        assert {len([e for e in placement.held[box] if e.startswith(key)]) for box in placement.held} == {5}
    experts, boxes = board(400), boxes_of(*[1000] * 4)
    placement = place_experts(experts, boxes, TRAFFIC)
    pairs = [(e.expert, other) for e in experts for other in e.leads]
    together = sum(set(placement.boxes[one]) <= set(placement.boxes[other]) for one, other in pairs)
    assert together > 0.9 * len(pairs)


def test_the_least_worthy_go_first_beyond_the_budgets_and_standbys_are_spread_over_all_others():
    experts = [need(f"e{n}", usage={"a": (n + 1) / 100}) for n in range(8)]
    placement = place_experts(experts, boxes_of(20, 20), Traffic(images=10))
    assert {*placement.held["box0"], *placement.held["box1"]} == {"e4", "e5", "e6", "e7"}
    assert {*placement.beyond["box0"], *placement.beyond["box1"]} == {"e0", "e1", "e2", "e3"}
    experts = [need(f"e{n}", usage={"a": 0.01}) for n in range(80)]
    placement = place_experts(experts, boxes_of(*[200] * 5), TRAFFIC)
    behind = [placement.standby[e] for e, places in placement.boxes.items() if places == ("box0",)]
    assert {behind.count(f"box{n}") for n in range(1, 5)} == {4}


def test_a_box_is_told_of_its_experts_alone_and_bad_input_is_refused():
    placement = place_experts(
        [need(name) for name in "abcdefgh"], [BoxBudget(box, 25) for box in ("one", "two", "three")]
    )
    for box in placement.held:
        seen = placement.seen_by(box)
        assert set(seen.boxes) == set(placement.on(box)) == set(seen.on(box))
        assert all(seen.boxes[name] == placement.boxes[name] for name in seen.boxes)
    for experts, boxes in (([need("a")], []), ([need("a"), need("a")], boxes_of(10))):
        with pytest.raises(ConfigError):
            place_experts(experts, boxes)
    with pytest.raises(ConfigError, match="-1"):
        need("a", load_s=-1)
