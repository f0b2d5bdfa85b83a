"""A strategy as a user's package offers it, with a policy of its own."""

from coe.scheduler.policies.base import Eviction
from coe.scheduler.strategies import Strategy


class NewestFirst(Eviction):
    """The expert that came last leaves first."""

    def rank(self, pool, world, now):
        return reversed(list(pool.by_arrival()))


ONE_AT_A_TIME = Strategy("one-at-a-time", eviction=NewestFirst)
