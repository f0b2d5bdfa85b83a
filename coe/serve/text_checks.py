"""Texts that people and machines give. A text has no hidden characters, and every column has room for it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from coe.helpers.spelling import composed
from coe.helpers.visible import is_visible
from coe.serve.database.row_types import NAME


def _plain(text: str) -> str:
    if not is_visible(text) or "\n" in text:
        raise ValueError("it has hidden characters; give plain text")
    return text


def _readable(text: str) -> str:
    if not is_visible(text.replace("\r\n", "\n").replace("\t", " ")):
        raise ValueError("it has hidden characters; give plain text")
    return text


MOST_NOTE = 2000
Note = Annotated[str, Field(max_length=MOST_NOTE), AfterValidator(_readable)]
"""A text for people, with line ends and tabs."""
Text = Annotated[str, Field(max_length=NAME), AfterValidator(_plain)]  # a text for people in one line
Word = Annotated[str, Field(min_length=1, max_length=NAME), AfterValidator(_plain)]
SEPARATORS = dict.fromkeys((0x04, 0x1C, 0x1D, 0x1E, 0x1F))
"""Signs between the fields of a code (GS1, ISO/IEC 15434), to be left out: scanners that type have no key for them."""


def _bare(text: Any) -> Any:
    """Return a name without what controllers fill texts of a fixed length with, and the line end of a scanner."""
    return text.translate(SEPARATORS).strip("\0 \t\r\n") if isinstance(text, str) else text


_Bare = Annotated[str, BeforeValidator(_bare), StringConstraints(strip_whitespace=True)]
Spelt = Annotated[_Bare, Field(min_length=1, max_length=NAME), AfterValidator(_plain), AfterValidator(composed)]
"""A name on a board, in NFC: names meet, however their accented letters are written."""
SpeltText = Annotated[_Bare, Field(max_length=NAME), AfterValidator(_plain), AfterValidator(composed)]
"""A name on a board in NFC, or nothing."""
