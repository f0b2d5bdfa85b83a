"""What contends in a simulated box."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.sim.resources import Processor


def test_batches_share_a_processor_that_two_do_not_speed_up_and_no_other():
    processor = Processor(scaling=[1.0])
    processor.begin("x", 1.0, now=0.0)
    assert processor.next_end() == (1.0, "x")
    processor.begin("y", 1.0, now=0.5)
    # Half of x is left, and it runs at half the speed.
    assert processor.next_end() == (1.5, "x")
    processor.end("x", now=1.5)
    # y has run for a second at half the speed.
    assert processor.next_end() == (2.0, "y")
    processor.end("y", now=2.0)
    assert processor.next_end() is None
    processor = Processor()
    processor.begin("x", 1.0, now=0.0)
    processor.begin("y", 0.25, now=0.5)
    assert processor.next_end() == (0.75, "y")
    processor.end("y", now=0.75)
    assert processor.next_end() == (1.0, "x")


@given(
    scaling=st.lists(st.floats(0.5, 1.0), min_size=1, max_size=4),
    works=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=6),
)
def test_all_work_is_done_at_the_speed_of_the_processor(scaling, works):
    speeds = [min(speed * count, speed + count - 1) for count, speed in enumerate(scaling, 1)]
    processor = Processor(speeds)
    for index, work_s in enumerate(works):
        processor.begin(str(index), work_s, now=0.0)
    done, last_s, busy = 0.0, 0.0, len(works)
    while (coming := processor.next_end()) is not None:
        at_s, name = coming
        assert at_s >= last_s
        done += (at_s - last_s) * speeds[min(busy, len(speeds)) - 1]
        processor.end(name, at_s)
        last_s, busy = at_s, busy - 1
    assert done == pytest.approx(sum(works))
