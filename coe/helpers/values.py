"""Checks of values that a user gave: each function returns the value, or raises an error that names the argument."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard

from coe import config
from coe.errors import ConfigError

MOST_SECONDS = 1e9
"""Thirty years: threads wait no longer."""
_SHOWN = 60


def whole(name: str, value: object, *, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`; raises ConfigError, for True and 2.0 too."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ConfigError(f"{name}={shown(value)}: give a whole number from {least:,} to {most:,}")
    return int(value)


def real(name: str, value: object, *, least: float, most: float) -> float:
    """Return a number from `least` to `most`; raises ConfigError, for True and "2" too."""
    number = _number(value)
    if number is None or not least <= number <= most:
        raise ConfigError(f"{name}={shown(value)}: give a number from {least:,g} to {most:,g}")
    return number


def seconds(name: str, value: object, *, meaning: str) -> float:
    """Return a time above 0; raises a ConfigError that begins with the `meaning` of the time."""
    number = _number(value)
    if number is None or not 0 < number <= MOST_SECONDS:
        given = f"{number:g}" if number is not None and abs(number) <= MOST_SECONDS else shown(value)
        raise ConfigError(f"{meaning} a number of seconds above 0, not {given} ({name}; at most {MOST_SECONDS:,.0f})")
    return number


def patience(timeout_s: object) -> float | None:
    """Return the longest time that a call waits, in seconds; None means without end. Raises ConfigError."""
    return None if timeout_s is None else real("timeout_s", timeout_s, least=0, most=MOST_SECONDS)


def amount(name: str, value: object) -> int:
    """Return an amount of memory in bytes, given as a number of bytes or as "1.5GiB"; raises ConfigError."""
    try:
        size = config.parse_bytes(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not is_amount(size):
        raise ConfigError(f"{name}={shown(value)}: {no_amount(size)}")
    return int(size)


def is_amount(size: object) -> TypeGuard[Integral]:
    """Return whether a number is an amount of memory in whole bytes, from 1 byte to the most that a line takes."""
    return not isinstance(size, bool) and isinstance(size, Integral) and 1 <= int(size) <= config.MAX_BYTES


def no_amount(size: object) -> str:
    """Return the end of a sentence that refuses `size`: which amounts of memory a user may give."""
    if isinstance(size, bool) or not isinstance(size, Integral):
        return 'give an amount of memory, in whole bytes or as "1.5GiB"'
    return f'give from 1 byte to {config.format_bytes(config.MAX_BYTES)}, as "1.5GiB"'


def bandwidth(name: str, value: object) -> int:
    """Return bytes a second, given as a number or as "530MB/s"; raises ConfigError."""
    if isinstance(value, str):
        try:
            return amount(name, config.parse_bandwidth(value))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    number = _number(value)
    if number is None or not 1 <= number <= config.MAX_BYTES:
        raise ConfigError(f'{name}={shown(value)}: give bytes per second, at least 1, or a text such as "530MB/s"')
    return int(number)


def flag(name: str, value: object) -> bool:
    """Return True or False; raises ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={shown(value)}: give True or False")
    return value


def text(name: str, value: object) -> str:
    """Return a text; raises ConfigError for anything else."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}={shown(value)}: give a text, not {type(value).__name__}")
    return value


def shown(value: object) -> str:
    """Return a value as Python writes it, shortened if it is long."""
    try:
        written = repr(value)
    except Exception:  # the `repr` of a user's class may fail; the value is refused in any case
        written = f"a {type(value).__name__}"
    line = " ".join(written.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _number(value: object) -> float | None:
    """Return a value as a float; None if it is not a number, or a number that cannot be compared."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return None if math.isnan(number) else number
