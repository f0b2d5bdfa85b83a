"""A bare skeleton is the kind's network in everything but the numbers that somebody else replaces."""

import pickle
import pickletools
import threading
from collections import OrderedDict

import pytest
import torch
from bare_kind import BareKind
from hypothesis import given
from hypothesis import strategies as st
from tables import with_slow_rows
from texts import texts
from torch import nn

from coe.core import Expert
from coe.store import kinds
from coe.store.kinds import resolve
from coe.store.skeletons import bare_skeleton, skeleton
from coe.store.torch_file import TupleSizes


def expert(kind):
    return Expert("x", kind, ("ok", "bad"), 96 if kind == "golden" else 64, "t/x")


def signature(module):
    return {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("name", ["narrow", "resnet18", "yolov5n", "golden", "difference"])
def test_it_has_the_tensors_and_the_modules_of_the_kinds_network(name):
    kind = resolve(name)
    subject = expert(name) if name != "difference" else Expert("x", name, ("different",), 64, "t/x")
    drawn, bare = kind.skeleton(subject), bare_skeleton(kind, subject)
    assert signature(bare) == signature(drawn)
    assert [(path, type(part)) for path, part in bare.named_modules()] == [
        (path, type(part)) for path, part in drawn.named_modules()
    ]
    assert bare.training == drawn.training
    # It runs as the drawn network does, once it has its weights.
    bare.load_state_dict(drawn.state_dict())
    side = subject.input_size
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(
            kind.forward(bare, images), kind.forward(drawn, images), rtol=0, atol=0, equal_nan=True
        )


class Odd(BareKind):
    """A kind whose network draws a buffer that no file of weights holds, and sets a parameter to a constant."""

    name = "odd"

    def forward(self, module, images):
        raise NotImplementedError

    def skeleton(self, expert):
        module = nn.Linear(64, 64)
        nn.init.constant_(module.bias, 0.25)
        module.register_buffer("places", nn.init.uniform_(torch.zeros(64)), persistent=False)
        return module


def test_no_number_is_drawn_but_for_what_no_file_holds():
    before = torch.get_rng_state()
    bare_skeleton(resolve("resnet18"), expert("resnet18"))
    assert torch.equal(torch.get_rng_state(), before)
    odd = bare_skeleton(Odd(), expert("odd"))
    assert (odd.bias == 0.25).all()
    assert len(odd.places.unique()) > 32


def test_another_thread_draws_meanwhile_and_all_do_after_a_kind_that_fails():
    """A training may begin while a line opens."""
    drawn = []

    class Waiting(Odd):
        def skeleton(self, expert):
            thread = threading.Thread(target=lambda: drawn.append(Odd().skeleton(expert)))
            thread.start()
            thread.join()
            return super().skeleton(expert)

    bare_skeleton(Waiting(), expert("odd"))
    (module,) = drawn
    assert len(module.weight.unique()) > 1000

    class Failing(Odd):
        def skeleton(self, expert):
            raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        bare_skeleton(Failing(), expert("odd"))
    assert len(Odd().skeleton(expert("odd")).weight.unique()) > 1000


@pytest.mark.parametrize("own", [nn.Identity(), True], ids=["no numbers", "no network"])
def test_what_weights_cannot_lack_stays_though_it_is_called_optional(own):
    class Named(Odd):
        def skeleton(self, expert):
            module = super().skeleton(expert)
            module.optional = own
            return module

    assert bare_skeleton(Named(), expert("odd"), optional=()).optional is own
    eye = resolve("patch"), Expert("x", "patch", ("bad",), 64, "t/x")
    for held in ((), ("optional",), ("leeway",)):
        module = bare_skeleton(*eye, optional=held)
        assert [name for name in ("optional", "leeway") if getattr(module, name) is not None] == [*held]


NARROWEST = ("resnet18", "yolov5n")
KINDS = {
    type(kind): kind
    for kind in sorted(map(kinds.resolve, kinds.names()), key=lambda kind: kind.name in NARROWEST)
    if isinstance(kind, kinds.NetworkKind)
}
"""One kind of each class."""


@pytest.mark.parametrize("alternates", with_slow_rows([3, 1], fast=1))
@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_forward_needs_no_numbers_and_no_memory_of_the_host(kind, alternates):
    """On the device "meta" there are none, and its tensors and those of the CPU do not mix."""
    expert = Expert("e", kind.name, ("bad",), 160, "b/e", frozenset({"bad"}), alternates=alternates)
    images = torch.zeros((2, 3, 160, 160), dtype=torch.uint8)
    module = skeleton(kind, expert).eval().requires_grad_(False)
    with torch.inference_mode():
        # A run to warm up may look at numbers: those of a detector's strides are kept.
        kind.forward(module, images)
        for dtype in (torch.float32, torch.float16):
            outputs = kind.forward(module.to("meta", dtype), images.to("meta"))
            leaves = torch.utils._pytree.tree_leaves(outputs)
            assert {(leaf.device.type, len(leaf)) for leaf in leaves} == {("meta", 2)}


def sizes(pickled):
    of_tuples = TupleSizes()
    return [of_tuples.take(step, argument) for step, argument, _ in pickletools.genops(pickled)]


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
    assert max(sizes(pickle.dumps(value, protocol))) >= largest_in(value)


def test_a_tuple_counts_each_time_that_it_is_used_and_doubling_is_seen():
    key = (1, 2, 3)
    # Two more steps, each of which fetches the three values and their tuple.
    assert sum(sizes(pickle.dumps([key] * 3))) - sum(sizes(pickle.dumps([key]))) >= 2 * 4
    value = ()
    for _ in range(20):
        value = (value, value)
    assert max(sizes(pickle.dumps(value))) == 2**21 - 1


@pytest.mark.parametrize("pickled", [b"\x85.", b"0.", b"t.", b"2."])
def test_an_impossible_step_is_an_error(pickled):
    with pytest.raises(IndexError):
        sizes(pickled)
