"""The figures of a shift, or of another time, as a sheet of paper: a PDF of one page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from coe.serve.statistics.trend import Bar
from coe.serve.statistics.yields import Figure
from coe.surroundings import quiet_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Sheet

_A4_INCHES = (8.27, 11.69)
_BARS = 15
_LEFT, _QUIET, _LINE = 0.08, "#566173", 0.026
_USUAL, _NO_GLYPHS = "DejaVu Sans", ("Last Resort", "Adobe Blank", "STIX", "cm")
"""The font that matplotlib brings; fonts of boxes alone, and of signs for formulas."""
_COLOURS = (
    ("Confirmed", "confirmed", "#b81f33"),
    ("False", "false_calls", "#d9a441"),
    ("Accepted", "accepted", "#8a93a3"),
    ("Open", "open", "#ffffff"),
)


@dataclass(frozen=True, slots=True)
class ReportContent:
    """What a report says: its title, a line about its time, lines of plain facts, figures, and the Pareto by `by`."""

    title: str
    about: str
    facts: Sequence[str]
    figures: Sequence[Figure]
    by: str
    bars: Sequence[Bar]


def draw(content: ReportContent) -> bytes:
    """Return the report as a PDF."""
    quiet_matplotlib()
    from matplotlib.figure import Figure as Sheet  # slow to import, and few ask for reports

    sheet = Sheet(figsize=_A4_INCHES)
    _write(sheet, _LEFT, 0.94, content.title, size=18, weight="bold")
    _write(sheet, _LEFT, 0.915, content.about, color=_QUIET)
    at = 0.88
    for fact in content.facts:
        _write(sheet, _LEFT, at, fact)
        at -= _LINE
    at = _figures(sheet, content.figures, at - _LINE)
    _write(sheet, _LEFT, at - _LINE, f"Calls by {content.by}", size=13, weight="bold")
    _pareto(sheet, content.bars[:_BARS], at - 1.8 * _LINE)
    _write(sheet, _LEFT, 0.03, "First passes alone. Bounds of 95 % (Clopper and Pearson).", size=8, color=_QUIET)
    file = io.BytesIO()
    sheet.savefig(file, format="pdf", metadata={"Title": content.title, "Creator": "coe-serve", "Producer": None})
    return file.getvalue()


def _write(sheet: Sheet, x: float, y: float, text: str, size: float = 10, **more: Any) -> None:
    written, families = in_fonts(text)
    if not text.isascii():  # the bold faces have fewer scripts
        more.pop("weight", None)
    # A `$` in a name begins no formula.
    sheet.text(x, y, written, fontsize=size, va="top", parse_math=False, family=families, **more)


def _figures(sheet: Sheet, figures: Sequence[Figure], at: float) -> float:
    """Write a line for each figure; return where the last one ends."""
    for x, heading in zip((_LEFT, 0.4, 0.6, 0.76), ("Figure", "Value", "Bounds", "Of"), strict=True):
        _write(sheet, x, at, heading, color=_QUIET)
    for figure in figures:
        at -= _LINE
        value = figure.missing if figure.value is None else f"{_digits(figure.value)} {figure.unit.value}"
        bounds = "" if figure.lower is None else f"{_digits(figure.lower)} – {_digits(figure.upper)}"
        counted = f"{figure.events:,} of {figure.trials:,}" + (f", {figure.open:,} open" if figure.open else "")
        for x, text in zip((_LEFT, 0.4, 0.6, 0.76), (figure.title, value, bounds, counted), strict=True):
            _write(sheet, x, at, text, size=9)
    return at - _LINE


def _digits(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _pareto(sheet: Sheet, bars: Sequence[Bar], top: float) -> None:
    if not bars:
        _write(sheet, _LEFT, top, "No calls.", color=_QUIET)
        return
    axes = sheet.add_axes((0.3, top - 0.02 - 0.018 * len(bars), 0.6, 0.018 * len(bars)))
    places, so_far = range(len(bars)), [0] * len(bars)
    for title, name, colour in _COLOURS:
        widths = [getattr(bar, name) for bar in bars]
        axes.barh(places, widths, left=so_far, color=colour, edgecolor=_QUIET, linewidth=0.6, height=0.7, label=title)
        so_far = [before + width for before, width in zip(so_far, widths, strict=True)]
    names = [in_fonts(bar.name or "none") for bar in bars]
    axes.set_yticks(places, [name for name, _ in names], fontsize=8, parse_math=False)
    for label, (_, families) in zip(axes.get_yticklabels(), names, strict=True):
        label.set_fontfamily(families)
    axes.invert_yaxis()
    axes.locator_params(axis="x", integer=True)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4)


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
    from matplotlib import font_manager

    entries = {
        one.name: one.fname
        for one in font_manager.fontManager.ttflist
        if (one.style, one.weight) == ("normal", 400) and not one.name.startswith(_NO_GLYPHS)
    }
    names = sorted(entries, key=lambda name: (name != _USUAL, name))
    fonts = [(name, font_manager.get_font(entries[name])) for name in names]
    return [(name, font) for name, font in fonts if font.scalable]  # pictures of signs, as emojis, are none of a PDF
