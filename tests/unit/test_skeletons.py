"""A bare skeleton is the kind's network in everything but the numbers that somebody else replaces."""

import threading

import pytest
import torch
from bare_kind import BareKind
from torch import nn

from coe.core import Expert
from coe.store.kinds import resolve
from coe.store.skeletons import bare_skeleton


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
