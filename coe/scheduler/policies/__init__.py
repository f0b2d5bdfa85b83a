"""Policies by family and name. To add a policy, add a file; a strategy names one policy of each family."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from coe.errors import ConfigError, did_you_mean
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Policy, Prefetch, Select, Split

FAMILIES: dict[str, type[Policy]] = {
    "assign": Assign,
    "arrange": Arrange,
    "select": Select,
    "split": Split,
    "eviction": Eviction,
    "prefetch": Prefetch,
}


@cache
def names(family: str) -> tuple[str, ...]:
    """Return the names of the policies of a family: the files of its folder."""
    package = importlib.import_module(f"coe.scheduler.policies.{family}")
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(package.__path__)))


@cache
def named(family: str, name: str) -> type[Policy]:
    """Return the class of a policy; raises ConfigError, listing the family's policies, if the name is unknown."""
    if name not in names(family):
        raise ConfigError(f"there is no {family} policy '{name}'{did_you_mean(name, names(family))}")
    module = importlib.import_module(f"coe.scheduler.policies.{family}.{name.replace('-', '_')}")
    classes: list[type[Policy]] = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, FAMILIES[family]) and value.__module__ == module.__name__
    ]
    (policy,) = classes
    return policy


def make(family: str, name: str) -> Any:
    """Return a new policy, a `FAMILIES[family]`; raises ConfigError, listing the family's policies, for other names."""
    return named(family, name)()
