"""Whether held-out figures prove that an expert is better than one answer for all, and which pictures measure it.

A picture by which an epoch was chosen measures nothing. With few held-out pictures none is spent on choosing: the
last epoch counts, at which the learning rate has come down.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from coe.helpers.rates import Rate
from coe.pictures.photographs import Purpose

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


def divided(
    given: Mapping[Purpose, Mapping[str, list[T]]], share: float, seed: int
) -> dict[Purpose, dict[str, list[T]]]:
    """Return what is to learn from, to choose an epoch by, and held out, each by label.

    What is to test on measures, else what is to verify with, else a share of each label at random, by the seed; 0 holds
    out nothing. Of many that are not to test on, half choose an epoch.
    """
    training, choosing, held = (dict(given.get(purpose, {})) for purpose in Purpose)
    if not any(held.values()):
        choosing, held = {}, choosing
        if not any(held.values()):
            for label, ones in training.items():
                shuffled = ones[:]
                random.Random(seed).shuffle(shuffled)
                count = min(len(ones) - 1, max(1, round(len(ones) * share))) if share else 0
                held[label], training[label] = shuffled[:count], shuffled[count:]
        if sum(map(len, held.values())) >= MANY:
            halves = {label: halved(ones, seed) for label, ones in held.items()}
            choosing, held = ({label: half[place] for label, half in halves.items()} for place in range(2))
    return {Purpose.LEARN: training, Purpose.VERIFY: choosing, Purpose.TEST: held}


def unproven_answers(truth: ArrayLike, said: ArrayLike) -> str:
    """Say why the answers for held-out pictures do not prove an expert; "" if they do. Both are (n,) label numbers.

    A permutation test: how often would answers be right as often that have nothing to do with the pictures? One answer
    for all is right as often in every permutation, so an expert that gives it is never proven.
    """
    true, answers = np.asarray(truth), np.asarray(said)
    if not len(true):
        return "no picture is held out"
    if _by_chance(true, true) > _CHANCE:
        return (
            f"only {len(true)} held-out pictures, or all of one label: too few to distinguish it from always "
            "giving the same answer"
        )
    if _by_chance(true, answers) > _CHANCE:
        right = int((true == answers).sum())
        return f"{right} of {len(true)} held-out pictures are right: no better than always giving the same answer"
    return ""


def unproven_objects(found: int, objects: int) -> str:
    """Say why finding so many of the held-out objects does not prove a detector; "" if it does."""
    if objects < _FEW_OBJECTS:
        return f"only {objects} objects are held out: too few to distinguish it from an expert that sees nothing"
    if Rate(found, objects).lower() < _LEAST_FOUND:
        return f"it finds {found} of {objects} held-out objects: hardly better than an expert that sees nothing"
    return ""


def _by_chance(truth: np.ndarray, said: np.ndarray) -> float:  # type: ignore[type-arg]
    """Return the probability of as many right answers if they had nothing to do with the truth."""
    chance, right = np.random.default_rng(0), int((truth == said).sum())
    as_many = sum(int((chance.permutation(truth) == said).sum()) >= right for _ in range(_PERMUTATIONS))
    return (1 + as_many) / (1 + _PERMUTATIONS)
