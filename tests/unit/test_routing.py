"""Which box takes a stage: views in, a box out."""

from __future__ import annotations

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView, ReplicaRouting, StagePrice

PRICES = {expert: StagePrice(run_s=0.1, load_s=1.0) for expert in "abc"}


def routing(
    boxes: dict[str, tuple[str, ...]], standby: dict[str, str] | None = None, *, move_s: float = 0.0
) -> ReplicaRouting:
    placement = ExpertPlacement(boxes, standby or {}, {}, {})
    return ReplicaRouting([BoxView(name, PRICES) for name in ("one", "two", "three")], placement, move_s)


def test_a_stage_goes_home_though_its_expert_is_absent_there_and_the_standby_is_idle() -> None:
    assert routing({"a": ("one",)}, {"a": "two"}).choose("a", ()) == "one"


def test_a_stage_goes_where_its_expert_is() -> None:
    chosen = routing({"a": ("one",)}, {"a": "two"})
    chosen.views["two"].reported({"a": 0.0})
    assert chosen.choose("a", ()) == "two"


def test_of_replicas_that_which_would_be_done_first_takes_the_stage() -> None:
    chosen = routing({"a": ("one", "two", "three")})
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    taken = []
    for _ in range(6):
        box = chosen.choose("a", ())
        assert box is not None
        chosen.sent(box, "a")
        taken.append(box)
    assert taken == ["one", "two", "three"] * 2


def test_a_stage_whose_expert_others_wait_for_joins_them_whatever_the_disk_has_to_do() -> None:
    """The home has three loads ahead; the standby, with none, would load the expert once more."""
    chosen = routing(dict.fromkeys("abc", ("one",)), {"a": "two"})
    for expert in "bca":
        chosen.sent("one", expert)
    assert chosen.views["one"].loads_s == 3.0
    assert chosen.choose("a", ()) == "one"


def test_the_standby_takes_what_it_has_done_sooner_even_with_a_second_load() -> None:
    """The home has two loads ahead: done after 3.1 s, there after 1.1 s, and a load more makes 2.1 s."""
    chosen = routing(dict.fromkeys("abc", ("one",)), {"a": "two"})
    chosen.sent("one", "b")
    assert chosen.choose("a", ()) == "one"
    chosen.sent("one", "c")
    assert chosen.choose("a", ()) == "two"


def test_an_image_stays_where_it_is_if_the_way_takes_longer_than_the_wait() -> None:
    chosen = routing({"a": ("one", "two")}, move_s=0.15)
    for view in chosen.views.values():
        view.reported({"a": 0.0})
    chosen.sent("two", "a")
    assert chosen.choose("a", {"two"}) == "two"
    chosen.sent("two", "a")
    assert chosen.choose("a", {"two"}) == "one"


def test_a_lost_box_and_one_to_avoid_are_passed_over() -> None:
    chosen = routing({"a": ("one", "two")}, {"b": "three"})
    assert chosen.lost("one")
    assert not chosen.lost("one")
    assert chosen.choose("a", ()) == "two"
    assert chosen.choose("a", (), {"two"}) is None
    assert chosen.choose("b", ()) == "three"
    assert chosen.choose("c", ()) is None


def test_the_books_of_a_view_go_back_to_nothing() -> None:
    view = BoxView("one", PRICES)
    view.sent("a")
    view.sent("a")
    view.sent("b")
    assert (view.loads_s, round(view.work_s, 9)) == (2.0, 0.3)
    view.reported({"a": 0.0, "c": 0.25})
    assert view.loads_s == 1.0
    for expert in "aab":
        view.answered(expert)
    assert (view.loads_s, view.work_s, view.waiting) == (0.0, 0.0, {})


def test_a_box_that_has_become_slow_takes_fewer_stages() -> None:
    """Its stages take 0.4 s, those of the other box 0.1 s; both have all experts."""
    chosen = routing({"a": ("one", "two")})
    chosen.views["one"].reported({"a": 0.0}, pace=4.0)
    chosen.views["two"].reported({"a": 0.0})
    taken = []
    for _ in range(5):
        box = chosen.choose("a", ())
        assert box is not None
        chosen.sent(box, "a")
        taken.append(box)
    assert taken == ["two", "two", "two", "one", "two"]
