"""The order in which the disk reader and the copy lanes serve loads."""

from hypothesis import given
from hypothesis import strategies as st

from coe.scheduler.costs import Tier
from coe.scheduler.events import Fill, Load, Why
from coe.scheduler.load_queue import READER, STAGED, LoadQueue

POOLS = {"g0": "gpu", "g1": "gpu", "h": "other", "c": "cpu", "d": "cpu"}


def load(expert: str, pool: str = "g0", source: Tier = Tier.DISK, why: Why = Why.DEMAND) -> Load:
    return Load(pool, expert, why, source)


def lanes_of(*loads: Load | Fill) -> LoadQueue:
    lanes = LoadQueue(POOLS, {"gpu", "other"})
    for each in loads:
        lanes.put(each)
    return lanes


def under_way(lanes: LoadQueue) -> dict[str | None, str]:
    """Begin all that can begin; return the expert by place."""
    begun = {place: lanes.begin(place) for place in lanes.places}
    return {place: each.expert for place, each in begun.items() if each is not None}


def test_the_urgent_go_first_then_first_come_first_served() -> None:
    lanes = lanes_of(load("a", "c", why=Why.INITIAL), load("b", "c", why=Why.PREFETCH), load("c", "c"))
    for expert in ("b", "c", "a"):
        assert under_way(lanes) == {READER: expert}
        assert lanes.begin(READER) is None
        assert lanes.end(READER)
    assert under_way(lanes) == {}


def test_reader_and_lanes_work_at_the_same_time() -> None:
    lanes = lanes_of(load("a"), load("b", source=Tier.HOST), load("c", "h", Tier.HOST), load("d", "c"))
    assert under_way(lanes) == {READER: "a", "gpu": "b", "other": "c"}
    assert not lanes.end(READER)
    assert under_way(lanes) == {READER: "d"}
    assert lanes.end("gpu")
    assert under_way(lanes) == {"gpu": "a"}
    # The CPU has no lane: the reader brings experts all the way.
    assert lanes.end(READER)
    assert lanes.end("gpu")
    assert lanes.end("other")
    assert under_way(lanes) == {}


def test_a_copy_that_is_still_being_read_is_waited_for() -> None:
    lanes = lanes_of(load("a"), load("a", "g1", Tier.HOST), load("b", "g1", Tier.HOST))
    assert under_way(lanes) == {READER: "a", "gpu": "b"}
    assert lanes.end("gpu")
    assert under_way(lanes) == {}
    assert lanes.waits("gpu")
    assert not lanes.end(READER)
    for pool in ("g0", "g1"):
        copied = lanes.begin("gpu")
        assert isinstance(copied, Load)
        assert copied.pool == pool
        assert lanes.end("gpu")
    assert not lanes.waits("gpu")


def test_after_a_read_that_failed_the_loads_that_waited_for_it_read_for_themselves() -> None:
    lanes = lanes_of(load("a"), load("a", "g1", Tier.HOST))
    assert under_way(lanes) == {READER: "a"}
    assert lanes.end(READER, failed=True)
    assert lanes.begin(READER) == load("a", "g1", Tier.DISK)
    assert not lanes.end(READER)
    assert under_way(lanes) == {"gpu": "a"}


def test_a_fill_is_the_least_urgent_at_the_reader_and_holds_up_no_lane() -> None:
    lanes = lanes_of(Fill("gpu", "a"), load("b", "c", why=Why.INITIAL), load("c", source=Tier.HOST))
    assert under_way(lanes) == {READER: "b", "gpu": "c"}
    assert lanes.end(READER)
    assert under_way(lanes) == {READER: "a"}
    # A load that comes now waits for this fill, and for no other.
    lanes.put(Fill("gpu", "d"))
    lanes.put(load("e"))
    assert lanes.end(READER)
    assert under_way(lanes) == {READER: "e"}


def test_an_expert_that_is_being_filled_is_copied_once_it_is_read() -> None:
    lanes = lanes_of(Fill("gpu", "a"))
    assert under_way(lanes) == {READER: "a"}
    assert not lanes.waits("gpu")
    lanes.put(load("a", source=Tier.HOST))
    assert under_way(lanes) == {}
    assert lanes.waits("gpu")
    assert lanes.end(READER)
    assert under_way(lanes) == {"gpu": "a"}
    assert lanes.end("gpu")


def test_after_a_fill_that_failed_the_load_that_waited_for_it_reads_for_itself() -> None:
    lanes = lanes_of(Fill("gpu", "a"), load("a", source=Tier.HOST))
    assert under_way(lanes) == {READER: "a"}
    assert lanes.end(READER, failed=True)
    assert under_way(lanes) == {READER: "a"}
    assert not lanes.end(READER)
    assert under_way(lanes) == {"gpu": "a"}


