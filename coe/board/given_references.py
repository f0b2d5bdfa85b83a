"""References that come with the images of a table, one for each image, for components with `reference: given`."""

from __future__ import annotations

from collections.abc import Iterable

from coe.board.router import GIVEN, Component
from coe.errors import ConfigError
from coe.pictures.finding import FoundImage


def check(items: Iterable[FoundImage], components: Iterable[Component]) -> None:
    """Raise ConfigError if an image lacks the reference that it must bring, or has one that no expert uses."""
    given = {component.name: component.reference == GIVEN for component in components}
    for item in items:
        if item.failure is not None:
            continue
        if given[item.component] and item.reference is None:
            raise ConfigError(
                f"'{item.name}' has no reference, and the rules of '{item.component}' say `reference: {GIVEN}`; list "
                f"the images in a table images.csv with a column `reference`"
            )
        if item.reference is not None and not given[item.component]:
            raise ConfigError(
                f"'{item.name}' has a reference, and the rules of '{item.component}' do not say `reference: {GIVEN}`; "
                "empty that cell, or write so in the rules"
            )
