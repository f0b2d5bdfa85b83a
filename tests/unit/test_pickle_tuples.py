"""The sizes of a pickle's tuples, read off its steps."""

import pickle
import pickletools
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe.store.torch_file import TupleSizes


def largest(pickled):
    sizes = TupleSizes()
    return max(sizes.take(step, argument) for step, argument, _ in pickletools.genops(pickled))


def written_out(value):
    """Return the values in a tuple; of anything else, 1."""
    return 1 + sum(map(written_out, value)) if isinstance(value, tuple) else 1


def largest_in(value):
    parts = value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else ()
    return max([written_out(value), *map(largest_in, parts)])


values = st.recursive(
    st.one_of(st.integers(), texts(3), st.none(), st.just(OrderedDict(a=1))),
    lambda parts: st.one_of(
        st.lists(parts, max_size=4),
        st.lists(parts, max_size=4).map(tuple),
        st.dictionaries(texts(3), parts, max_size=3),
        parts.map(lambda part: (part, part)),
    ),
    max_leaves=12,
)


@given(values, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_tuple_counts_as_many_values_as_it_has_written_out(value, protocol):
    assert largest(pickle.dumps(value, protocol)) >= largest_in(value)


def total(pickled):
    sizes = TupleSizes()
    return sum(sizes.take(step, argument) for step, argument, _ in pickletools.genops(pickled))


def test_a_tuple_counts_each_time_that_it_is_used_and_doubling_is_seen():
    key = (1, 2, 3)
    # Two more steps, each of which fetches the three values and their tuple.
    assert total(pickle.dumps([key] * 3)) - total(pickle.dumps([key])) >= 2 * 4
    value = ()
    for _ in range(20):
        value = (value, value)
    assert largest(pickle.dumps(value)) == 2**21 - 1


@pytest.mark.parametrize("pickled", [b"\x85.", b"0.", b"t.", b"2."])
def test_an_impossible_step_is_an_error(pickled):
    with pytest.raises(IndexError):
        largest(pickled)
