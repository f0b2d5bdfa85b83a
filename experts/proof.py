"""Whether held-out figures prove that an expert is better than one answer for all, and which pictures measure it.

A picture by which an epoch was chosen measures nothing. With few held-out pictures none is spent on choosing: the
last epoch counts, at which the learning rate has come down.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from coe.helpers.rates import Rate

MANY = 40
"""From so many held-out pictures on, half of them choose the best epoch."""
_PERMUTATIONS = 999
_CHANCE = 0.05
"""The largest probability with which answers that know nothing of the truth may be right as often."""
_FEW_OBJECTS = 5
_LEAST_FOUND = 0.05
"""A detector must find more than this share of the objects, with a confidence of 95 %."""
T = TypeVar("T")


def halved(held: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """Return which of the held-out things choose an epoch, and which measure the outcome: at random, by the seed."""
    shuffled = list(held)
    random.Random(seed).shuffle(shuffled)
    middle = len(shuffled) // 2
    return shuffled[:middle], shuffled[middle:]


def unproven_answers(truth: ArrayLike, said: ArrayLike) -> str:
    """Say why the answers for held-out pictures do not prove an expert; "" if they do. Both are (n,) label numbers.

    A permutation test: how often would answers be right as often that have nothing to do with the pictures? One answer
    for all is right as often in every permutation, so an expert that gives it is never proven.
    """
    true, answers = np.asarray(truth), np.asarray(said)
    if not len(true):
        return "no picture is held out"
    if _by_chance(true, true) > _CHANCE:
        return f"only {len(true)} held-out pictures, or all of one label: too few to tell it from one answer for all"
    if _by_chance(true, answers) > _CHANCE:
        right = int((true == answers).sum())
        return f"{right} of {len(true)} held-out pictures are right: no better than one answer for all"
    return ""


def unproven_objects(found: int, objects: int) -> str:
    """Say why finding so many of the held-out objects does not prove a detector; "" if it does."""
    if objects < _FEW_OBJECTS:
        return f"only {objects} objects are held out: too few to tell it from an expert that sees nothing"
    if Rate(found, objects).lower() < _LEAST_FOUND:
        return f"it finds {found} of {objects} held-out objects: hardly better than an expert that sees nothing"
    return ""


def _by_chance(truth: np.ndarray, said: np.ndarray) -> float:  # type: ignore[type-arg]
    """Return the probability of as many right answers if they had nothing to do with the truth."""
    chance, right = np.random.default_rng(0), int((truth == said).sum())
    as_many = sum(int((chance.permutation(truth) == said).sum()) >= right for _ in range(_PERMUTATIONS))
    return (1 + as_many) / (1 + _PERMUTATIONS)
