"""What is said of one option of a line: what it means, what it may be, and where a user meets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from coe import config
from coe.errors import ConfigError
from coe.helpers import values

Check = Callable[[str, Any], Any]
"""Takes the name of an option and a user's value, and returns the value that a line works with; raises ConfigError."""


class Door(StrEnum):
    """Where users set options, beside `Inspector`, which takes all of them."""

    INSPECT = "coe-inspect"
    RUN = "coe-bench run"
    PROFILE = "coe-profile"
    SERVE = "serve.yaml"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a line: the sentence that explains it, and the doors that show it.

    The help of a command leaves it out if it is `rare`, as nobody types it at a line. `default` says in words what the
    value of the default does not say; `defaults` are those of doors that have their own, each with such words.

    In a file it is called `key`, and on a command line `flag`, if not by its name. There it has a type (`typed`), a
    number from `least` to `most`, and `metavar` as its form. `read` turns a text from there, or from a file, into what
    `check` takes. Without `check`, type and bounds are checked.
    """

    help: str
    doors: frozenset[Door] = frozenset()
    default: str = ""
    rare: bool = False
    defaults: Mapping[Door, tuple[Any, str]] = field(default_factory=dict)
    flag: str = ""
    key: str = ""
    typed: Any = str
    least: float = 0
    most: float = 0
    metavar: str | None = None
    read: Callable[[str], Any] = str
    check: Check | None = None

    def taken(self, name: str, value: Any) -> Any:
        """Return what a command line or a file says, for `checked`; raises ConfigError whose `option` is the name."""
        try:
            return self.read(value) if isinstance(value, str) else value
        except ConfigError as error:
            error.option = name
            raise

    def checked(self, name: str, value: Any) -> Any:
        """Return a user's value as a line works with it; raises ConfigError whose `option` is the name."""
        try:
            if self.check is not None:
                return self.check(name, value)
            if self.typed is bool:
                return values.flag(name, value)
            if self.typed is int:
                return values.whole(name, value, least=int(self.least), most=int(self.most))
            if self.typed is float:
                return values.real(name, value, least=self.least, most=self.most)
            return values.text(name, value)
        except ConfigError as error:
            error.option = name
            raise


def one_of(*words: str) -> Check:
    """Return a check of words."""

    def check(name: str, value: Any) -> Any:
        if value not in words or isinstance(value, bool):
            raise ConfigError(f"{name}={values.shown(value)} is neither {' nor '.join(map(repr, words))}")
        return value

    return check


def check_function(name: str, value: Any) -> Any:
    """Check a function."""
    if not callable(value):
        raise ConfigError(f"{name}={values.shown(value)}: give a function")
    return value


def instance_of(*types: type, wanted: str) -> Check:
    """Return a check of objects of these types, which the sentence calls `wanted`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, types) or str(value) == "":
            raise ConfigError(f"{name}={values.shown(value)}: give {wanted}")
        return value

    return check


def check_watchers(name: str, value: Any) -> Any:
    """Check a list of objects that watch a line (`coe.results.metrics.Watcher`)."""
    if not isinstance(value, Sequence) or not all(hasattr(watcher, "observe") for watcher in value):
        raise ConfigError(f"{name}={values.shown(value)}: give a list of objects that `observe`")
    return value


def check_executors(name: str, value: Any) -> str:
    """Check executors by device, as in "cuda=2,cpu=1"; they stay a text."""
    config.parse_executors(values.text(name, value))
    return str(value)


def check_cluster(name: str, value: Any) -> str:
    """Check the name of a cluster."""
    if not values.text(name, value):
        raise ConfigError(f"{name}='' names no cluster; give 'auto', or the address of the head node as host:port")
    return str(value)
