"""The side of each part of a placement file: by a column, by the name of the file, or as a person says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from coe.cad.placement_header import PlacementHeader
from coe.cad.placement_rows import PlacementRow
from coe.cad.vocabulary import COLUMNS, MIRRORED, MIRRORS, Vocabulary, plain
from coe.errors import ConfigError
from coe.placement.placement_file import FileForm, Side

_LIKE_A_SIDE = re.compile("side|layer|mirror|face|bottom", re.IGNORECASE)
_OTHER_WORDS = ("comp", "solder", "alt")
"""Words for sides which the name of a file may have for another reason, as solder-station.csv."""
_MOST_TOLD = 5


class PlacementSides:
    """What tells the sides in one file."""

    def __init__(self, path: Path, dialect: Vocabulary, form: FileForm) -> None:
        self._path, self._dialect, self._form = path, dialect, form
        self.has_mirrored = False
        """Whether the rotations say which parts are mirrored, and so lie on the bottom side, as Eagle writes them."""

    def words(self, header: PlacementHeader) -> Mapping[str, Side]:
        """Return the words for the sides in the column of a header: those of a mirror, if it says that alone."""
        index = header.columns.get("side")
        is_mirror = index is not None and plain(header.names[index]) in MIRRORED
        return MIRRORS if is_mirror and self._dialect.columns is COLUMNS else self._dialect.sides

    def of(self, row: PlacementRow, header: PlacementHeader) -> Side:
        """Return the side of a part; raises ConfigError if neither the file nor its name tells it."""
        sides, cells = self.words(header), row.cells or {}
        if "side" not in header.columns:
            if self.has_mirrored:
                return Side.BOTTOM if cells["rotation"].startswith("M") else Side.TOP
            return self._by_name(header)
        word = cells.get("side", "")
        bare = plain(word) if re.search(r"[^\W\d_]", word) else word  # -1 is not 1
        side = sides.get(word.casefold(), sides.get(bare))
        if side is None:
            known = ", ".join([*filter(None, sides)][:_MOST_TOLD])
            own = f'; say which side it is, `sides: {{"{word}": top}}`, under placement_file of the recipe (--form)'
            raise ConfigError(
                f"{self._path}:{row.number}: {cells['refdes']}: '{word}' is not a side; known: {known} ..."
                f"{own if sides is not MIRRORS else ''}"
            )
        return side

    def _by_name(self, header: PlacementHeader) -> Side:
        """Return the side that the name of the file tells, as board.mnt or board-bottom.csv; raises ConfigError."""
        if other := next((name for name in header.unused if _LIKE_A_SIDE.search(name)), None):
            raise ConfigError(
                f"{self._path}:{header.number}: the column '{other}' may tell the sides; call it Side, or take it out"
            )
        if self._form.side is not None:
            return self._form.side
        if (ending := self._path.suffix.lower()) in self._dialect.endings:
            return self._dialect.endings[ending]
        words = {
            self._dialect.sides[word]
            for word in re.split(r"[^a-z]+", self._path.stem.casefold())
            if len(word) > 1 and word in self._dialect.sides and word not in _OTHER_WORDS
        }
        if len(words) == 1:
            return words.pop()
        known = ", ".join(f"{ending} ({side})" for ending, side in self._dialect.endings.items()) or "-top or -bottom"
        raise ConfigError(
            f"{self._path}: no column tells the side of a part, and so the name of the file must: let it end with "
            f"{known}, or have -top or -bottom in it; or say `side: top` under placement_file of the recipe (--form, "
            "before there is one)"
        )
