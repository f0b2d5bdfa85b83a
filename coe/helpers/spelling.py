"""Which spellings are one name. Two texts that look the same on a screen never mean two things in silence.

Systems write an accented letter as one character or as a letter and an accent (NFC and NFD): macOS stores file names in
NFD, keyboards make NFC. CAD programs write the micro sign or the Greek letter, and signs that look like others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

_SHAPES = ("<compat>", "<wide>", "<narrow>", "<noBreak>", "<square>", "<font>")
"""Kinds of characters that only look different, such as the micro sign, or wide digits. Powers and fractions do not
count: 10² is not 102, and 1½ is not 11/2."""
_TWINS = str.maketrans(
    "АВЕКМНОРСТУХІЅЈаеорсухіѕј" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο" + "‐‑‒–—―−",
    "ABEKMHOPCTYXISJaeopcyxisj" + "ABEZHIKMNOPTYXo" + "-------",
    "\xad\u200b\u200c\u200d\u2060\ufeff",
)
"""Cyrillic and Greek letters and dashes with their twins on a Latin keyboard, and characters that nobody sees."""


def composed(text: str) -> str:
    """Return a name in NFC, in which equal names are equal texts; it looks as before."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


@lru_cache(maxsize=4096)  # each part is compared with each entry of a recipe
def look(text: str) -> str:
    """Return how a value or a package looks, in order to compare it: never show it.

    Signs of one shape become one sign, and spaces around it or doubled do not count. Upper and lower case stay (1m is
    not 1M), and so do powers and fractions.
    """
    if not text.isascii():
        text = composed("".join(map(_shape, unicodedata.normalize("NFC", text)))).translate(_TWINS)
    return " ".join(text.split())


def fits(word: str, of_part: str) -> bool:
    """Tell whether a word of a recipe, in which `*` stands for any signs, means a word of a part."""
    if look(word) == look(of_part):
        return True
    pattern = ".*".join(re.escape(piece) for piece in look(word).split("*"))
    return "*" in word and re.fullmatch(pattern, look(of_part)) is not None


def _shape(character: str) -> str:
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return unicodedata.normalize("NFKC", character) if kind in _SHAPES else character


def by_spelling(names: Iterable[str], taken: Callable[[str], str] = str) -> dict[str, str]:
    """Return names by the spelling in NFC of what is `taken` of them.

    Raises ValueError, which writes both out, if two are one name.
    """
    spelt: dict[str, str] = {}
    for name in names:
        before = spelt.setdefault(composed(taken(name)), name)
        if before != name:
            raise ValueError(f"{before!a} and {name!a} are two spellings of one name; rename one of them")
    return spelt
