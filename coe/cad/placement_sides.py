"""The side of each part of a placement file: by a column, by the name of the file, or as a person says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from coe.cad.placement_header import PlacementHeader
from coe.cad.placement_rows import PlacementRow
from coe.cad.vocabulary import COLUMNS, MIRRORED, MIRRORS, Vocabulary, one_word, plain
from coe.errors import ConfigError
from coe.placement.placement_file import FileForm, Side

_LIKE_A_SIDE = re.compile(
    "side|layer|mirror|face|bottom|flip|seite|spiegel|miroir|espej|specch|зеркал|镜", re.IGNORECASE
)
_OTHER_WORDS = ("comp", "solder", "alt")
"""Words for sides that names of files, as solder-station.csv, and columns may have for another reason."""
_OF_FEEDERS = ("front", "back")
"""Words for sides that columns may have of the feeders of a machine."""
_MOST_TOLD = 5


class PlacementSides:
    """What tells the sides in one file."""

    def __init__(self, path: Path, dialect: Vocabulary, form: FileForm) -> None:
        self._path, self._dialect, self._form = path, dialect, form
        self._found: int | None = None
        self.has_mirrored = False
        """Whether the rotations say which parts are mirrored, and so lie on the bottom side, as Eagle writes them."""

    def words(self, header: PlacementHeader) -> Mapping[str, Side]:
        """Return the words for the sides in the column of a header: those of a mirror, if it says that alone."""
        index = header.columns.get("side")
        is_mirror = index is not None and one_word(header.names[index]) in MIRRORED
        return MIRRORS if is_mirror and self._dialect.columns is COLUMNS else self._dialect.sides

    def columns(self, header: PlacementHeader, rows: Sequence[PlacementRow]) -> Mapping[str, int]:
        """Return the columns of fields; one without a known name is that of sides if it alone has words for them only.

        Example: `Bestückseite` with `oben` and `unten`. The name of the file must not say otherwise.
        """
        if "side" in header.columns or self.has_mirrored or self._form.side is not None:
            return header.columns
        others = (*_OTHER_WORDS, *_OF_FEEDERS)
        known = {word: side for word, side in self._dialect.sides.items() if len(word) > 2 and word not in others}
        found: list[int] = []
        for index in {*range(len(header.names))} - {*header.columns.values()}:
            words = {row.all_cells[index].casefold() if index < len(row.all_cells) else "" for row in rows}
            if words and words <= known.keys() and self._told() <= {known[word] for word in words}:
                found.append(index)
        if len(found) != 1:
            return header.columns
        self._found = found[0]
        return {**header.columns, "side": found[0]}

    def of(self, row: PlacementRow, header: PlacementHeader) -> Side:
        """Return the side of a part; raises ConfigError if neither the file nor its name tells it."""
        sides, cells = self.words(header), row.cells or {}
        if self._found is not None:
            return self._dialect.sides[row.all_cells[self._found].casefold()]
        if "side" not in header.columns:
            if self.has_mirrored:
                return Side.BOTTOM if cells["rotation"].startswith("M") else Side.TOP
            return self._by_name(header)
        word = cells.get("side", "")
        bare = plain(word) if re.search(r"[^\W\d_]", word) else word  # -1 is not 1
        side = sides.get(word.casefold(), sides.get(bare))
        if side is None and len(told := self._sides_in(word)) == 1:
            return told.pop()
        if side is None:
            known = ", ".join([*filter(None, sides)][:_MOST_TOLD])
            own = f'; say which side it is, `sides: {{"{word}": top}}`, under placement_file of the recipe (--form)'
            raise ConfigError(
                f"{self._path}:{row.number}: {cells['refdes']}: '{word}' is not a side; known: {known} ..."
                f"{own if sides is not MIRRORS else ''}"
            )
        return side

    def _sides_in(self, text: str) -> set[Side]:
        """Return the sides that words of a text name, as that of Top Overlay, and of SMT top."""
        words = {word for word in re.split(r"[^a-z]+", text.casefold()) if word in ("top", "bottom", "bot")}
        return {self._dialect.sides[word] for word in words & self._dialect.sides.keys()}

    def _by_name(self, header: PlacementHeader) -> Side:
        """Return the side that the name of the file tells, as board.mnt or board-bottom.csv; raises ConfigError."""
        if other := next((name for name in header.unused if _LIKE_A_SIDE.search(name)), None):
            raise ConfigError(
                f"{self._path}:{header.number}: the column '{other}' may tell the sides; call it Side, or take it out"
            )
        told = self._told()
        if len(told) == 1:
            return told.pop()
        known = ", ".join(f"{ending} ({side})" for ending, side in self._dialect.endings.items()) or "-top or -bottom"
        raise ConfigError(
            f"{self._path}: no column tells the side of a part, and so the name of the file must: let it end with "
            f"{known}, or have -top or -bottom in it; or say `side: top` under placement_file of the recipe (--form, "
            "before there is one)"
        )

    def other_words(self) -> set[str]:
        """Return the words for sides that neither a person nor the name of the file has told."""
        told = self._told()
        return {word for word, side in self._dialect.sides.items() if told != {side}}

    def _told(self) -> set[Side]:
        """Return the side that a person said, or those that the ending or words in the name of the file are."""
        if self._form.side is not None:
            return {self._form.side}
        if (ending := self._path.suffix.lower()) in self._dialect.endings:
            return {self._dialect.endings[ending]}
        words = re.split(r"[^a-z]+", self._path.name.casefold())
        sides = self._dialect.sides
        return {sides[word] for word in words if len(word) > 1 and word in sides and word not in _OTHER_WORDS}
