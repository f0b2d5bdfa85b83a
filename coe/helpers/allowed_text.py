"""What a board file says of an expert that reads: where it looks, which texts are allowed, which characters are alike.

A pattern is a text in which `#` stands for a digit, `@` for a letter, `?` for any character and `*` for any number of
characters; `\\` before one of them takes it as it is. Spaces never count.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LONGEST_PATTERN, MOST_ALLOWED, MOST_STARS = 100, 1000, 4
_CLASSES = {"#": "[0-9]", "@": "[A-Za-z]", "?": ".", "*": ".*"}


def without_spaces(text: str) -> str:
    """Return a text without its spaces: a reader puts them where a gap is a little wide."""
    return "".join(text.split())


def pattern_fault(pattern: str) -> str | None:
    """Return why a text is no pattern, as the end of a sentence; None if it is one."""
    bare = without_spaces(pattern)
    if not bare:
        return "a pattern must not be empty"
    if len(bare) > LONGEST_PATTERN:
        return f"it has {len(bare)} characters, more than {LONGEST_PATTERN}"
    if not bare.isprintable():
        return f"{pattern!r:.60} has characters that cannot be shown"
    plain = re.sub(r"\\[#@?*\\]", "", bare)
    if "\\" in plain:
        return f"'{pattern}' is not a pattern: write `\\` only before #, @, ?, * or another `\\`"
    if plain.count("*") > MOST_STARS:
        return f"'{pattern}' is not a pattern: it has more than {MOST_STARS} stars"
    return None


def _pattern(text: str) -> str:
    if fault := pattern_fault(text):
        raise ValueError(fault)
    return without_spaces(text)


def _window(window: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, width, height = window
    if left + width > 1 + 1e-9 or top + height > 1 + 1e-9:
        raise ValueError(
            f"the window reaches outside of the picture: left + width is {left + width:g}, top + height is "
            f"{top + height:g}, and both are at most 1"
        )
    return window


def _alike(groups: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for group in groups:
        if len(set(group)) < 2 or without_spaces(group) != group:
            raise ValueError(f"'{group}' has no effect; write characters that look alike together, e.g. 0O")
        if twice := sorted(seen & set(group)):
            raise ValueError(f"'{twice[0]}' is in two groups; write them as one")
        seen |= set(group)
    return groups


_Place = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_Extent = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Patterns = Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(min_length=1, max_length=MOST_ALLOWED)]
"""Patterns, at least one."""
WHOLE = (0.0, 0.0, 1.0, 1.0)
"""The window that is the whole picture."""


class Reading(BaseModel):
    """Where an expert reads in a picture, and what it may read.

    `window` is left, top, width and height as shares of the picture. `allowed` holds patterns, one of which the text
    must fit; None: any text. The characters of each group of `alike` count as one, as in `0O`.

    Example: `Reading(allowed=("24C##",), alike=("8B",)).allows("24CB4")` is true.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: Annotated[tuple[_Place, _Place, _Extent, _Extent], AfterValidator(_window)] = WHOLE
    allowed: Patterns | None = None
    alike: Annotated[tuple[str, ...], Field(max_length=100), AfterValidator(_alike)] = ()

    def allows(self, text: str) -> bool:
        """Tell whether a text fits one of the patterns, but for spaces and characters that are alike."""
        if self.allowed is None:
            return True
        bare = without_spaces(text)
        return any(expression.fullmatch(bare) for expression in _expressions(self.allowed, self.alike))

    @property
    def length(self) -> int | None:
        """How many characters all texts have that are allowed; None if it is not one number."""
        plain = {re.sub(r"\\.", "-", pattern) for pattern in self.allowed or ()}
        lengths = {len(pattern) for pattern in plain}
        return lengths.pop() if len(lengths) == 1 and not any("*" in pattern for pattern in plain) else None

    def letters(self) -> set[str]:
        """Return the characters that the patterns name by themselves."""
        plain = (re.sub(r"\\(.)|[#@?*]", lambda found: found[1] or "", pattern) for pattern in self.allowed or ())
        return set("".join(plain))


@lru_cache(maxsize=1024)
def _expressions(allowed: tuple[str, ...], alike: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    groups = {sign: group for group in alike for sign in group}

    def expression(token: str) -> str:
        if token in _CLASSES:
            inside = _CLASSES[token]
            like = {sign for sign in groups if re.fullmatch(inside, sign)} if token in "#@" else set()
            more = "".join(sorted({other for sign in like for other in groups[sign]}))
            return f"{inside[:-1]}{re.escape(more)}]" if more else inside
        sign = token[-1]
        return f"[{re.escape(groups[sign])}]" if sign in groups else re.escape(sign)

    return tuple(re.compile("".join(map(expression, re.findall(r"\\.|.", pattern))), re.DOTALL) for pattern in allowed)
