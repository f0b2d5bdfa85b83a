"""A picture is decoded once for the experts that will probably see it, and their inputs never exceed their bytes."""

from contextlib import contextmanager

import numpy as np
import pytest

from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.runtime.admission import Admission
from coe.runtime.inputs import Decoding, ImageInputs, Inputs
from coe.store.kinds import ExpertInput
from coe.testing import rules_from

SIZE = 8
BYTES = 3 * SIZE**2
RULES = rules_from(
    """
board: b
experts:
  body: {kind: k, labels: [ok, bad], input: 8}
  joint: {kind: k, labels: [ok, bad], input: 8, then: {ok: OK, bad: NG}}
  mark: {kind: k, labels: [ok, bad], input: 8, then: {ok: OK, bad: NG}}
components:
  A: {inspect: body, shares: {ok: 0.9}, then: {ok: [joint], bad: mark}}
"""
)


class Painting:
    """A kind that writes into the array it is given; experts in `broken` fail."""

    def __init__(self):
        self.broken = set()

    def preprocess(self, image, expert):
        if expert.id in self.broken:
            raise SystemExit("a kind may raise anything")
        prepared = ExpertInput(np.full((3, SIZE, SIZE), int(image[0, 0, 0]), np.uint8), *image.shape[:2])
        image[:] = 0
        return prepared


@pytest.fixture
def kind():
    return Painting()


@pytest.fixture
def decoded(monkeypatch):
    """What is decoded, in order."""
    seen = []
    decode = ImageSource.decode

    def note(source):
        seen.append(source)
        return decode(source)

    monkeypatch.setattr(ImageSource, "decode", note)
    return seen


@contextmanager
def running(kind, ahead_bytes=10 * BYTES):
    inputs = Inputs(RULES.router, RULES.experts, {"k": kind}, Decoding(2, 1 << 30, ahead_bytes))
    for thread in inputs.workers.threads:
        thread.start()
    try:
        yield inputs
    finally:
        inputs.workers.close()


def image(grey=7, order="BGR"):
    return ImageInputs(ImageSource.of(np.full((20, 20, 3), grey, np.uint8), order))


def values(prepared):
    return [int(one.pixels[0, 0, 0]) for one in prepared]


@pytest.mark.parametrize("order", ["BGR", "RGB"])
def test_the_first_expert_and_those_that_probably_follow_share_one_decoding(kind, decoded, order):
    assert RULES.router.likely("A") == ("body", "joint")
    with running(kind) as inputs:
        pictures = [image(7, order), image(8, order)]
        for picture in pictures:
            inputs.begin(picture, "A")
        assert len(decoded) == 2
        # A kind that writes into its array spoils no other expert's.
        assert values(inputs.of_batch("body", pictures)) == [7, 8]
        assert values(inputs.of_batch("joint", pictures)) == [7, 8]
        assert len(decoded) == 2
        assert values(inputs.of_batch("mark", pictures)) == [7, 8]
        assert len(decoded) == 4


def test_inputs_made_ahead_have_their_own_bytes_until_the_image_is_done(kind, decoded):
    with running(kind, ahead_bytes=BYTES) as inputs:
        first, second, third = image(1), image(2), image(3)
        inputs.begin(first, "A")
        inputs.begin(second, "A")
        assert [list(picture.ready) for picture in (first, second)] == [["body", "joint"], ["body"]]
        inputs.done(first)
        inputs.begin(third, "A")
        assert list(third.ready) == ["body", "joint"]
        assert values(inputs.of_batch("joint", [second, third])) == [2, 3]
        assert len(decoded) == 4


def test_each_copy_and_comparing_with_a_reference_are_booked_too(kind, monkeypatch):
    booked = []
    within = Admission.within
    monkeypatch.setattr(Admission, "within", lambda self, size, work: booked.append(size) or within(self, size, work))
    with running(kind) as inputs:
        picture = image()
        inputs.begin(picture, "A")
        inputs.of_batch("mark", [picture])
    assert booked == [2 * 3 * 20 * 20, 3 * 20 * 20]
    # The peak of a comparison was measured as 25 bytes a pixel, beside the picture and its reference.
    source = ImageSource.of(np.zeros((20, 30, 3), np.uint8), "BGR")
    assert source.pixels() == 600
    assert ReferenceSource(source).decoding_bytes() == source.decoding_bytes() + 20 * 600
    damaged = ImageSource.of(b"no picture", "BGR")
    assert ReferenceSource(damaged).decoding_bytes() == damaged.decoding_bytes()


def test_a_kind_that_fails_ahead_fails_when_its_turn_comes_and_not_before(kind):
    kind.broken = {"joint"}
    with running(kind) as inputs:
        picture = image()
        inputs.begin(picture, "A")
        assert values(inputs.of_batch("body", [picture])) == [7]
        with pytest.raises(SystemExit, match="anything"):
            inputs.of_batch("joint", [picture])
        kind.broken = set()
        assert values(inputs.of_batch("joint", [picture])) == [7]
