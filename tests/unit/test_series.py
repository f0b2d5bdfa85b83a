"""Pictures in series show fewer parts than they count, and the odd ones among good pictures are named."""

import numpy as np
import pytest

from experts.series import farthest, parts_of, remarks


def looks(parts, each, within, ways=40):
    """Return looks of parts that differ in so many ways, and their shots in all."""
    chance = np.random.default_rng(0)
    middles = np.pad(chance.normal(size=(parts, ways)), ((0, 0), (0, 40 - ways)))
    return (middles[:, None] + within * chance.normal(size=(parts, each, 40))).reshape(-1, 40)


@pytest.mark.parametrize(
    ("parts", "each", "within", "ways"), [(4, 5, 0.1, 40), (7, 3, 0.1, 40), (10, 2, 0.1, 40), (6, 4, 0.08, 4)]
)
def test_a_series_counts_as_one_part(parts, each, within, ways):
    numbers = parts_of(looks(parts, each, within, ways))
    assert [len(set(numbers[first : first + each])) for first in range(0, parts * each, each)] == [1] * parts
    assert len(set(numbers)) == parts
    assert f"about {parts} parts" in remarks(numbers, "so")[0]


ALIKE_AND_OTHERS = np.concatenate([looks(1, 8, 0.1), looks(10, 1, 0.1)])


@pytest.mark.parametrize(
    "seen",
    [looks(20, 1, 0.1), looks(2, 10, 0.1), looks(4, 5, 1.0), np.ones((20, 40)), ALIKE_AND_OTHERS, looks(20, 1, 0, 1)],
)
def test_different_parts_groups_and_copies_are_no_series(seen):
    assert remarks(parts_of(seen), "so") == []


def test_the_good_pictures_that_deviate_most_are_named_first_the_farthest():
    names = [f"{number}.png" for number in range(9)]
    assert "8.png, 7.png;" in farthest(names, np.arange(9.0), 9.0)
    assert "1 beyond the limit: 8.png, 7.png;" in farthest(names, np.arange(9.0), 7.5)
