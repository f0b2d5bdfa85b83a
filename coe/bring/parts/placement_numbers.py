"""Numbers in placement files: with points or commas, thousands, units behind them, and signs of each kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

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
