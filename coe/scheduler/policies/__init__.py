"""Policies by family and name. A strategy has one policy of each family, by name or as a class.

A policy is a file in the folder of its family. CONTRIBUTING.md says step by step how to add one.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from coe import values
from coe.errors import ConfigError, did_you_mean
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Policy, Precision, Prefetch, Select, Split

FAMILIES: dict[str, type[Policy]] = {
    "assign": Assign,
    "arrange": Arrange,
    "select": Select,
    "split": Split,
    "eviction": Eviction,
    "prefetch": Prefetch,
    "precision": Precision,
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


def class_of(family: str, policy: str | type[Policy]) -> type[Policy]:
    """Return the class that a name stands for, or the class itself if a class is given.

    Raises ConfigError, with the names that there are, for a name without a file, and for what is no class that can be
    made without arguments and has all methods of the family.
    """
    if isinstance(policy, str):
        return named(family, policy)
    parent = FAMILIES[family]
    if not (inspect.isclass(policy) and issubclass(policy, parent)):
        raise ConfigError(
            f"{family}={values.shown(policy)}: give the name of a policy ({', '.join(names(family))}), "
            f"or a subclass of {parent.__module__}.{parent.__name__}"
        )
    members = inspect.getmembers(policy, lambda member: getattr(member, "__isabstractmethod__", False))
    if missing := ", ".join(name for name, _ in members):
        raise ConfigError(f"{family} policy '{policy.__name__}' lacks methods that the line calls: {missing}")
    try:
        inspect.signature(policy).bind()
    except TypeError:
        raise ConfigError(
            f"{family} policy '{policy.__name__}' needs arguments to be made, and the line gives none; "
            "give each of them a default value"
        ) from None
    return policy


def make(family: str, policy: str | type[Policy]) -> Any:
    """Return a new `FAMILIES[family]`; raises ConfigError as `class_of` does."""
    return class_of(family, policy)()
