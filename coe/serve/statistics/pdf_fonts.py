"""Fonts for names in any script: that of the report, and for what it lacks another font of this machine."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from matplotlib import font_manager

_USUAL, _NO_GLYPHS = "DejaVu Sans", ("Last Resort", "Adobe Blank", "STIX", "cm")
"""The font that matplotlib brings; fonts of boxes alone, and of signs for formulas."""


def in_fonts(text: str) -> tuple[str, list[str]]:
    """Return a text and the families of fonts that have it; a character that no font has is written as its code."""
    found = {character: _family_with(character) for character in dict.fromkeys(text)}
    known = (one if found[one] or one.isspace() else one.encode("ascii", "backslashreplace").decode() for one in text)
    return "".join(known), list(dict.fromkeys([_USUAL, *filter(None, found.values())]))


@lru_cache(maxsize=4096)
def _family_with(character: str) -> str | None:
    return next((name for name, font in _fonts() if font.get_char_index(ord(character))), None)


@cache
def _fonts() -> list[tuple[str, Any]]:
    entries = {
        one.name: one.fname
        for one in font_manager.fontManager.ttflist
        if (one.style, one.weight) == ("normal", 400) and not one.name.startswith(_NO_GLYPHS)
    }
    names = sorted(entries, key=lambda name: (name != _USUAL, name))
    fonts = [(name, font_manager.get_font(entries[name])) for name in names]
    return [(name, font) for name, font in fonts if font.scalable]  # pictures of signs, as emojis, are none of a PDF
