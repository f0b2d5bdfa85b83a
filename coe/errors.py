"""Every error that a user can meet: one sentence that says what, where and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar


class CoeError(Exception):
    """The base class of all errors that this package raises on purpose.

    Example:
        >>> try:
        ...     line = Inspector("no-such-board")
        ... except CoeError as error:
        ...     print(type(error).__name__)
        RulesError
    """


E = TypeVar("E", bound=CoeError)


class ConfigError(CoeError):
    """An option, a budget, a folder or another setting cannot be used; `option` names a line's option.

    Example:
        >>> try:
        ...     line = Inspector("demo", memory="much")
        ... except ConfigError as error:
        ...     print(error.option)
        memory
    """

    option: str = ""


class TooFewPictures(ConfigError):
    """A training was given too few pictures, of all or of a label."""


class RulesError(ConfigError):
    """A board file cannot be used; the message starts with `file:line:`.

    Example:
        >>> rules_from("board: lamp")
        Traceback (most recent call last):
        coe.errors.RulesError: ...
    """


class BoardsClash(ConfigError):
    """A running line cannot inspect these boards together; a line that is opened with them, or with fewer, may.

    Example:
        >>> with Inspector("demo") as line:
        ...     try:
        ...         line.set_boards(["demo", "first_look"])
        ...     except BoardsClash:
        ...         print("close this line, and open one with both boards")
    """


class StoreError(CoeError):
    """The weights or the manifest of an expert are missing, damaged, or do not fit each other.

    Example:
        >>> try:
        ...     Store("store").manifest("line7/R0402")
        ... except StoreError as error:
        ...     print(error)
        no expert 'line7/R0402' in the store store; ...
    """


class NoInt8(StoreError):
    """A file can never be in `int8`, whatever pictures there are."""


class KindFailed(CoeError):
    """The code of a kind of expert failed; experts of other kinds go on."""


class ImageError(CoeError):
    """One image cannot be inspected; other images go on. `failure` is the value of its `coe.FailureKind`.

    Example:
        >>> draw(result, "gone.png")
        Traceback (most recent call last):
        coe.errors.ImageError: ...
    """

    failure = "image"


class UnsupportedImage(ImageError):
    """The picture may be whole, and is in a format, or in a form of it, that is not read."""

    failure = "unsupported"


class DamagedImage(ImageError):
    """A part of the picture is missing, or its bytes do not add up to one."""

    failure = "damaged"


class LateImage(ImageError):
    """The picture's file was not read in time: its disk or share does not answer.

    `is_back` returns whether it does now, so that another read does not wait in vain, too.
    """

    failure = "late"

    def __init__(self, sentence: str, is_back: Callable[[], bool] = lambda: True) -> None:
        super().__init__(sentence)
        self.is_back = is_back

    def __reduce__(self) -> tuple[type[LateImage], tuple[str]]:
        return LateImage, (str(self),)


class DeviceFull(CoeError):
    """A device has too little free memory for an operation; smaller operations may succeed."""


class DeviceLost(CoeError):
    """A device no longer answers, or answers only with errors; nothing on it can be used again."""


class LineFull(CoeError):
    """The inbox of an `Inspector` with `on_full="raise"` is full.

    Example:
        >>> with Inspector("demo", on_full="raise") as line:
        ...     try:
        ...         future = line.submit("R7.png", "R0402-10K")
        ...     except LineFull:
        ...         print("the camera is faster than the line")
    """


class LineClosed(CoeError):
    """A call to an `Inspector` that is closed or closing, or that was opened before a fork.

    Example:
        >>> with Inspector("demo") as line:
        ...     verdict = line.submit("R7.png", "R0402-10K").result().verdict
        >>> line.submit("R7.png", "R0402-10K")
        Traceback (most recent call last):
        coe.errors.LineClosed: ...
    """


class WouldWaitForItself(CoeError):
    """A thread of a line, say in a callback, called a function that waits for that line: the call would never end.

    Example:
        >>> def again(done):  # a callback runs on a thread of the line
        ...     try:
        ...         line.submit("R7.png", "R0402-10K").result()
        ...     except WouldWaitForItself as error:
        ...         errors.put(type(error).__name__)
        >>> errors = SimpleQueue()
        >>> with Inspector("demo") as line:
        ...     line.submit("R7.png", "R0402-10K").add_done_callback(again)
        ...     print(errors.get())
        WouldWaitForItself
    """


def sentence_of(error: BaseException, during: str = "") -> str:
    """Return the sentence that tells users of an error. The message of a CoeError is that sentence.

    Before the message of any other error stands its type, and `during`, the work that failed, if that is given.
    """
    words = words_of(error)
    if isinstance(error, CoeError):
        return words
    return f"{type(error).__name__}{f' while {during}' if during else ''}: {words}"


def words_of(error: BaseException) -> str:
    """Return the message of an error."""
    try:
        return str(error)
    except BaseException:  # the code of a user's kind may fail even here
        return "it has no readable message"


@contextmanager
def readable(what: Path | str, wrong: type[CoeError] = ConfigError, if_gone: str = "") -> Iterator[None]:
    """Turn an OSError in the block into an error that says what cannot be read, and why.

    A path may be that of a folder: what lies in it is named where the system names it. `if_gone` says what to do about
    a file that is not there.
    """
    try:
        yield
    except OSError as error:
        named = (isinstance(what, Path) and error.filename) or what
        remedy = f"; {if_gone}" if if_gone and isinstance(error, FileNotFoundError) else ""
        raise wrong(f"{named} cannot be read: {error.strerror or error}{remedy}") from error


def place_of(error: BaseException) -> str:
    """Return where an error was raised, as " (engine.py:14)"; "" if nobody knows."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    return f" ({Path(place[0].filename).name}:{place[0].lineno})" if place else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not blank; the name of its type if there is none."""
    return next((line.strip() for line in words_of(error).splitlines() if line.strip()), type(error).__name__)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a longer text loses its middle and states its full length.

    The beginning of an error says what is wrong, and its end what to do, so both stay.
    """
    if len(text) <= most:
        return text
    mark = f" ... ({len(text):,} characters) ... "
    kept = max(0, most - len(mark))
    return text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :]


def join_errors(errors: Sequence[E]) -> E:
    """Return one error for several of a type: its message holds theirs, each once."""
    return type(errors[0])(list_few(dict.fromkeys(map(str, errors)), between="; "))


def list_few(sayings: Iterable[str], most: int = 5, between: str = ", ") -> str:
    """Return names, or sentences, as one text: the first `most` of them, and how many more there are."""
    listed = list(sayings)
    more = f"{between.rstrip(', ')} and {len(listed) - most} more" if len(listed) > most else ""
    return between.join(listed[:most]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown word: the closest known words, or all words of a short list, or nothing."""
    names = sorted(set(known))
    close = [name for name in names if name.casefold() == word.casefold()]
    close = close or get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    if names and len(names) <= 16:
        return "; known: " + ", ".join(names)
    return ""
