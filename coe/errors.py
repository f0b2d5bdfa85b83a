"""Every error that a user can meet: one sentence that says what, where and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CoeError(Exception):
    """The parent of all errors raised on purpose by this package."""


class ConfigError(CoeError):
    """Wrong usage or configuration: an option, a budget, a folder."""


class RulesError(ConfigError):
    """A board file that cannot be used; the message starts with `file:line:`."""


class StoreError(CoeError):
    """An expert's weights or manifest are missing, damaged or do not fit."""


class KindFailed(CoeError):
    """The code of a kind of expert failed; experts of other kinds go on."""


class ImageError(CoeError):
    """One image cannot be inspected; the others go on."""


class DeviceFull(CoeError):
    """A device has not as much memory left as something takes; others may go on."""


class DeviceLost(CoeError):
    """A device does not answer any more, or only with errors; nothing on it can be used again."""


class LineFull(CoeError):
    """The inbox of an `Inspector` is full and `on_full="raise"` was asked for."""


class LineClosed(CoeError):
    """Something was submitted to an `Inspector` that is closed or closing."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown word.

    The closest known words if there are any, else (for short lists) all of them, else nothing.
    """
    names = sorted(set(known))
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    if names and len(names) <= 12:
        return "; known: " + ", ".join(names)
    return ""
