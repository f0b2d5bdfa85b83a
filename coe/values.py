"""Values that a user gave, looked at before they are used: each comes back as what it is, or is refused by its name."""

from __future__ import annotations

import math
from numbers import Integral, Real

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
    """Return a time above 0; raises ConfigError that begins with the `meaning` of such a time."""
    number = _number(value)
    if number is None or not 0 < number <= MOST_SECONDS:
        given = f"{number:g}" if number is not None and abs(number) <= MOST_SECONDS else shown(value)
        raise ConfigError(f"{meaning} a number of seconds above 0, not {given} ({name}; at most {MOST_SECONDS:,.0f})")
    return number


def patience(name: str, value: object) -> float | None:
    """Return how long somebody waits, in seconds; None is without end. Raises ConfigError."""
    return None if value is None else real(name, value, least=0, most=MOST_SECONDS)


def amount(name: str, value: object) -> int:
    """Return an amount of memory in bytes, given as such or as "1.5GiB"; raises ConfigError."""
    if isinstance(value, str):
        try:
            size = config.parse_bytes(value)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    elif isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f'{name}={shown(value)}: give an amount of memory, in whole bytes or as "1.5GiB"')
    else:
        size = int(value)
    if not 1 <= size <= config.MAX_BYTES:
        raise ConfigError(
            f'{name}={shown(value)}: give from 1 byte to {config.format_bytes(config.MAX_BYTES)}, as "1.5GiB"'
        )
    return size


def bandwidth(name: str, value: object) -> int:
    """Return bytes a second, given as such or as "530MB/s"; raises ConfigError."""
    if isinstance(value, str):
        try:
            return amount(name, config.parse_bandwidth(value))
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    number = _number(value)
    if number is None or not 1 <= number <= config.MAX_BYTES:
        raise ConfigError(f'{name}={shown(value)}: give bytes a second, at least 1, or a text such as "530MB/s"')
    return int(number)


def text(name: str, value: object) -> str:
    """Return a text; raises ConfigError for anything else."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}={shown(value)}: give a text, not a {type(value).__name__}")
    return value


def shown(value: object) -> str:
    """Return a value as Python writes it, cut where it is long."""
    try:
        written = repr(value)
    except Exception:  # an object of the user's own: it is refused either way
        written = f"a {type(value).__name__}"
    line = " ".join(written.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def _number(value: object) -> float | None:
    """Return a value as a float; None for what is none, or not a number that can be compared."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return None if math.isnan(number) else number
