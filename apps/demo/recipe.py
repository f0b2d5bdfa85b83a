"""The training recipe of each expert of the demo board, and the fingerprint that tells when to train it again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from apps.demo.lessons import BODY, Amount
from coe.board import rules
from coe.core import Expert

PICTURES = ("canvas", "light", "pcb", "site", "chips", "leaded", "cans", "render")
SOURCES = (*PICTURES, "lessons", "production", "recipe", "work")
"""The files on which the experts depend: a change of one makes all experts again."""


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """Training of one expert; `init` is the expert whose weights it starts from, `freeze` the parts that keep them."""

    amount: Amount
    epochs: int
    batch: int
    learning_rate: float
    init: str | None = None
    freeze: tuple[str, ...] = ()


TRUNK = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4.0", "layer4.1.conv1", "layer4.1.bn1")
"""The layers of the common body that a classifier keeps; only the last convolution and the head learn its types."""
KEPT = (*TRUNK, "layer4.1.bn2")
"""These layers do not change: a hundred pictures are too few for the statistics of the last batch norm."""

ALL_BODIES = TrainingRecipe(Amount(ok=40, damage=40, other=18, held=0.05), 9, 16, 1.5e-3)
"""The body learns from many pictures of all types, as it makes most of what every classifier says."""
ONE_BODY = TrainingRecipe(Amount(ok=40, damage=24, other=12, held=0.3), 6, 16, 1e-4, "body", KEPT)
CHIP_RESISTOR = TrainingRecipe(Amount(ok=44, damage=30, other=12, held=0.3), 6, 16, 1e-4, "body", KEPT)
"""Resistors are a third of all parts, and their printed code looks like a crack, so this expert sees more of both."""
WIRE_SOCKET = TrainingRecipe(Amount(ok=70, damage=24, other=30, held=0.3), 8, 16, 3e-4, "body", KEPT)
"""A socket a little askew is good, and one more so is rotated: this expert learns where that ends."""
FIRST_DETECTOR = TrainingRecipe(Amount(ok=8, damage=0, other=20, held=0.12), 20, 4, 2e-3)
NEXT_DETECTOR = TrainingRecipe(Amount(ok=16, damage=0, other=16, held=0.12), 9, 4, 2e-3, init="solder-joints")

RECIPES: dict[str, TrainingRecipe] = {
    "body": ALL_BODIES,
    "chip-resistor": CHIP_RESISTOR,
    "wire-socket": WIRE_SOCKET,
    "solder-joints": FIRST_DETECTOR,
    "polarity": NEXT_DETECTOR,
}
"""All classifiers start from `body`, which is not an expert of the board; the second detector starts from the first."""


def recipe(expert: str, quick: bool = False) -> TrainingRecipe:
    """Return the recipe of an expert; a quick recipe trains in seconds, too little to be of use, to try the build."""
    full = RECIPES.get(expert, ONE_BODY)
    return replace(full, amount=Amount(4, 4, 2), epochs=1) if quick else full


def fingerprint(expert: Expert, seed: int, quick: bool = False) -> str:
    """Return the digest of all that an expert's training depends on: recipe, renderer, seed and initial weights.

    The expert whose weights it starts from counts with its own fingerprint.
    """
    plan = recipe(expert.id, quick)
    first = plan.init and (BODY if plan.init == BODY.id else rules.load("demo").experts[plan.init])
    start = first and fingerprint(first, seed, quick)
    inputs = (expert.id, expert.kind, expert.labels, expert.input_size, plan, start, seed)
    return hashlib.sha256(f"{renderer()}{inputs!r}".encode()).hexdigest()[:16]


@cache
def renderer() -> str:
    """Return the digest of the code that makes the pictures."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
