"""What a user may bring in a package of their own: found by the name of an entry point, or by its dotted path.

A dotted path is `package.module:attribute`. Names in data, as in a board file, run only code that is an installed entry
point or lies in a package that the user allows; a path that the user types is itself the permission.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from coe.errors import CoeError, ConfigError, did_you_mean, words_of

KINDS = "coe.kinds"
"""The group of entry points of kinds of experts."""
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_MODULE = re.compile(rf"{_NAME}(\.{_NAME})*")
_LONGEST = 200


def names(group: str) -> list[str]:
    """Return the names of the entry points that installed packages offer in a group."""
    return sorted(point.name for point in _points(group))


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    # The files of all installed packages are read for it.
    return tuple(entry_points(group=group))


def packages(allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that a user allows; raises ConfigError for a value that cannot name a package."""
    if isinstance(allowed, str) or not isinstance(allowed, Iterable):
        raise ConfigError(f"allow_kinds={_shown(allowed)}: give a list of packages, such as ['line7']")
    names = tuple(allowed)
    for package in names:
        if not isinstance(package, str) or not _is_module(package):
            raise ConfigError(f"{_shown(package)} is not the name of a package to allow kinds of; write it like line7")
    return names


def load(name: str, allowed: Iterable[str] | None, *, group: str, noun: str) -> object:
    """Return the object that an entry point of `group` or a dotted path names.

    A path is imported if an entry point has the same path, or if its module lies in one of the packages `allowed`
    (None: any package). Raises ConfigError for any other name, and for one that two packages offer, before anything is
    imported; and for whatever the imported code raises, SystemExit too.
    """
    found = find(name, allowed, group=group, noun=noun)
    with running(noun, name, "imported"):
        return found.load()


def find(name: str, allowed: Iterable[str] | None, *, group: str, noun: str) -> EntryPoint:
    """Return what a name stands for, as `load` does, without importing it; raises ConfigError as `load`."""
    points = _points(group)
    if point := _point(name, points, noun):
        return point
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = did_you_mean(name[:_LONGEST], (point.name for point in points))
        raise ConfigError(f"there is no {noun} {_shown(name)}{hint} (or give package.module:NAME)")
    if len(name) > _LONGEST or not _is_module(module) or not _is_module(attribute) or "." in attribute:
        raise ConfigError(f"{noun} {_shown(name)} is not written like package.module:NAME")
    if allowed is not None and not any(
        module == package or module.startswith(f"{package}.") for package in packages(allowed)
    ):
        package = module.partition(".")[0]
        raise ConfigError(
            f"{noun} '{name}' is code of the package '{package}', which runs only if you allow it; if you trust it, "
            f"give --allow-kind {package} (allow_kinds: ['{package}'] in Python, and under line: of serve.yaml)"
        )
    return EntryPoint(name, name, group)


def _point(name: str, points: Iterable[EntryPoint], noun: str) -> EntryPoint | None:
    found = {point.value: point for point in points if name in (point.name, point.value)}
    if len(found) > 1:
        paths = ", ".join(sorted(found))
        raise ConfigError(f"{noun} '{name}' is offered more than once: give one of {paths}, or uninstall the other")
    return next(iter(found.values()), None)


@contextmanager
def running(noun: str, name: str, done: str) -> Iterator[None]:
    """Turn whatever a user's code raises into a ConfigError, SystemExit too; interrupts and our errors pass."""
    try:
        yield
    except (KeyboardInterrupt, CoeError):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise ConfigError(f"{noun} {_shown(name)} cannot be {done}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Return the type and the message of an error, on one line."""
    words = " ".join(words_of(error).split())
    if isinstance(error, ModuleNotFoundError):
        words += "; install it, or put its folder into PYTHONPATH"
    kind = "it exits the program" if isinstance(error, SystemExit) else type(error).__name__
    return f"{kind}: {words[:300]}" if words else kind


def _is_module(name: str) -> bool:
    parts = name.split(".")
    return len(name) <= _LONGEST and bool(_MODULE.fullmatch(name)) and not any(map(keyword.iskeyword, parts))


def _shown(name: object) -> str:
    written = repr(name)
    return written if len(written) <= 80 else f"{written[:80]}...'"
