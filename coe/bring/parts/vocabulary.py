"""What CAD programs and placement machines call the columns of a placement file, and their words for sides and units.

The words lie in vocabulary.yaml, for all programs together: files are renamed, merged and half translated on their way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

from coe.board.parts_list import Side
from coe.bring.parts.not_fitted import FITTED, LEFT_OUT, QUANTITY
from coe.bring.parts.placement_file import Units
from coe.helpers.strict_yaml import word_lists

UNIT_BEHIND = r"(?:[\s_/={<-]|,\s*|(?<=\b[xy]))(mm|мм|[uµμ]m|mils?|inch|град|deg|(?<=\b[xy][ _/])in)[}>]?"
"""A unit behind the name of a column, as in X_mm, X/mm, Xmm and X in."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return the name of a column as it is compared: without case, accents, unit and signs between its words.

    Example: `plain("Center-X(mm)")` is "center x".
    """
    letters = "".join(sign for sign in unicodedata.normalize("NFKD", name) if not unicodedata.combining(sign))
    letters = " ".join(letters.split())  # a search at each of many blanks would take long
    bare = re.sub(rf"\s*[(\[](?![xy][)\]])[^)\]]*[)\]]?|(?<=.){UNIT_BEHIND}$", "", letters.casefold())
    return " ".join(re.split(r"[\s_./:;*#?\u00b0\u00ba-]+", bare)).strip()


def one_word(name: str) -> str:
    """Return the name of a column as one word: Mount Side and MountSide are one name."""
    return plain(name).replace(" ", "")


_WORDS = word_lists(__file__)
_NAMES = {field: tuple(name.replace("@", field) for name in names) for field, names in _WORDS["columns"].items()}
_INSTEAD, _BOM = (tuple(_WORDS["instead_of_value"]), _WORDS["bom"])
_OF_ALL: Mapping[str, tuple[str, ...]] = {"fitted": FITTED, "left_out": LEFT_OUT, "quantity": QUANTITY}
COLUMNS: Mapping[str, tuple[str, ...]] = {**_NAMES, "value": (*_NAMES["value"], *_INSTEAD), **_OF_ALL}
"""The names of columns by field, the best first."""
BOM_TEXTS = tuple(_BOM["texts"])
BOM_LAST_VALUES = frozenset(one_word(name) for name in (*_BOM["makers"][1:], *BOM_TEXTS))
"""What is the value of a part in a BOM where nothing else is, as `one_word` has it."""
BOM_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (*_BOM["refdes"], *(name for name in _NAMES["refdes"] if name not in _BOM["not_refdes"]), "part"),
    "value": (*_NAMES["value"], *_BOM["value"], *_INSTEAD, *_BOM["makers"], *BOM_TEXTS),
    "package": (*_NAMES["package"][:-2], "case package"),
    "config": ("config",),
    **_OF_ALL,
}
"""The names of the columns of a BOM."""
MIRRORED: tuple[str, ...] = tuple(_WORDS["mirrored"])
"""The columns that say of a part whether it lies on the bottom side."""
MIRRORS = {word: Side(side) for side, words in _WORDS["mirrors"].items() for word in words}
SIDES = {word: Side(side) for side, words in _WORDS["sides"].items() for word in words}
NEEDS = ("refdes", "x", "y", "rotation")
"""The fields of which a placement file may lack none."""
ENDINGS = {".mnt": Side.TOP, ".mnb": Side.BOTTOM}
"""What the name of a file that Eagle writes ends with; it has no header."""
UNIT_WORDS = {word: Units(unit) for unit, words in _WORDS["units"].items() for word in words}
"""The words that files have for units."""
