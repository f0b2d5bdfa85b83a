"""References that come with the images of a table, one for each image, for components with `reference: given`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board.folder import why_no_file
from coe.board.router import GIVEN, Component
from coe.errors import ConfigError

if TYPE_CHECKING:
    from coe.board.images import Item


def check(items: Iterable[Item], components: Iterable[Component]) -> None:
    """Raise ConfigError if an image lacks the reference that it must bring, or has one that nothing compares with."""
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


def stated(folder: Path, cell: str) -> tuple[Path | None, str]:
    """Return the path of a reference that a table states, if it states one, and what is wrong with it, or ""."""
    if not cell:
        return None, ""
    inside = os.path.normpath(cell.replace("\\", "/"))
    if leaves(inside):
        return None, f"the reference '{inside}' leaves the folder of the table; give a path relative to it"
    if not os.path.lexists(folder / inside):
        return None, f"there is no reference '{inside}'"
    if reason := why_no_file(folder / inside):
        return None, f"the reference '{inside}' {reason}"
    return folder / inside, ""


def leaves(inside: str) -> bool:
    """Tell whether a normal path with `/` leads out of the folder that it is relative to."""
    first = inside.partition("/")[0]
    return "\0" in inside or os.path.isabs(inside) or first == ".." or ":" in first
