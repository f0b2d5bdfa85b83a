"""A board's pictures in a folder, for the commands that measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coe.board.completeness import check_references
from coe.errors import ConfigError
from coe.pictures import finding

if TYPE_CHECKING:
    from pathlib import Path

    from coe.board.rules import Rules
    from coe.inspector.inspector import Picture


def pictures_of(board: Rules, images_at: Path) -> list[Picture]:
    """Return all pictures that can be inspected; raises ConfigError if there are none."""
    from coe.inspector.inspector import Picture

    items = [item for item in finding.find(images_at, board.components)[0] if item.failure is None]
    if not items:
        raise ConfigError(f"{images_at} holds no image of a component of board '{board.board}'")
    check_references(items, board.components.values())
    return [
        Picture(item.file, item.component, item.serial, item.refdes, item.name, reference=item.reference)
        for item in items
    ]
