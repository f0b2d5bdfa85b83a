"""A disk of a given bandwidth, as timetables: (seconds, bytes) in, least seconds out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.config import parse_bandwidth
from coe.errors import ConfigError
from coe.runtime.copy_lane import Disk


@pytest.mark.parametrize(
    ("loads", "least"),
    [
        # Alone: its bytes over the bandwidth, however long the disk was idle before.
        ([(0.0, 100)], [1.0]),
        ([(1000.0, 100)], [1.0]),
        ([(0.0, 100), (50.0, 100)], [1.0, 1.0]),
        # One lane after another: each begins when the one before has ended.
        ([(0.0, 100), (1.0, 50), (1.5, 200)], [1.0, 0.5, 2.0]),
        # Two lanes at once share one disk: the second waits for the first.
        ([(0.0, 100), (0.25, 100)], [1.0, 1.75]),
        ([(0.0, 100), (0.0, 100), (0.0, 100)], [1.0, 2.0, 3.0]),
        ([(0.0, 0)], [0.0]),
    ],
)
def test_loads_take_what_the_disk_takes(loads, least):
    disk = Disk({str(number): size for number, (_, size) in enumerate(loads)}, 100)
    assert Disk({}).least_s("e", 0.0) == 0.0, "without a throttle"
    assert [disk.least_s(str(number), now) for number, (now, _) in enumerate(loads)] == pytest.approx(least)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), min_size=1, max_size=20), st.floats(1, 1000))
def test_never_more_bytes_than_the_bandwidth_gives(gaps, bandwidth):
    disk, now, begun = Disk({str(number): size for number, (_, size) in enumerate(gaps)}, bandwidth), 0.0, []
    for number, (gap, size) in enumerate(gaps):
        now += gap
        begun.append((now, size, now + disk.least_s(str(number), now)))
    for first, (now, _, _) in enumerate(begun):
        for last in range(first, len(begun)):
            within = sum(size for _, size, _ in begun[first : last + 1])
            assert begun[last][2] - now >= within / bandwidth - 1e-6
    ends = [end for _, _, end in begun]
    assert ends == pytest.approx(sorted(ends), rel=1e-12)  # sums of floats differ in the last digit


@pytest.mark.parametrize("text", ["530MB/s", "530MB", " 530 MB / s ", "530000000"])
def test_a_bandwidth_is_read(text):
    assert parse_bandwidth(text) == 530_000_000


@pytest.mark.parametrize("text", ["", "fast", "530MB/h", "530MB/s/s", "-1MB/s", "0MB/s", "/s"])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(ConfigError, match="530MB/s"):
        parse_bandwidth(text)
