"""Logistic regression with several labels on a few standardised features, and how it judges what it has not seen.

The penalty is that of weights with a normal prior (ridge); labels weigh alike, however many pictures they have. Half a
hundred pictures of a thousand features take some hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Places = NDArray[np.intp]
Chosen = NDArray[np.bool_]

INVERSE_PENALTY = 0.1
"""The weight of the pictures' losses against half the squared weights (the C of usual libraries)."""
_LEAST_DEVIATION = 0.1
"""Of the mean deviation of all features: what hardly varies in a few pictures may vary in the next."""
_GIVEN = 0.2
"""The deviation of columns that have a scale of their own: they need little weight."""
_SOFTEST = 10.0
_FOLDS = 10


@dataclass(frozen=True, slots=True)
class LinearHead:
    """Standardises features (n, d) by `centre` and `deviation`, (d,), and gives logits by `weights` (labels, d).

    `bias` is (labels,).
    """

    centre: Numbers
    deviation: Numbers
    weights: Numbers
    bias: Numbers

    @classmethod
    def learned(cls, features: Numbers, labels: Places, count: int, given: int = 0) -> LinearHead:
        """Learn from features (n, d) with label numbers (n,) below `count`.

        The last `given` columns have a scale of their own, of which 0 is usual and 1 a usual deviation.
        """
        from scipy.optimize import minimize  # slow to import

        centre, spread = features.mean(axis=0), features.std(axis=0)
        deviation = np.maximum(spread, max(_LEAST_DEVIATION * float(spread.mean()), 1e-6))
        centre[len(centre) - given :], deviation[len(centre) - given :] = 0.0, _GIVEN
        rows = (features - centre) / deviation
        wide = rows.shape[1]
        truth = np.eye(count)[labels]
        frequency = truth.sum(axis=0).clip(1)
        share = INVERSE_PENALTY * (len(labels) / count / frequency)[labels][:, None]

        def loss(numbers: Numbers) -> tuple[float, Numbers]:
            weights, bias = numbers[: count * wide].reshape(count, wide), numbers[count * wide :]
            logs = _log_softmax(rows @ weights.T + bias)
            wrong = share * (np.exp(logs) - truth)
            slope = np.concatenate(((wrong.T @ rows + weights).ravel(), wrong.sum(axis=0)))
            return float(-(share * truth * logs).sum() + 0.5 * (weights**2).sum()), slope

        found = minimize(loss, np.zeros(count * (wide + 1)), jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
        return cls(centre, deviation, found[: count * wide].reshape(count, wide), found[count * wide :])

    def logits(self, features: Numbers) -> Numbers:
        """Return logits (n, labels)."""
        return np.asarray(((features - self.centre) / self.deviation) @ self.weights.T + self.bias)


def judged_by_others(
    features: Numbers, labels: Places, groups: Places, count: int, seed: int, given: int = 0
) -> tuple[Numbers, list[tuple[Chosen, LinearHead]]]:
    """Return for each picture the logits (n, count) of a head that learned without it and its copies, and these heads.

    Each head is beside a mask (n,) of the pictures that it has not seen. For `given` see `LinearHead.learned`.
    `groups` (n,) numbers pictures that are one: copies, or turns of one picture. That is cross-validation in at most
    ten folds, of which each has its share of each label.
    """
    logits, heads = np.zeros((len(labels), count)), []
    for out in _folds(labels, groups, seed):
        head = LinearHead.learned(features[~out], labels[~out], count, given)
        logits[out] = head.logits(features[out])
        heads.append((out, head))
    return logits, heads


def calibrated(logits: Numbers, labels: Places) -> tuple[float, Numbers]:
    """Return the temperature, 1 or more, and the bias (labels,) with which logits of unseen pictures are honest.

    Divided by the one and shifted by the other they are as sure as they are right (Platt, 1999), and no label is
    preferred; labels weigh alike, and biases have a standard normal prior.
    """
    from scipy.optimize import minimize  # slow to import

    places, count = np.arange(len(labels)), logits.shape[1]
    frequency = np.bincount(labels, minlength=count).clip(1)
    weights = (len(labels) / count / frequency)[labels]

    def loss(numbers: Numbers) -> float:
        logs = _log_softmax(logits / np.exp(numbers[0]) + numbers[1:])
        return float(-(weights * logs[places, labels]).sum() + 0.5 * (numbers[1:] ** 2).sum())

    bounds = [(0.0, np.log(_SOFTEST)), *[(None, None)] * count]
    found = minimize(loss, np.zeros(1 + count), method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(found[0])), np.asarray(found[1:])


def mean_loss(logits: Numbers, labels: Places) -> float:
    """Return the mean cross entropy of logits (n, labels)."""
    return -float(_log_softmax(logits)[np.arange(len(labels)), labels].mean())


def _log_softmax(logits: Numbers) -> Numbers:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _folds(labels: Places, groups: Places, seed: int) -> Iterator[Chosen]:
    """Yield which pictures (n,) are out in each fold; a fold takes groups of each label in turn."""
    chance = np.random.default_rng(seed)
    _, first = np.unique(groups, return_index=True)
    of_label = [chance.permutation(first[labels[first] == label]) for label in np.unique(labels)]
    number = min(_FOLDS, *(len(places) for places in of_label))
    for fold in range(number):
        chosen = np.concatenate([groups[places[fold::number]] for places in of_label])
        yield np.isin(groups, chosen)
