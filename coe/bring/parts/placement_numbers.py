"""Numbers in placement files: with points or commas, thousands, units behind them, and signs of each kind."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from coe.bring.parts.placement_file import Units
from coe.bring.parts.text_table import TextLine
from coe.bring.parts.vocabulary import UNIT_BEHIND, UNIT_WORDS
from coe.errors import ConfigError

_NUMBER = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
    r"""([A-Za-z\u00b0\u00ba\u00b5\u03bcм]*|"|\u2033|'')"""
)
_POINT_THOUSANDS = re.compile(r"([+-]?\d{1,3}(?:\.\d{3})+),(\d+.*)")
_COMMA_THOUSANDS = re.compile(r"([+-]?\d{1,3}(?:,\d{3})+)\.(\d+.*)")
SPACED_THOUSANDS = r"\d{1,3}(?:[ \u00a0\u2009\u202f'\u2019]\d{3})+"
_SPACED_THOUSANDS = re.compile(rf"(?<![\d.,]){SPACED_THOUSANDS}(?!\d)")
_MINUS = str.maketrans("\u2212\u2013", "--")


class CellNumber(NamedTuple):
    """A number, and the word for its unit, which may be empty."""

    value: float
    unit: str


def number_of(text: str, *, has_comma: bool) -> CellNumber | None:
    """Return the number of a cell; None if it is none. With `has_comma`, a comma stands before the fraction."""
    text = _SPACED_THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text.translate(_MINUS), count=1)
    thousands = (_POINT_THOUSANDS if has_comma else _COMMA_THOUSANDS).fullmatch(text)
    if thousands is not None:
        text = f"{re.sub('[.,]', '', thousands[1])}.{thousands[2]}"
    elif has_comma:
        text = text.replace(",", ".", 1)
    match = _NUMBER.fullmatch(text)
    return CellNumber(float(match[1]), match[2]) if match is not None and isfinite(float(match[1])) else None


def has_decimal_commas(numbers: Sequence[str]) -> bool:
    """Tell whether a file writes 12,5: some numbers have a comma before the fraction, and none has a point there."""
    commas = [number for number in numbers if "," in number]
    if not commas:
        return False
    if any("." in number and not _POINT_THOUSANDS.fullmatch(number) for number in numbers):
        return False
    # 1,181.102 has a comma for thousands, and the points of the file stand before fractions.
    return not any(_COMMA_THOUSANDS.fullmatch(number) for number in numbers)


def may_be_thousands(numbers: Sequence[str]) -> str | None:
    """Return a number that may be meant either way, if all that have a comma may; None if one tells it."""
    commas = [number for number in numbers if "," in number]
    if any(re.match(r"[+-]?(?:0|\d{4,}),", number) for number in commas):
        return None  # thousands stand by three
    both = commas and all(re.search(r",\d{3}(?!\s*mm)\D*$", number) for number in commas)
    return commas[0] if both else None


def may_be_two(numbers: Sequence[str]) -> str | None:
    """Return a number such as "100 200" that may as well be two, because the file writes no others so; or None."""
    doubtful = [number for number in numbers if re.fullmatch(r"[+-]?\d{1,3} \d{3}", number)]
    spaced = [number for number in numbers if _SPACED_THOUSANDS.search(number)]
    plain = any(re.match(r"[+-]?\d{4}", number) for number in numbers)
    return doubtful[0] if doubtful and (plain or len(spaced) == 1) else None


_SPELLED = "|".join(sorted(word for word in {*UNIT_WORDS, "cm"} if len(word) > 1 and word not in ("in", "''")))
_NOUNS = "u?units?|einheit(?:en)?|unit[eé]s?|unidad(?:es)?|unit[aà]|jednostk[ai]|jednotk[ay]|единиц\\w*|单位|單位|単位"
_STATED = re.compile(
    rf"^[#*;/\s\"]*(?:(?:{_NOUNS})(?:\s+used)?\s*(?:[:=\uff1a]|[\",;\t|]+(?=\s*\"?(?:{_SPELLED}|in|cm)\W*$))|x\s*,\s*y\s+in\s|"
    r"(?:all\s+|alle\s+|все\s+)?(?:co-?ordinates|dimensions|measure(?:ment)?s|positions|units|values|koordinaten|maße|angaben|координаты|размеры)"
    rf"(?:\s+are)?(?:\s+given)?\s+(?:in|в)\s(?=.*\b(?:{_SPELLED})\b))(.*)",  # else it is "in this file"
    re.IGNORECASE,
)
_IN_NAME = re.compile(
    rf"[(\[]\s*((?:\d[\d./e^*+×-]*)?\s*[a-zµμм]{{2,}}|[\"\u2033])\.?\s*[)\]]$|{UNIT_BEHIND}$", re.IGNORECASE
)


class PlacementUnits:
    """The units that one file states. A person may have `asked` for one: then the file must not state another."""

    def __init__(self, path: Path, asked: Units | None) -> None:
        self._path, self._asked = path, asked
        self._stated: dict[Units, str] = {}

    @property
    def known(self) -> Units | None:
        """The unit so far: that asked for, else the first that the file states."""
        return self._asked or next(iter(self._stated), None)

    def state(self, word: str, where: str, number: int) -> None:
        """Note that the file states a unit; raises ConfigError for another than was asked for, or two."""
        unit = UNIT_WORDS.get(word.casefold())
        if unit is None:
            raise ConfigError(
                f"{self._path}:{number}: the file states '{word}' as its unit; export it in mm, um, mil or inch"
            )
        if self._asked is not None and unit is not self._asked:
            raise ConfigError(
                f"{self._path}:{number}: the file states '{word}' as its unit, and {self._asked} was asked for"
            )
        if self._stated and unit not in self._stated:
            before, place = next(iter(self._stated.items()))
            raise ConfigError(
                f"{self._path}:{number}: the file states '{word}' here and {before} in {place}; export it with one unit"
            )
        self._stated.setdefault(unit, where)

    def agreed(self) -> tuple[Units, str]:
        """Return the unit, and the sentence that says where the file states it, "" if it does not; or ConfigError."""
        if self._stated:
            unit, where = next(iter(self._stated.items()))
            return unit, f"{unit}, as {where} states"
        if self._asked is not None:
            return self._asked, ""
        raise ConfigError(f"{self._path}: the file does not say its unit; choose mm, um, mil or inch (--units)")


def unit_remarks(lines: Sequence[TextLine]) -> dict[int, str]:
    """Return the words for units in remarks, as "# Units used = mm", by the number of their line."""
    return {line.number: _unit_word(match[1]) for line in lines if (match := _STATED.match(line.text))}


def unit_in_name(name: str) -> str:
    """Return the word for a unit in the name of a column, as X (mm) or X_mm; "" if there is none."""
    stated = _IN_NAME.search(name) or _IN_NAME.search(unicodedata.normalize("NFKC", name))  # that parts \u2033 in two
    return (stated[1] or stated[2]) if stated else ""


def _unit_word(text: str) -> str:
    """Return the word for a unit in a remark such as "Rotation - degrees, X, Y - thou"; its first word without one."""
    # "in" counts if it comes first and there is no other, because it is a word of sentences too.
    if (share := re.search(r"([\d./]*\d)\s*([a-zµμ]+)", text, re.IGNORECASE)) and share[1] not in ("1", "1.0"):
        return share[0]  # as 0.1 mil, which is no unit here
    words: list[str] = re.findall(r"[^\W\d_]+", text)
    units = [word for word in words if word.casefold() in UNIT_WORDS]
    return next((word for word in units if word.casefold() != "in"), (words or [text])[0])
