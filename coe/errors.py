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
    """Something was asked of an `Inspector` that is closed or closing, or that was opened before a fork."""


class WouldWaitForItself(CoeError):
    """A call that waits for a line was made on a thread of that line, say in a callback: it would never end."""


def sentence_of(error: BaseException, during: str = "") -> str:
    """Return what is said of an error to users: a sentence of ours as it is, else the error's type too.

    Of another's error it also says `during` what it came, if that is given.
    """
    try:
        words = str(error)
    except BaseException:  # of a user's kind, even this may be broken
        words = "it does not say more"
    if isinstance(error, CoeError):
        return words
    return f"{type(error).__name__}{f' while {during}' if during else ''}: {words}"


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters: a longer one is cut in its middle and says how much is left out.

    Its begin says what is wrong and its end what to do, so both stay.
    """
    if len(text) <= most:
        return text
    mark = f" ... ({len(text):,} characters) ... "
    kept = max(0, most - len(mark))
    return text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :]


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
