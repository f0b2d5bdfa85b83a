"""Texts that clients give. Law: one line, without hidden characters, as long as a column takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from coe.serve.database.schema import NAME
from coe.visible import is_visible


def _plain(text: str) -> str:
    if not is_visible(text) or "\n" in text:
        raise ValueError("it has hidden characters; give plain text")
    return text


Text = Annotated[str, Field(max_length=NAME), AfterValidator(_plain)]
"""A text for people in one line."""
Word = Annotated[str, Field(min_length=1, max_length=NAME), AfterValidator(_plain)]