def test_the_reader_is_not_further_ahead_of_a_lane_than_host_memory_has_room() -> None:
    """A read that nothing can hold would be thrown away, and done again by the lane."""
    lanes = lanes_of(load("a"), load("b"), load("c", "g1"), load("d", "c"), load("e", "h"))
    assert under_way(lanes) == {READER: "a"}
    assert not lanes.end(READER)
    assert under_way(lanes) == {READER: "b", "gpu": "a"}
    assert not lanes.end(READER)
    # c waits for the lane of its device; the other devices are served meanwhile.
    for other in "de":
        assert under_way(lanes) == {READER: other}
        lanes.end(READER)
    assert under_way(lanes) == {"other": "e"}
    assert lanes.end("gpu")
    assert under_way(lanes) == {READER: "c", "gpu": "b"}


def test_what_has_been_read_is_copied_before_later_copies_however_urgent() -> None:
    """Else copies of urgent loads could keep the host memory from the reader for ever."""
    lanes = lanes_of(load("a", why=Why.INITIAL), load("b", source=Tier.HOST))
    assert under_way(lanes) == {READER: "a", "gpu": "b"}
    assert not lanes.end(READER)
    lanes.put(load("c", source=Tier.HOST))
    assert lanes.end("gpu")
    assert under_way(lanes) == {"gpu": "a"}


def test_a_device_without_a_lane_waits_for_a_copy_too_and_reads_the_disk_if_that_fails() -> None:
    for failed, source in ((False, Tier.HOST), (True, Tier.DISK)):
        lanes = lanes_of(Fill("cpu", "a"), load("a", "c", Tier.HOST), load("b", "c", Tier.HOST))
        # More urgent than the fill; a would go before it, too, and find no copy.
        assert under_way(lanes) == {READER: "b"}
        assert lanes.end(READER)
        assert lanes.begin(READER) == Fill("cpu", "a")
        assert lanes.end(READER, failed=failed)
        assert lanes.begin(READER) == load("a", "c", source)
        assert lanes.end(READER)


def identity(command: Load | Fill) -> tuple[str, str]:
    """Tell commands apart: a pool has one load of an expert at a time, and host memory one fill."""
    return ("host" if isinstance(command, Fill) else command.pool), command.expert


LOADS = st.lists(
    st.one_of(
        st.builds(
            load,
            st.sampled_from("abc"),
            st.sampled_from(sorted(POOLS)),
            st.sampled_from(Tier),
            st.sampled_from([Why.DEMAND, Why.PREFETCH, Why.INITIAL]),
        ),
        st.builds(Fill, st.just("gpu"), st.sampled_from("abc")),
    ),
    max_size=12,
    unique_by=identity,
)


def last_place(command: Load | Fill) -> str | None:
    return READER if isinstance(command, Fill) or POOLS[command.pool] == "cpu" else POOLS[command.pool]


@given(LOADS, st.data())
def test_every_load_passes_its_places_once_and_one_at_a_time(loads: list[Load | Fill], data: st.DataObject) -> None:
    """In any order of ends, and whatever fails."""
    lanes = lanes_of(*loads)
    busy: dict[str | None, Load | Fill] = {}
    passed: dict[tuple[str, str], list[str | None]] = {identity(each): [] for each in loads}
    over: list[tuple[str, str]] = []
    while True:
        for place in lanes.places:
            begun = lanes.begin(place)
            if begun is None:
                continue
            assert place not in busy
            busy[place] = begun
            passed[identity(begun)].append(place)
        for device in ("gpu", "other"):
            staged = [key for key, places in passed.items() if places[:1] == [READER] and POOLS.get(key[0]) == device]
            assert len(set(staged) - set(over)) <= STAGED
        if not busy:
            break
        place = data.draw(st.sampled_from(sorted(busy, key=str)))
        failed = data.draw(st.booleans())
        ended = busy.pop(place)
        if lanes.end(place, failed=failed):
            over.append(identity(ended))
            assert failed or passed[identity(ended)][-1] == last_place(ended)
        else:
            assert not failed
    assert sorted(over) == sorted(map(identity, loads))
    for each in loads:
        last = last_place(each)
        assert passed[identity(each)] in ([[READER]] if last is READER else [[READER], [READER, last], [last]])
        assert isinstance(each, Fill) or each.source is Tier.HOST or passed[identity(each)][0] is READER
    assert not any(lanes.waits(device) for device in POOLS.values())
