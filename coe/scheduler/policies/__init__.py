"""Policies by family and name. A strategy has one policy of each family: a name, a dotted path, or a class.

Each name is an entry point of the group `coe.policies.FAMILY` (docs/strategies.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from coe.errors import ConfigError, did_you_mean
from coe.helpers import plugins, values
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Policy, Prefetch, Select, World
from coe.scheduler.pool import ModelPool

FAMILIES: dict[str, type[Policy]] = {
    "assign": Assign,
    "arrange": Arrange,
    "select": Select,
    "eviction": Eviction,
    "prefetch": Prefetch,
}


def names(family: str) -> list[str]:
    """Return the names of the policies of a family that installed packages offer."""
    return plugins.names(f"coe.policies.{family}")


def class_of(family: str, policy: str | type[Policy]) -> type[Policy]:
    """Return the class that a name or a dotted path stands for, or the class itself if a class is given.

    Raises ConfigError, with the names that there are, for what cannot be found or imported, and for what is no class
    that can be made without arguments and has all methods of the family.
    """
    return _named(family, policy) if isinstance(policy, str) else _checked(family, policy)


def name_of(family: str, policy: str | type[Policy]) -> str:
    """Return the name under which a policy is offered, else that of its class."""
    if isinstance(policy, str):
        return policy
    offered = (name for name in names(family) if _named(family, name) is policy)
    return next(offered, policy.__name__)


def no_such(family: str, policy: Policy, what: str, named: object, known: Iterable[Any] = ()) -> ConfigError:
    """Return the error of a policy that names something which is no `what`."""
    wrong = f"{family} policy '{type(policy).__name__}' names {values.shown(named)}, which is no {what}"
    return ConfigError(wrong + did_you_mean(str(named), known))


def leaving(world: World, pool: ModelPool, now: float) -> Iterator[str]:
    """Yield the experts of a pool in the order in which its eviction policy lets them leave, each once.

    Raises ConfigError for an expert that is not in the pool.
    """
    eviction, known, seen = world.evictions[pool.id], pool.known(), set[str]()
    for expert in eviction.rank(pool, world, now):
        if expert not in known:
            raise no_such("eviction", eviction, f"expert in pool '{pool.id}'", expert, known)
        if expert not in seen:
            seen.add(expert)
            yield expert


def make(family: str, policy: str | type[Policy]) -> Any:
    """Return a new `FAMILIES[family]`; raises ConfigError as `class_of` does."""
    return class_of(family, policy)()


@cache
def _named(family: str, name: str) -> type[Policy]:
    found = plugins.load(name, None, group=f"coe.policies.{family}", noun=f"{family} policy")
    return _checked(family, found)


def _checked(family: str, policy: object) -> type[Policy]:
    parent = FAMILIES[family]
    if not (inspect.isclass(policy) and issubclass(policy, parent)):
        raise ConfigError(
            f"{family}={values.shown(policy)}: give the name of a policy ({', '.join(names(family))}), "
            f"or a subclass of {parent.__module__}.{parent.__name__}"
        )
    with plugins.running(f"{family} policy", policy.__name__, "made"):  # a method may be missing, or an argument
        policy()
    return policy
