"""Which of several references a picture is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden_parts import Pixels, bad, half_second, moved, noisy, part, second_look
from PIL import Image

from coe.cluster import cluster_engine
from coe.cluster.messages import CarriedImage
from coe.comparing.alternates import alike_in_size, best_of
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.store.kinds import Reference


def reference(picture: Pixels, id: str) -> Reference:
    return Reference(picture, np.zeros(picture.shape[:2], np.uint8), id)


BOTH = (reference(part(), "first"), reference(second_look(part()), "second"))


@pytest.mark.parametrize("alternates", [BOTH, BOTH[::-1]])
@pytest.mark.parametrize(
    ("picture", "fits"),
    [
        (part(), "first"),
        (second_look(part()), "second"),
        (moved(noisy(bad(part()), 1), 3, -2), "first"),
        (moved(noisy(bad(second_look(part())), 2), -3, 2), "second"),
        (half_second(part()), "first"),
    ],
)
def test_the_whole_part_decides(alternates: tuple[Reference, ...], picture: Pixels, fits: str) -> None:
    assert best_of(picture, alternates).id == fits


def test_what_cannot_be_compared_goes_to_what_it_resembles_most() -> None:
    cut = part()[:120]
    assert best_of(cut, (reference(part()[:, :100], "narrow"), *BOTH)).id == "narrow", (
        "the first, as none has its shape"
    )
    other = part(9)
    assert best_of(
        other, (reference(np.full((160, 160, 3), 128, np.uint8), "flat"), reference(other // 2, "dim"))
    ).id == ("dim")


def test_equals_go_to_the_first() -> None:
    assert best_of(part(), (reference(part(), "a"), reference(part(), "b"))).id == "a"


@pytest.mark.parametrize(
    ("height", "width", "alike"),
    [(160, 160, True), (81, 81, True), (79, 79, False), (160, 120, False), (330, 330, False)],
)
def test_sizes_may_differ_by_half(height: int, width: int, alike: bool) -> None:
    one, other = np.zeros((160, 160, 3), np.uint8), np.zeros((height, width, 3), np.uint8)
    assert alike_in_size(one, other) is alike_in_size(other, one) is alike


def test_a_source_counts_and_decodes_all_alternates_in_order() -> None:
    sources = [ReferenceSource(ImageSource.of(one.image, "RGB"), id=one.id) for one in BOTH]
    both = replace(sources[0], others=(sources[1],))
    assert both.decoding_bytes() == sum(source.decoding_bytes() for source in sources)
    decoded = both.decode()
    assert [(one.id, one.place) for one in decoded.alternates] == [("first", 0), ("second", 1)]
    assert np.array_equal(decoded.others[0].image, BOTH[1].image)


def test_images_for_other_boxes_carry_all_alternates(tmp_path: Path) -> None:
    for one in BOTH:
        Image.fromarray(one.image).save(tmp_path / f"{one.id}.png")
    sources = [ReferenceSource(ImageSource.of(tmp_path / f"{one.id}.png"), id=one.id) for one in BOTH]
    source = ImageSource.of(part(), "RGB").beside(replace(sources[0], others=(sources[1],)))
    carried = cluster_engine._with_bytes(CarriedImage(source, "U1")).source.reference
    assert carried is not None
    for one in BOTH:
        (tmp_path / f"{one.id}.png").unlink()
    assert [one.id for one in carried.decode().alternates] == ["first", "second"]
